import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedatlas.algorithms import Group, Grouped, build_algorithm, fedavg
from fedatlas.client import LocalWork
from fedatlas.engines import vmap as cohorts
from fedatlas.engines.simulator import Simulator
from fedatlas.engines.stacked_convolution import stacked_convolution
from fedatlas.parts import SGD, Adam, Algorithm, Cohort, LocalOptimizer, ServerState, Tensors, Uniform
from fedatlas.training import RoundRecord
from fedatlas.training import play as play_rounds
from tiny import blob_federation, same_bits

STACKED = ("fedavg", "fedavgm", "fedprox", "feddyn", "fedlc", "feddisco", "scaffold", "clustered", "qffl", "afl")
STACKED += ("term", "fedsam")
"""Algorithms whose clients of unequal sizes step together."""


class Smooth(nn.Module):
    """A network without corners, at which rounding could choose another side."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.norm(self.body(inputs)))
        return features, self.head(features)


def _rounds(
    algorithm: Algorithm, engine: str, network: Callable[[], nn.Module] = Smooth, work: LocalWork | None = None
) -> tuple[ServerState, list[RoundRecord], Simulator]:
    torch.manual_seed(0)
    model = algorithm.extend(network())
    federation, records = blob_federation(num_clients=9, held_out=1), []
    work = work or LocalWork(epochs=2, batch_size=8)
    with Simulator(algorithm, model, federation, work=work, workers=1, engine=engine) as simulator:
        for found in play_rounds(algorithm, simulator, rounds=3, cohort_size=6, seed=0):
            state = found.state
            record = found.record
            records.append(record)
    return state, records, simulator


def _agree(algorithm: Algorithm, **options: object) -> Simulator:
    plain, expected, loop = _rounds(algorithm, "loop", **options)  # type: ignore[arg-type]
    stacked, records, simulator = _rounds(algorithm, "vmap", **options)  # type: ignore[arg-type]
    for name, value in plain.shared.items():
        torch.testing.assert_close(stacked.shared[name], value, rtol=1e-4, atol=1e-6)
    for name, value in plain.buffers.items():
        torch.testing.assert_close(stacked.buffers[name], value, rtol=1e-4, atol=1e-6)
    for one, other in zip(records, expected, strict=True):
        assert one.losses.keys() == other.losses.keys()
        assert all(math.isclose(one.losses[k], other.losses[k], rel_tol=1e-4) for k in one.losses)
    assert simulator.memory.keys() == loop.memory.keys()
    for client, memory in loop.memory.items():
        assert memory.keys() == simulator.memory[client].keys()
        for part, tensors in memory.items():
            for name, value in tensors.items():
                torch.testing.assert_close(simulator.memory[client][part][name], value, rtol=1e-3, atol=1e-5)
    return simulator


@pytest.mark.parametrize("name", STACKED)
def test_clients_of_unequal_sizes_step_together_as_they_would_alone(name: str) -> None:
    assert _agree(build_algorithm(name)).fallbacks() == {}


@pytest.mark.parametrize(
    "optimizer",
    [SGD(lr=0.05, momentum=0.9, keep_state=True), Adam(lr=0.01, keep_state=True), SGD(lr=0.1, schedule="cosine")],
)
def test_optimizers_step_together(optimizer: LocalOptimizer) -> None:
    assert _agree(fedavg().with_optimizer(optimizer)).fallbacks() == {}


class Head(nn.Linear):
    """A layer of a type of its own."""


@pytest.mark.parametrize("base", [SGD(lr=0.05, momentum=0.9), Adam(lr=0.01, weight_decay=0.1, decoupled=True)])
def test_groups_of_other_rates_step_together_in_one_step_for_all_rounds(base: LocalOptimizer) -> None:
    def network() -> nn.Module:
        model = Smooth()
        model.head = Head(8, 3)
        return model

    steps = []
    for schedule in ("constant", "cosine"):
        grouped = Grouped(base=replace(base, schedule=schedule), groups=(Group(of=Head, lr=0.2),))
        simulator = _agree(fedavg().with_optimizer(grouped), network=network)
        assert simulator.fallbacks() == {}
        assert isinstance(simulator.trainer, cohorts.VmapEngine)
        steps.append(len(simulator.trainer.stacked._steps))
    assert steps[0] == steps[1]


class HastyHead(nn.Linear):
    """A layer that steps at five times the rate."""

    relative_rates: ClassVar[Mapping[str, float]] = {"weight": 5.0, "bias": 5.0}


class Hasty(Smooth):
    """The network with such a head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = HastyHead(8, 3)


