"""Steps that are recorded on a CPU and replayed give the bits of the plain loop, or are not replayed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from atlases import random_atlas
from fedatlas.algorithms import (
    ALGORITHMS,
    SharpnessAware,
    build_algorithm,
    client2vec,
    fedavg,
    fedpce,
    moon,
    standalone,
)
from fedatlas.client import ClientTraining, LocalContext, LocalWork
from fedatlas.data import Federation
from fedatlas.engines import cpu_replay as tapes
from fedatlas.engines.capture import UncapturableError
from fedatlas.engines.captured_step import Lane
from fedatlas.engines.cpu_replay import PATIENCE, TapeRecorder
from fedatlas.engines.simulator import Simulator
from fedatlas.errors import UsageError
from fedatlas.models import build_model
from fedatlas.parts import SGD, Adam, Algorithm, Batch, LocalOptimizer, Memory, Output, ServerState, Term
from fedatlas.training import play as play_rounds
from raising import raises
from tiny import Norms, blob_federation, same_bits
from typed_clients import image_federation

WITHOUT_FREEZING = sorted(name for name in standalone() if "model" not in ALGORITHMS.facts(name))


class Counting(TapeRecorder):
    """Records at second sight, however long a step takes, and counts."""

    def __init__(self) -> None:
        super().__init__(patience=0, most_seconds=math.inf)
        self.captures = self.replays = 0

    def worth(self, steps: int, seconds: float) -> bool:
        return steps > 0

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        replay = super().capture(function)
        self.captures += 1

        def counted() -> Tensor:
            self.replays += 1
            return replay()

        return counted


def _rounds(
    algorithm: Algorithm,
    recorder: TapeRecorder | None,
    network: Callable[[], nn.Module] = Norms,
    federation: Federation | None = None,
    precision: str = "float32",
) -> tuple[ServerState, dict[int, Memory], Simulator]:
    """Three rounds of two epochs, as they are or recorded."""
    federation = federation or blob_federation(num_clients=6, held_out=1)
    work = LocalWork(epochs=2, batch_size=8, precision=precision)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = algorithm.extend(network())
    with Simulator(algorithm, model, federation, work=work, workers=1, engine="loop") as simulator:
        if recorder is not None:
            simulator.runner.driver = Lane(simulator.runner.bench, recorder)
        for found in play_rounds(algorithm, simulator, rounds=3, cohort_size=4, seed=0):
            state = found.state
    return state, dict(simulator.memory), simulator


def _assert_same(algorithm: Algorithm, **options: object) -> Counting:
    plain, remembered, _ = _rounds(algorithm, None, **options)  # type: ignore[arg-type]
    recorder = Counting()
    taped, kept, simulator = _rounds(algorithm, recorder, **options)  # type: ignore[arg-type]
    assert simulator.fallbacks() == {}
    assert recorder.replays > 10
    assert same_bits(plain.shared, taped.shared)
    assert same_bits(plain.buffers, taped.buffers)
    assert remembered.keys() == kept.keys()
    for client in remembered:
        assert remembered[client].keys() == kept[client].keys()
        assert all(same_bits(remembered[client][part], kept[client][part]) for part in remembered[client])
    return recorder


@pytest.mark.parametrize("name", [name for name in WITHOUT_FREEZING if name not in ("harmofl", "fedpce")])
def test_every_algorithm_gives_the_bits_of_the_plain_loop(name: str) -> None:
    _assert_same(build_algorithm(name))


@pytest.mark.parametrize("name", ["fedavg", "harmofl", "moon", "scaffold"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_convolutions_with_running_statistics_too(name: str, precision: str) -> None:
    def network() -> nn.Module:
        return build_model("cnn", num_classes=2, input_shape=(3, 8, 8), seed=0, width=4, norm="batch")

    federation = image_federation()
    _assert_same(build_algorithm(name), network=network, federation=federation, precision=precision)


@pytest.mark.parametrize("personal", [False, True])
def test_an_atlas_in_the_objective_too(personal: bool) -> None:
    atlas = random_atlas(blob_federation(num_clients=6, held_out=1))
    _assert_same(client2vec(moon(), atlas, train=True, personal=personal))


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(lr=0.05, momentum=0.9, keep_state=True),
        SGD(lr=0.1, schedule="cosine", weight_decay=0.01),
    ],
)
def test_optimizers_too(optimizer: LocalOptimizer) -> None:
    _assert_same(fedavg().with_optimizer(optimizer))


@pytest.mark.parametrize(
    "base",
    [
        SGD(lr=0.05, momentum=0.9, schedule="cosine"),
        Adam(lr=0.01, weight_decay=0.1, schedule="cosine", keep_state=True),
        Adam(lr=0.01, weight_decay=0.1, schedule="cosine", decoupled=True),
    ],
)
@pytest.mark.parametrize("rho", [0.0, 0.05])
def test_rates_of_groups_that_change_by_round_need_no_new_recording(
    base: LocalOptimizer, rho: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rates are a tensor, as on a GPU: rounds of other rates take the recordings that those of one rate do."""
    begin = ClientTraining.__init__

    def begin_with_tensor(training: ClientTraining, *arguments: Any) -> None:
        begin(training, *arguments)
        training.lr = torch.tensor(training.lr)

    monkeypatch.setattr(ClientTraining, "__init__", begin_with_tensor)
    recordings = []
    for rule in (base, replace(base, schedule="constant")):
        algorithm = fedpce(embedding=4, hidden=8).with_optimizer(rule)
        algorithm = replace(algorithm, optimizer=SharpnessAware(base=algorithm.optimizer, rho=rho))
        recordings.append(_assert_same(algorithm).captures)
    assert recordings[0] == recordings[1]


