from dataclasses import replace

import pytest
import torch
from torch import nn

from fedatlas.algorithms import fedavg
from fedatlas.algorithms.fediir import fediir
from fedatlas.client import LocalWork
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Assignment, Equal, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits

KEY = "server/head_gradient"


def test_the_penalty_is_differentiated_through_the_gradient() -> None:
    """x = 2, label 0, w = 0: the gradient g = -2 sigmoid(-2 w) is -1 and its slope 4 * 1/4 = 1. With ema 0.5 the
    average is -0.5, so the penalty 0.1 (g + 0.5)^2 has the slope 0.1 * 2 * (-0.5) * 1 = -0.1. With lr 0.1:
    w = 0.1 * (1 + 0.1) = 0.11. A penalty without the second order would give 0.1."""
    algorithm = fediir(penalty=0.1, ema=0.5).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), line_federation(([2], [0])))
    assert state.shared["head.weight"].item() == pytest.approx(0.11, abs=1e-6)
    assert state.memory[KEY]["head.weight"].item() == pytest.approx(-0.5)


def test_the_average_runs_over_the_cohorts_examples_and_moves_by_ema() -> None:
    """At w = 0, x = 2: client 0 (one example, label 0) has gradient -1, client 1 (three, label 1) +1. Mean over the
    four: 0.5; with ema 0.9 the average is 0.05. Models count the same: (0.1 - 0.1) / 2 = 0, so round 2 sees the same
    gradients and the average is 0.9 * 0.05 + 0.1 * 0.5 = 0.095. The penalty is 0 to leave the models there."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    algorithm = fediir(penalty=0.0, ema=0.9).with_optimizer(SGD(lr=0.1))
    for rounds, average in ((1, 0.05), (2, 0.095)):
        state, records, _ = play(algorithm, Line(), federation, rounds=rounds)
        assert state.memory[KEY]["head.weight"].item() == pytest.approx(average, abs=1e-6)
        assert state.shared["head.weight"].item() == pytest.approx(0, abs=1e-6)
        assert records[-1].weights == {0: 0.5, 1: 0.5}


def test_only_the_classifier_is_surveyed_at_the_received_model() -> None:
    federation = blob_federation(num_clients=2)
    _, _, simulator = play(fediir(), Norms(), federation)
    runner = simulator.runner
    shared, buffers = runner.bench.shared()
    assignment = Assignment(round=1, rounds=1, client=1, shared=shared, buffers=buffers)
    answer = runner.survey(assignment, {})["head_gradient"]
    assert list(answer) == ["head.weight", "head.bias"]

    model = runner.bench.model
    own = federation.clients[1].train
    runner.bench.load(shared, buffers, {})
    model.eval()
    loss = nn.functional.cross_entropy(model(federation.data.inputs[own])[1], federation.data.labels[own])
    expected = torch.autograd.grad(loss, [runner.bench.parameters[name] for name in answer])
    torch.testing.assert_close(list(answer.values()), list(expected))
    assert same_bits({k: runner.bench.buffers[k] for k in buffers}, buffers)


def test_a_survey_of_many_examples_is_their_mean() -> None:
    """600 examples take three passes of at most 256; the mean of 400 gradients of -1 and 200 of +1 is -1/3."""
    federation = line_federation(([2] * 600, [0] * 400 + [1] * 200))
    algorithm = fediir(penalty=0.0, ema=0.0)
    state, _, _ = play(algorithm, Line(), federation)
    assert state.memory[KEY]["head.weight"].item() == pytest.approx(-1 / 3, abs=1e-6)


def test_without_penalty_it_is_the_uniform_mean_bit_for_bit() -> None:
    federation = blob_federation()
    plain, _, _ = play(replace(fedavg(), weighting=(Equal(),)), Norms(), federation, rounds=3)
    without, _, _ = play(fediir(penalty=0.0), Norms(), federation, rounds=3)
    assert same_bits(plain.shared, without.shared)
    assert same_bits(plain.buffers, without.buffers)


def test_the_average_is_kept_over_rounds_of_partial_participation() -> None:
    federation, work = blob_federation(), LocalWork(steps=3)
    runs = [play(fediir(penalty=0.1), Norms(), federation, rounds=4, cohort=2, work=work) for _ in range(2)]
    (state, _, simulator), (again, _, _) = runs
    assert set(state.memory[KEY]) == {"head.weight", "head.bias"}
    assert all(bool(tensor.isfinite().all()) and bool(tensor.any()) for tensor in state.memory[KEY].values())
    assert same_bits(state.shared, again.shared)
    assert simulator.memory == {}


def test_what_leaves_the_client_is_declared_and_wrong_settings_are_refused() -> None:
    assert words(fediir().disclosures()) == ["gradient of the received classifier on the client's training data"]
    with raises(UsageError, "out-of-range", setting="GradientAlignment(penalty)", got=-0.1):
        fediir(penalty=-0.1)
    with raises(UsageError, "out-of-range", setting="MeanHeadGradient(ema)", got=1):
        fediir(ema=1)


def test_a_model_without_a_head_is_refused() -> None:
    class Headless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, self.classifier(x)

    with raises(UsageError, "head-unfit"):
        play(fediir(), Headless(), blob_federation(num_clients=2))


class Affine(nn.Module):
    """A head with a bias, at zero: all classes are as likely."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, self.head(x)


def test_the_penalty_is_the_sum_over_all_of_the_classifier() -> None:
    """x = 2, label 0: the gradients are (-1, 1) by the weight and (-1/2, 1/2) by the bias, and with ema 0.5 the average
    is half of each. The squares of the other half: 1/4 + 1/4 + 1/16 + 1/16 = 0.625. With penalty 0.1 the loss is
    log 2 + 0.0625 = 0.7556472."""
    _, records, _ = play(fediir(penalty=0.1, ema=0.5), Affine(), line_federation(([2], [0])))
    assert records[0].losses[0] == pytest.approx(0.7556472, abs=1e-6)
