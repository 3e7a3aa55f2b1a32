"""The sum that grows while clients train has the bits of the sum that is made when all are in."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedatlas.algorithms import fedavg
from fedatlas.engines import Simulator
from fedatlas.errors import TrainingError
from fedatlas.parts import Tensors, Upload, weighted_sum
from fedatlas.testing import tiny_clients
from fedatlas.training.model import make_model
from fedatlas.training.rounds import play
from fedatlas.training.running_sum import Foreseen, RunningSum
from tiny import blob_federation, same_bits

WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
CLIENTS = (2, 5, 9)


def changes() -> dict[int, Tensors]:
    rng = torch.Generator().manual_seed(0)
    return {client: {name: torch.randn(7, generator=rng) for name in ("a", "b")} for client in CLIENTS}


def foresee() -> Foreseen:
    return Foreseen(dict.fromkeys(CLIENTS, 1), WEIGHTS, {"weighting/examples": {}})


def uploads(found: dict[int, Tensors]) -> list[Upload]:
    return [Upload(client=c, num_examples=1, num_steps=1, change=found[c], buffers={}) for c in CLIENTS]


def test_changes_that_come_in_any_order_add_up_to_the_same_bits() -> None:
    for order in ((2, 5, 9), (9, 5, 2), (5, 9, 2)):
        found, running = changes(), RunningSum(foresee)
        for client in order:
            assert running.total(uploads(found), WEIGHTS) is None
            running.add(client, found[client])
        mean = running.total(uploads(found), WEIGHTS)
        assert mean is not None
        assert same_bits(mean, weighted_sum([found[client] for client in CLIENTS], WEIGHTS))


def test_a_sum_of_other_answers_or_under_other_weights_is_not_taken() -> None:
    found, running = changes(), RunningSum(foresee)
    for client in CLIENTS:
        running.add(client, found[client])
    altered = {**found, 5: {name: tensor.clone() for name, tensor in found[5].items()}}
    assert running.total(uploads(altered), WEIGHTS) is None
    assert running.total(uploads(found)[:2], WEIGHTS[:2]) is None
    assert running.total(uploads(found), WEIGHTS.flip(0)) is None
    assert running.total(uploads(found), WEIGHTS) is not None


def test_foreseen_weights_count_for_the_answers_that_were_expected_alone() -> None:
    found, running = changes(), RunningSum(foresee)
    expected = uploads(found)
    assert running.weights(expected) is None  # nothing is in yet
    running.add(2, found[2])
    weights, memory = running.weights(expected) or (None, None)
    assert weights is WEIGHTS
    assert memory == {"weighting/examples": {}}
    assert running.weights(expected[:2]) is None
    assert running.weights([replace(expected[0], num_examples=2), *expected[1:]]) is None


def test_weights_that_cannot_be_told_are_left_for_later() -> None:
    def nothing() -> Foreseen:
        raise TrainingError(
            "weights must not all be zero", client="all", round=1, stage="weighting", code="bad-weights"
        )

    found, running = changes(), RunningSum(nothing)
    for client in CLIENTS:
        running.add(client, found[client])
    assert running.total(uploads(found), WEIGHTS) is None


def test_a_round_uses_the_sum_that_grew_while_clients_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, algorithm = blob_federation(num_clients=6), fedavg()
    sums: list[RunningSum] = []

    class Kept(RunningSum):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            sums.append(self)

    monkeypatch.setattr("fedatlas.training.pools.RunningSum", Kept)
    monkeypatch.setattr("fedatlas.training.pools.mean_change", None)  # the sum is not made again
    done: list[str] = []
    ends: list[Tensors] = []
    for workers in (1, 2):
        model = make_model("mlp", {}, federation, algorithm, 0)
        with Simulator(algorithm, model, federation, workers=workers) as simulator:
            (found,) = play(algorithm, simulator, rounds=1, while_training=lambda: done.append("records"))
        assert sums[-1].added == len(found.record.weights) == 6
        ends.append(found.state.shared)
    assert same_bits(ends[0], ends[1])
    assert done == ["records", "records"]
    monkeypatch.undo()
    with Simulator(algorithm, make_model("mlp", {}, federation, algorithm, 0), federation, workers=1) as simulator:
        monkeypatch.setattr(RunningSum, "total", lambda *_: None)
        (found,) = play(algorithm, simulator, rounds=1)
    assert same_bits(ends[0], found.state.shared)


def test_uploads_are_let_go_when_the_next_round_begins() -> None:
    algorithm = fedavg()
    rounds = play(algorithm, tiny_clients(algorithm), rounds=2)
    first = next(rounds)
    assert len(first.uploads) == 6
    next(rounds)
    assert first.uploads == []