@dataclass(frozen=True, kw_only=True)
class Looks(Term):
    """A term that decides by a value: a replay would always decide as the recorded step did."""

    name: ClassVar[str] = "looks"
    by: str = "item"

    def loss(self, local: LocalContext, batch: Batch, output: Output) -> Tensor:
        size = output.features.square().mean()
        if self.by == "item":
            return size if float(size.detach()) > 0.1 else 2 * size
        if self.by == "mask":
            return output.features[batch.labels == 0].square().sum()
        return size * torch.rand((), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "algorithm",
    [
        *(fedavg().with_terms(Looks(by=by)) for by in ("item", "mask", "generator")),
        fedavg().with_optimizer(Adam(lr=0.01, keep_state=True)),  # it reads its count of steps
    ],
)
def test_what_cannot_be_replayed_runs_as_it_is_and_says_so(algorithm: Algorithm) -> None:
    plain, _, _ = _rounds(algorithm, None)
    recorder = Counting()
    taped, _, simulator = _rounds(algorithm, recorder)
    assert same_bits(plain.shared, taped.shared)
    assert recorder.replays == 0
    assert len(simulator.fallbacks()) == 1


def test_workers_say_what_they_could_not_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TapeRecorder, "worth", lambda _, steps, seconds: steps > 0)
    algorithm, federation = fedavg().with_terms(Looks()), blob_federation(num_clients=6)
    with Simulator(algorithm, Norms(), federation, workers=2, engine="graph") as simulator:
        assert len(list(play_rounds(algorithm, simulator, rounds=2))) == 2
        reason = "what the step does depends on values: aten._local_scalar_dense.default"
        assert simulator.fallbacks() == {reason: 2}


def test_recording_leaves_values_and_random_numbers_where_they_were() -> None:
    weight, inputs = torch.ones(3, requires_grad=True), torch.arange(3.0)

    def step() -> Tensor:
        with torch.enable_grad():
            loss = (weight * inputs * torch.rand(3)).sum()
            (slope,) = torch.autograd.grad(loss, [weight])
        weight.data.sub_(slope)
        return loss.detach()

    torch.manual_seed(0)
    replay = TapeRecorder().capture(step)
    assert torch.equal(weight, torch.ones(3))
    loss = replay()
    torch.manual_seed(0)
    drawn = torch.rand(3)
    torch.testing.assert_close(weight, 1 - inputs * drawn)
    torch.testing.assert_close(loss, (inputs * drawn).sum())


def test_a_step_that_fails_while_it_is_recorded_leaves_values_too(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(2)
    monkeypatch.setattr(tapes, "MOST_CALLS", 3)
    with raises(UncapturableError, "uncapturable", most=3):
        TapeRecorder().capture(lambda: weight.add_(1).add_(1).add_(1).add_(1))
    assert torch.equal(weight, torch.ones(2))


def test_only_many_quick_steps_are_worth_it() -> None:
    recorder = TapeRecorder()
    assert not recorder.worth(PATIENCE - 1, 0.01)
    assert recorder.worth(PATIENCE, 0.01)
    assert not recorder.worth(PATIENCE, 10.0)
    value = torch.ones(())
    recorder.capture(lambda: value + 1)
    assert not recorder.worth(PATIENCE, 0.01)
    assert recorder.worth(2 * PATIENCE, 0.01)


def test_workers_record_and_give_the_bits_of_the_loop() -> None:
    federation, work = blob_federation(num_clients=6), LocalWork(epochs=8, batch_size=4)
    states = []
    for engine, workers in (("loop", 1), ("graph", 1), ("graph", 2)):
        torch.manual_seed(0)
        with Simulator(fedavg(), Norms(), federation, work=work, workers=workers, engine=engine) as simulator:  # type: ignore[arg-type]
            for found in play_rounds(fedavg(), simulator, rounds=3, cohort_size=6, seed=0):
                state = found.state
        states.append(state)
    assert same_bits(states[0].shared, states[1].shared)
    assert same_bits(states[0].shared, states[2].shared)


def test_a_compiled_network_is_not_recorded() -> None:
    work = LocalWork(compile=True)
    with raises(UsageError, "engine-unfit"):
        Simulator(fedavg(), Norms(), blob_federation(num_clients=2), work=work, engine="graph")
