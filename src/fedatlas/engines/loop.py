"""The plain engines: one client at a time, in this process or in each of several worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fedatlas.engines.engine import Engine, Result, Work
from fedatlas.engines.registry import engine
from fedatlas.engines.workers import Task, TaskRunner


@engine("loop", same_bits=True)
class LoopEngine(Engine):
    """One client after another; the reference for all others."""

    def __init__(self, tasks: TaskRunner) -> None:
        self._tasks = tasks

    @classmethod
    def preference(cls, tasks: TaskRunner) -> int:
        """Return 1: it can always train."""
        return 1

    def train(self, work: Sequence[Work]) -> Iterator[tuple[int, Result]]:
        """Start the clients, and return an iterator over their positions and results, as they come."""
        return self._tasks.start([Task("train", (one.assignment, one.memory), one.cost) for one in work])

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Why the runner's driver took steps as the plain loop does, and how often."""
        return self._tasks.refused


@engine("workers", same_bits=True)
class WorkersEngine(LoopEngine):
    """One process a core, one thread each, over shared examples and shared parameters."""

    @classmethod
    def preference(cls, tasks: TaskRunner) -> int:
        """Return 2 if there are several workers."""
        return 2 if tasks.workers > 1 else 0
