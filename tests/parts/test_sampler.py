"""Who takes part, and that drawing a round before its time changes nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedatlas.algorithms import fedavg
from fedatlas.engines import Simulator
from fedatlas.errors import UsageError
from fedatlas.parts.sampler import Sampler, Uniform
from fedatlas.parts.types import Assignment, ClientInfo, Cohort, Roster, Tensors, Upload
from fedatlas.training import Draws, SamplingError, TrainingPlan, initial_state
from fedatlas.training import play as play_rounds
from raising import raises
from tiny import Norms, blob_federation, same_bits


@dataclass(frozen=True, kw_only=True)
class Counting(Sampler):
    """Draws by what it remembers, and notes for which memory it was asked."""

    name: ClassVar[str] = "counting"
    asked: list[int] = field(default_factory=list)
    fails_at: int = 99

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        return {"drawn": torch.zeros((), dtype=torch.int64)}

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        drawn = int(memory["drawn"])
        self.asked.append(drawn)
        if drawn == self.fails_at:
            raise ValueError("nobody left")
        shifted = [candidates[(drawn + i) % len(candidates)] for i in range(count)]
        return sorted(rng.permutation(shifted).tolist()), {"drawn": memory["drawn"] + 1}


@dataclass(frozen=True, kw_only=True)
class Watching(Counting):
    """Wants to see the answers before it draws again."""

    name: ClassVar[str] = "watching"

    def observe(self, memory: Tensors, cohort: Cohort) -> Tensors:
        return {"drawn": memory["drawn"] + 2}


def cohorts(sampler: Counting, rounds: int = 3) -> list[tuple[int, ...]]:
    """Play rounds with a sampler and return who took part in each."""
    algorithm = replace(fedavg(), sampler=sampler)
    with Simulator(algorithm, Norms(), blob_federation(num_clients=6), workers=1) as simulator:
        return [found.record.cohort for found in play_rounds(algorithm, simulator, rounds=rounds, cohort_size=2)]


def test_every_round_is_drawn_once_with_what_the_sampler_remembers() -> None:
    sampler = Counting()
    assert cohorts(sampler) == [(0, 1), (1, 2), (2, 3)]
    assert sampler.asked == [0, 1, 2]


def test_a_sampler_that_looks_at_answers_is_asked_after_them() -> None:
    sampler = Watching()
    assert cohorts(sampler) == [(0, 1), (3, 4), (0, 1)]
    assert sampler.asked == [0, 3, 6]


def test_a_round_drawn_for_another_memory_is_drawn_anew() -> None:
    sampler = Counting()
    draws = Draws(sampler, Simulator(fedavg(), Norms(), blob_federation(), workers=1).roster, 2, seed=0)
    draws.look_ahead(2, {"drawn": torch.tensor(1)})
    assert draws.draw(2, {"drawn": torch.tensor(3)})[0] == [3, 4]
    draws.look_ahead(2, memory := {"drawn": torch.tensor(1)})
    assert draws.draw(3, memory)[0] == [1, 2]
    assert sampler.asked == [1, 3, 1, 1]


def test_what_a_sampler_refuses_is_told_in_its_own_round() -> None:
    assert cohorts(Counting(fails_at=1), rounds=1) == [(0, 1)]
    sampler = Counting(fails_at=1)
    with pytest.raises(ValueError, match="nobody left"):
        cohorts(sampler, rounds=2)
    assert sampler.asked == [0, 1, 1]


def test_the_seed_decides_who_takes_part() -> None:
    roster = Simulator(fedavg(), Norms(), blob_federation(num_clients=12), workers=1).roster
    drawn = [[Draws(Uniform(), roster, 3, seed=seed).draw(n, {})[0] for n in (1, 2, 3)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


@dataclass(frozen=True, kw_only=True)
class Says(Sampler):
    """Draws what a test tells it."""

    name: ClassVar[str] = "says"
    drawn: Any

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        return self.drawn, memory


def drawn(answer: Any) -> list[int]:
    roster = [ClientInfo(id=i, name=f"c{i}", num_examples=4) for i in range(6)]
    return Draws(Says(drawn=answer), roster, 2, seed=0).draw(1, {})[0]


@pytest.mark.parametrize("answer", [list(np.arange(2)), np.arange(2), torch.arange(2), range(2), (0, np.uint8(1))])
def test_ids_of_numpy_and_torch_become_whole_numbers(answer: Any) -> None:
    assert [(type(client), client) for client in drawn(answer)] == [(int, 0), (int, 1)]


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        ([0, True], {"got": True}),
        (np.array([True, False]), {"got": True}),
        ([0, 1.0], {"got": 1.0}),
        (np.array([0.0, 1.0]), {"got": 0.0}),
        ("01", {"got": "0"}),
        (np.array([0.5]), {"got": 0.5}),
        (3, {}),
        ([0], {"got": 1, "wanted": 2}),
        ([0, 1, 2], {"got": 3, "wanted": 2}),
        ([0, 6], {"got": 6}),
    ],
)
def test_a_draw_of_something_else_than_clients_is_an_error(answer: Any, fields: dict[str, Any]) -> None:
    with raises(SamplingError, "bad-draw", sampler="Says", **fields):
        drawn(answer)


class Lost(Simulator):
    """Loses all answers."""

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        return iter(())


def test_a_round_that_nobody_answers_leaves_the_model_and_counts_as_drawn() -> None:
    algorithm = replace(fedavg(), sampler=Counting())
    with Lost(algorithm, Norms(), blob_federation(), workers=1) as simulator:
        state = initial_state(algorithm, simulator)
        after, record, *_ = next(play_rounds(algorithm, simulator, rounds=2, cohort_size=2))
    assert (after.round, record.cohort, record.weights) == (1, (0, 1), {})
    assert same_bits(after.shared, state.shared)
    assert after.memory["sampler/counting"]["drawn"].item() == 1


@pytest.mark.parametrize(
    ("cohort", "num_clients", "expected"),
    [(None, 7, 7), (3, 7, 3), (0.5, 7, 4), (0.3, 8, 2), (0.1, 25, 3), (0.1, 4, 1), (1.0, 7, 7)],
)
def test_a_fraction_of_the_clients_is_rounded_half_up_and_at_least_one(
    cohort: float | None, num_clients: int, expected: int
) -> None:
    assert TrainingPlan(cohort=cohort).cohort_size(num_clients) == expected


def test_a_cohort_that_no_federation_of_that_size_has_is_refused() -> None:
    with raises(UsageError, "cohort-size", got=1.5):
        TrainingPlan(cohort=1.5).cohort_size(10)
    with raises(UsageError, "cohort-size", got=8, most=7):
        TrainingPlan(cohort=8).cohort_size(7)
