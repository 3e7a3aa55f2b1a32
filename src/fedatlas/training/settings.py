"""How long a run goes and how often it is evaluated and saved; with what it trains besides, its settings."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedatlas.client.machine import physical_memory
from fedatlas.client.work import LocalWork
from fedatlas.errors import UsageError, expect_numbers
from fedatlas.seeds import Seeds
from fedatlas.training.draws import check_cohort_size

Model = str | nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long and how often: everything about a run that is neither data, model nor algorithm."""

    rounds: int = 20
    cohort: int | float | None = None
    """Clients a round: a number, a fraction of those that may train, or None for all."""
    evaluate_every: int = 1
    """Rounds between evaluations; the last round is always evaluated."""
    test_own: bool = False
    """In evaluated rounds, also test each client's own model after its training, before the server averages."""
    checkpoint_every: int | None = None
    """Rounds between checkpoints; None keeps pace with evaluation."""
    memory_limit: float | None = None
    """Gigabytes of what clients remember that are kept in RAM, the rest lies in the run's folder; None is a quarter of
    the machine's. It changes no bit."""

    def __post_init__(self) -> None:
        whole = ("rounds", "evaluate_every", "checkpoint_every")
        expect_numbers(self, whole, whole=True)
        expect_numbers(self, ("cohort", "memory_limit"))
        for title in whole:
            value = getattr(self, title)
            if value is not None and value < 1:
                raise UsageError(f"{title} must be at least 1, got {value}.")
        if self.memory_limit is not None and not self.memory_limit >= 0:
            raise UsageError(f"memory_limit must not be negative, got {self.memory_limit}.")

    def memory_bytes(self) -> int:
        """Return how many bytes of what clients remember may be held in RAM."""
        return physical_memory() // 4 if self.memory_limit is None else int(self.memory_limit * 1e9)

    def cohort_size(self, num_clients: int) -> int:
        """Return the number of clients a round."""
        if self.cohort is None:
            return num_clients
        if isinstance(self.cohort, float):
            if not 0 < self.cohort <= 1:
                raise UsageError(f"cohort as a fraction must be in (0, 1], got {self.cohort}.")
            return max(1, math.floor(self.cohort * num_clients + 0.5))
        check_cohort_size(self.cohort, num_clients)
        return self.cohort


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All that makes a run what it is, besides its data and its algorithm."""

    model: Model
    model_options: Mapping[str, Any]
    work: LocalWork
    plan: TrainingPlan
    seeds: Seeds
