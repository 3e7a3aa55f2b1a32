"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedatlas.parts.part import ServerPart
from fedatlas.parts.types import Cohort, Roster, Tensors


class Sampler(ServerPart):
    """Chooses the clients of a round. Subclasses are frozen dataclasses; their memory is explicit."""

    needs_equal_weights: ClassVar[bool] = False
    """Whether clients are drawn in proportion to what they count, so that each draw must count the same."""
    varies: ClassVar[bool] = False
    """Whether it draws about ``count`` clients, each by its own lot, and not exactly as many."""

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        """Return ``count`` client ids (one may come twice if the sampler draws so) and the new memory."""
        raise TypeError(f"{type(self).__name__} must define sample()")

    def observe(self, memory: Tensors, cohort: Cohort) -> Tensors:
        """Return the memory after a round's answers are in."""
        return memory


@dataclass(frozen=True, kw_only=True)
class Uniform(Sampler):
    """Every client is as likely as any other, without replacement."""

    name: ClassVar[str] = "uniform"

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        """Return ``count`` distinct clients."""
        return [candidates[i] for i in rng.choice(len(candidates), size=count, replace=False).tolist()], memory


@dataclass(frozen=True, kw_only=True)
class Poisson(Sampler):
    """Every client takes part with probability ``count`` / clients, whatever the others do; a round may have none."""

    name: ClassVar[str] = "poisson"
    varies: ClassVar[bool] = True

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        """Return the clients whose lot is below ``count`` / clients."""
        lots = rng.random(len(candidates))
        return [candidates[i] for i in np.flatnonzero(lots < count / len(candidates)).tolist()], memory
