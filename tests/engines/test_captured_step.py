"""The graph engine's staging, with a recorder that runs a captured step again in place of replaying it.

What a real graph would bake in (a client's own numbers) is refused in the same way, so this finds on a CPU what would
go wrong on a GPU. Real graphs are compared with the plain loop where there is a GPU.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from atlases import random_atlas
from fedatlas.algorithms import ALGORITHMS, build_algorithm, client2vec, fedavg, moon, standalone
from fedatlas.client import ClientRunner, LocalContext, LocalWork
from fedatlas.engines.engine import Engine, Result, Work
from fedatlas.engines.graph import Lanes
from fedatlas.engines.simulator import Simulator
from fedatlas.engines.workers import TaskRunner
from fedatlas.parts import SGD, Adam, Algorithm, Batch, LocalOptimizer, Memory, Output, ServerState, Tensors, Term
from fedatlas.training import play as play_rounds
from tiny import Again, Norms, blob_federation, same_bits

ON_FEATURES = sorted(name for name in standalone() if name != "harmofl" and "model" not in ALGORITHMS.facts(name))


class Rerun(Again):
    """Counts the captures of all lanes together."""

    all_captures = 0

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        Rerun.all_captures += 1
        return super().capture(function)


class StagedEngine(Engine):
    """Trains on lanes that a CPU has by this file's recorder."""

    def __init__(self, runner: ClientRunner, most_lanes: int) -> None:
        self.lanes = Lanes(runner, Rerun, most_lanes)

    @classmethod
    def preference(cls, tasks: TaskRunner) -> int:
        return 0

    def train(self, work: Sequence[Work]) -> Iterator[tuple[int, Result]]:
        return self.lanes.train(work)

    @property
    def fallbacks(self) -> Mapping[str, int]:
        return self.lanes.fallbacks


class Plain(nn.Module):
    """A network that keeps nothing of a pass: no running statistics, no random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.body(inputs))
        return features, self.head(features)


def _rounds(
    algorithm: Algorithm, *, staged: bool, lanes: int = 3, network: Callable[[], nn.Module] = Norms
) -> tuple[ServerState, dict[int, Memory], Simulator]:
    """Three rounds of two epochs, in the plain loop or through stages."""
    federation, work = blob_federation(num_clients=6, held_out=1), LocalWork(epochs=2, batch_size=8)
    torch.manual_seed(0)
    model = algorithm.extend(network())
    with Simulator(algorithm, model, federation, work=work, workers=1, engine="loop") as simulator:
        if staged:
            simulator.trainer = StagedEngine(simulator.runner, lanes)
        for found in play_rounds(algorithm, simulator, rounds=3, cohort_size=4, seed=0):
            state = found.state
    return state, simulator.memory, simulator


def runner_shared(simulator: Simulator) -> tuple[Tensors, Tensors]:
    return simulator.runner.bench.shared()


@pytest.mark.parametrize("name", ON_FEATURES)
def test_staged_steps_give_the_bits_of_the_plain_loop(name: str) -> None:
    algorithm = build_algorithm(name)
    plain, remembered, _ = _rounds(algorithm, staged=False)
    before = Rerun.all_captures
    staged, kept, simulator = _rounds(algorithm, staged=True)
    assert Rerun.all_captures > before
    assert simulator.fallbacks() == {}
    assert isinstance(simulator.trainer, StagedEngine)
    assert len(simulator.trainer.lanes) == 3
    assert same_bits(plain.shared, staged.shared)
    assert same_bits(plain.buffers, staged.buffers)
    assert remembered.keys() == kept.keys()
    for client in remembered:
        assert remembered[client].keys() == kept[client].keys()
        assert all(same_bits(remembered[client][part], kept[client][part]) for part in remembered[client])


@pytest.mark.parametrize("personal", [False, True])
def test_an_atlas_is_used_in_staged_steps_to_the_same_bits(personal: bool) -> None:
    atlas = random_atlas(blob_federation(num_clients=6, held_out=1))
    algorithm = client2vec(moon(), atlas, train=True, personal=personal)
    plain, remembered, _ = _rounds(algorithm, staged=False)
    staged, kept, simulator = _rounds(algorithm, staged=True)
    assert simulator.fallbacks() == {}
    assert same_bits(plain.shared, staged.shared)
    assert all(same_bits(own, kept[c][part]) for c, memory in remembered.items() for part, own in memory.items())


@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9, keep_state=True), Adam(lr=0.01, keep_state=True)])
def test_an_optimizers_state_goes_through_the_stage_and_home_again(optimizer: LocalOptimizer) -> None:
    algorithm = fedavg().with_optimizer(optimizer)
    plain, remembered, _ = _rounds(algorithm, staged=False)
    staged, kept, _ = _rounds(algorithm, staged=True)
    assert same_bits(plain.shared, staged.shared)
    assert all(same_bits(remembered[c]["optimizer"], kept[c]["optimizer"]) for c in remembered)


def test_a_changing_rate_is_not_frozen_into_a_capture() -> None:
    algorithm = fedavg().with_optimizer(SGD(lr=0.1, schedule="cosine"))
    plain, _, _ = _rounds(algorithm, staged=False)
    assert same_bits(plain.shared, _rounds(algorithm, staged=True)[0].shared)


@dataclass(frozen=True, kw_only=True)
class ReadsItsClient(Term):
    """A term that a capture would freeze to its first client."""

    name: ClassVar[str] = "reads_its_client"

    def loss(self, local: LocalContext, batch: Batch, output: Output) -> Tensor:
        return output.features.square().mean() / local.data.num_examples


def test_a_term_that_reads_its_client_falls_back_to_the_loop_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = fedavg().with_terms(ReadsItsClient())
    plain, _, _ = _rounds(algorithm, staged=False, network=Plain)
    monkeypatch.setattr(Rerun, "capture", lambda _, function: function())  # a real capture reads it once
    staged, _, simulator = _rounds(algorithm, staged=True, network=Plain)
    assert same_bits(plain.shared, staged.shared)
    assert simulator.fallbacks() == {"a term reads local.data in its step": 1}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ON_FEATURES)
def test_real_graphs_give_the_bits_of_the_plain_loop(name: str) -> None:
    algorithm, federation = build_algorithm(name), blob_federation(num_clients=6, held_out=1)
    work = LocalWork(epochs=2, batch_size=8)
    states = []
    for engine in ("loop", "graph"):
        torch.manual_seed(0)
        network = algorithm.extend(Norms())
        network.get_submodule(next(p for p, m in network.named_modules() if isinstance(m, nn.Dropout))).p = 0.0
        with Simulator(algorithm, network, federation, work=work, device="cuda", engine=engine) as simulator:
            for found in play_rounds(algorithm, simulator, rounds=3, cohort_size=4, seed=0):
                state = found.state
        assert simulator.fallbacks() == {}
        states.append(state)
    assert same_bits(states[0].shared, states[1].shared)
