"""What an engine is, which there are, and which one trains.

An engine trains the clients of a round on this machine. It registers in its own file, with ``@engine("name")``; it says
itself whether it can train an algorithm and how well it suits, so that a new engine needs no other change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from fedatlas.client.runner import ClientRunner
from fedatlas.engines.registry import AUTO, ENGINES
from fedatlas.engines.workers import TaskRunner
from fedatlas.errors import UsageError, unknown_name
from fedatlas.parts.types import Assignment, Memory, Upload

Result = tuple[Upload, Memory]


class Work(NamedTuple):
    """One client's training that is to be done."""

    assignment: Assignment
    memory: Memory
    cost: float
    """Costly clients start first, so that none is left alone at the end."""


class Engine(Protocol):
    """Trains the clients of a round; ``tasks`` runs one client at a time, on its runner.

    An engine may set the runner's driver when it is made: worker processes start afterwards.
    """

    def __init__(self, tasks: TaskRunner) -> None: ...

    @classmethod
    def why_not(cls, tasks: TaskRunner) -> str | None:
        """Return why it cannot train these clients, as the end of a sentence that begins with its name, or None."""
        return None

    @classmethod
    def preference(cls, tasks: TaskRunner) -> int:
        """Return how well it suits; ``auto`` takes the highest, and never one of 0.

        An engine that rounds differently must decide by the model and the clients alone, never by a clock: the same
        run is the same on every machine of a kind.
        """
        ...

    def train(self, work: Sequence[Work]) -> Iterator[tuple[int, Result]]:
        """Start the clients, and return an iterator over their positions and results, as they come."""
        ...

    def prepare(self, round: int, clients: Sequence[int]) -> None:
        """Make the next round's minibatches ready, if that saves time."""
        return

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Why clients were left to a slower way, and how often."""
        return {}

    def close(self) -> None:
        """Release the engine's resources."""
        return


def choose_engine(name: str, tasks: TaskRunner) -> str:
    """Return the engine asked for, or for ``auto`` the one that suits best; raise an error if it cannot train."""
    if name == AUTO:
        return max(ENGINES, key=lambda one: ENGINES[one].preference(tasks))
    if name not in ENGINES:
        raise unknown_name("engine", name, (AUTO, *ENGINES))
    if reason := ENGINES[name].why_not(tasks):
        raise UsageError(f"engine {name!r} {reason}", code="engine-unfit", got=name)
    return name


def gives_same_bits(name: str) -> bool:
    """Return whether an engine gives the bits of the plain loop; one that is not known here is taken to."""
    return name not in ENGINES or bool(ENGINES.facts(name)["same_bits"])


def with_own_scores(
    runner: ClientRunner, work: Sequence[Work], results: Iterator[tuple[int, Result]]
) -> Iterator[tuple[int, Result]]:
    """Return results with the scores of clients' own models, where the assignments ask for them."""
    return _scored(runner, work, results) if any(one.assignment.test_own for one in work) else results


def _scored(
    runner: ClientRunner, work: Sequence[Work], results: Iterator[tuple[int, Result]]
) -> Iterator[tuple[int, Result]]:
    for i, (upload, memory) in list(results):  # a test needs the model on which clients train
        yield i, (runner.with_own_score(work[i].assignment, upload, memory), memory)