@pytest.mark.parametrize("base", [SGD(), SGD(momentum=0.9), Adam(lr=1e-3, weight_decay=0.1, decoupled=True)])
def test_rates_that_a_module_asks_for_are_stacked_too(base: LocalOptimizer) -> None:
    algorithm = fedavg().with_optimizer(base)
    assert _agree(algorithm, network=Hasty).fallbacks() == {}
    plain, _, _ = _rounds(algorithm, "vmap")
    asked, _, _ = _rounds(algorithm, "vmap", network=Hasty)
    assert not same_bits(plain.shared, asked.shared)


def test_control_variates_of_stacked_clients_know_the_rates_that_a_module_asks_for() -> None:
    assert _agree(build_algorithm("scaffold"), network=Hasty).fallbacks() == {}


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize(("dtype", "channels"), [(torch.float64, 2), (torch.float32, 3), (torch.float32, 4)])
def test_stacked_convolutions_are_the_clients_own(padding: int, dtype: torch.dtype, channels: int) -> None:
    """With all gradients, for filters that clients share and for their own; copied by numbers and by words."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(3, 4, channels, 7, 6, generator=rng, dtype=dtype)
    filters = torch.randn(3, 5, channels, 3, 2, generator=rng, dtype=dtype)
    shifts = torch.randn(3, 5, generator=rng, dtype=dtype)

    def slopes(convolve: Callable[..., Tensor], inputs: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        def total(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return convolve(inputs, weight, bias, (1, 1), (padding, padding)).sin().sum()

        found: tuple[Tensor, ...] = grad(total, argnums=(0, 1, 2))(inputs, weight, bias)
        return found

    for in_dims in ((0, 0, 0), (0, None, None), (0, 0, None), (0, None, 0), (None, 0, 0)):
        every = (images, filters, shifts)
        given = [x[0] if dim is None else x for x, dim in zip(every, in_dims, strict=True)]
        stacked = vmap(lambda *x: slopes(stacked_convolution, *x), in_dims=in_dims)(*given)
        for i in range(3):
            one = [x if dim is None else x[i] for x, dim in zip(given, in_dims, strict=True)]
            for found, expected in zip(stacked, slopes(torch.conv2d, *one), strict=True):
                torch.testing.assert_close(found[i], expected, atol=1e-4, rtol=1e-4)


def test_small_last_batches_are_left_out_of_stacked_steps_too() -> None:
    assert _agree(fedavg(), work=LocalWork(epochs=2, batch_size=8, least_batch=5)).fallbacks() == {}


def test_a_fixed_number_of_steps_is_kept() -> None:
    assert _agree(fedavg(), work=LocalWork(steps=7, batch_size=8)).fallbacks() == {}


def test_running_statistics_move_as_they_would_alone() -> None:
    """A norm over the batch would see padding, so only clients of the same size step together."""
    simulator = _agree(fedavg(), network=lambda: Smooth(norm=True))
    assert simulator.fallbacks() == {}


def test_a_term_that_looks_at_features_needs_clients_of_the_same_size() -> None:
    assert _agree(build_algorithm("moon")).fallbacks() == {}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedmix", "MixedCrossEntropy prepares every batch"),
        ("fedper", "clients keep their own values in the model"),
    ],
)
def test_what_cannot_be_stacked_runs_otherwise_and_says_why(name: str, reason: str) -> None:
    assert _agree(build_algorithm(name)).fallbacks() == {reason: 1}


def test_a_term_that_differentiates_by_itself_runs_otherwise_and_says_why() -> None:
    reasons = _agree(build_algorithm("fediir")).fallbacks()
    assert list(reasons) == ["a term differentiates by itself, which vmap does not see"]


@dataclass(frozen=True, kw_only=True)
class Late(Uniform):
    """Draws as Uniform does, but says that it wants to see the answers before."""

    def observe(self, memory: Tensors, cohort: Cohort) -> Tensors:
        return memory


@pytest.mark.parametrize("norm", [False, True])
def test_minibatches_made_ready_in_the_round_before_change_no_bit(norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = cohorts.StackedTraining._passes

    def counted(engine: cohorts.StackedTraining, number: int, client: int) -> cohorts._Passes:
        made.append(number)
        return real(engine, number, client)

    monkeypatch.setattr(cohorts.StackedTraining, "_passes", counted)
    ends = []
    for sampler in (Uniform(), Late()):
        state, records, simulator = _rounds(replace(fedavg(), sampler=sampler), "vmap", lambda: Smooth(norm=norm))
        ends.append((state.shared, [record.cohort for record in records]))
        assert simulator.fallbacks() == {}
        assert made == [1] * 6 + [2] * 6 + [3] * 6
        made.clear()
    assert same_bits(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]
