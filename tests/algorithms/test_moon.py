import math

import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithms import fedavg
from fedatlas.algorithms.moon import ModelContrast, moon
from fedatlas.client import LocalWork
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Assignment, Tensors
from raising import raises
from tiny import Norms, blob_federation, line_federation, play, same_bits


class Angle(nn.Module):
    """One parameter w: features (x, w x), logits that are 0 whatever it is."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, self.w * x], 1), 0 * self.w * x.expand(-1, 2)


def test_contrast_turns_the_features_from_the_previous_model() -> None:
    """x = 1, received w = 0, previous w = 1, tau 0.5, mu 2: z = z_glob = (1, 0), z_prev = (1, 1). The cosines are
    a = 1 with slope 0 and b = 1/sqrt 2 with slope 1/sqrt 2. The loss log(1 + e^{(b - a) / tau}) has the slope
    sigmoid((b - a) / tau) / tau / sqrt 2 = 0.3576022 * 1.4142136 = 0.5057259; with mu 2 and lr 0.1, w = -0.1011452.
    Cross-entropy is log 2 and the contrast 2 log(1 + e^{-0.5857864}) = 0.8850960."""
    algorithm = moon(mu=2.0, tau=0.5).with_optimizer(SGD(lr=0.1))
    _, _, simulator = play(algorithm, Angle(), line_federation(([1], [0])))
    assignment = Assignment(round=2, rounds=2, client=0, shared={"w": torch.zeros(())}, buffers={})
    upload, memory = simulator.runner.train(assignment, {"model_contrast": {"w": torch.ones(())}})
    assert upload.change["w"].item() == pytest.approx(-0.1011452, abs=1e-6)
    assert upload.metrics["loss"] == pytest.approx(math.log(2) + 0.8850960, abs=1e-6)
    assert memory["model_contrast"]["w"].item() == pytest.approx(-0.1011452, abs=1e-6)


def test_the_first_participation_adds_log_2_and_no_gradient() -> None:
    federation = blob_federation()
    work = LocalWork(epochs=2, batch_size=8)
    plain, plain_records, _ = play(fedavg(), Norms(), federation, work=work)
    first, records, _ = play(moon(mu=3.0), Norms(), federation, work=work)
    assert same_bits(plain.shared, first.shared)
    assert same_bits(plain.buffers, first.buffers)
    for client, loss in plain_records[0].losses.items():
        assert records[0].losses[client] == pytest.approx(loss + 3 * math.log(2), abs=1e-5)


def test_a_previous_model_that_is_the_received_one_gives_the_same_as_none() -> None:
    """The shortcut for newcomers agrees with the two passes: both cosines are equal, and so are their gradients."""
    _, _, simulator = play(moon(), Angle(), line_federation(([1, 2], [0, 1])))
    shared: Tensors = {"w": torch.tensor(0.7)}
    assignment = Assignment(round=1, rounds=1, client=0, shared=shared, buffers={})
    newcomer, _ = simulator.runner.train(assignment, {})
    same, _ = simulator.runner.train(assignment, {"model_contrast": shared})
    assert torch.equal(newcomer.change["w"], same.change["w"])
    assert newcomer.metrics["loss"] == pytest.approx(same.metrics["loss"], abs=1e-6)


def test_each_client_remembers_where_it_ended_last() -> None:
    federation = blob_federation()
    _, records, simulator = play(moon(), Norms(), federation, rounds=3, cohort=2)
    drawn = {client for record in records for client in record.cohort}
    assert simulator.memory.keys() == drawn
    assert len(drawn) > 2
    kept = [simulator.memory[client]["model_contrast"] for client in sorted(drawn)]
    assert all(set(memory) == set(simulator.runner.bench.parameters) for memory in kept)
    assert len({tuple(memory["head.bias"].tolist()) for memory in kept}) == len(drawn)


def test_training_changes_neither_the_memory_it_was_given_nor_the_running_statistics_twice() -> None:
    federation = blob_federation(num_clients=1)
    work = LocalWork(steps=1, batch_size=64)
    _, _, simulator = play(moon(), Norms(), federation, work=work)
    _, _, plain = play(fedavg(), Norms(), federation, work=work)
    shared, buffers = simulator.runner.bench.shared()
    assignment = Assignment(round=2, rounds=2, client=0, shared=shared, buffers=buffers)
    memory = {"model_contrast": {k: w + 0.1 for k, w in shared.items()}}
    kept = {k: w.clone() for k, w in memory["model_contrast"].items()}
    upload, _ = simulator.runner.train(assignment, memory)
    reference, _ = plain.runner.train(assignment, {})
    assert same_bits(memory["model_contrast"], kept)
    assert same_bits(upload.buffers, reference.buffers)
    assert not same_bits(upload.change, reference.change)


def test_moon_without_weight_is_fedavg_bit_for_bit_and_remembers_nothing() -> None:
    federation = blob_federation()
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3)
    without, _, simulator = play(moon(mu=0.0), Norms(), federation, rounds=3)
    assert same_bits(plain.shared, without.shared)
    assert same_bits(plain.buffers, without.buffers)
    assert simulator.memory == {}


def test_settings_out_of_range_are_refused() -> None:
    with raises(UsageError, "out-of-range", setting="ModelContrast(mu)", got=-1):
        moon(mu=-1)
    with raises(UsageError, "out-of-range", setting="ModelContrast(tau)", got=0):
        ModelContrast(tau=0)


def test_the_reference_stays_the_received_model_while_the_client_moves() -> None:
    """As above for two steps. At w = -0.1011452 the cosine with the received (1, 0) has a slope too; with it the second
    step ends at -0.1882210. Against the features of the moving model itself that slope would be 0."""
    algorithm = moon(mu=2.0, tau=0.5).with_optimizer(SGD(lr=0.1))
    _, _, simulator = play(algorithm, Angle(), line_federation(([1], [0])), work=LocalWork(steps=2))
    assignment = Assignment(round=2, rounds=2, client=0, shared={"w": torch.zeros(())}, buffers={})
    upload, _ = simulator.runner.train(assignment, {"model_contrast": {"w": torch.ones(())}})
    assert upload.change["w"].item() == pytest.approx(-0.1882210, abs=1e-6)
