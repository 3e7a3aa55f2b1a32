"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedatlas.types import Cohort, Roster, Tensors

if TYPE_CHECKING:
    from fedatlas.client import ClientData


class Sampler:
    """Chooses the clients of a round. Subclasses are frozen dataclasses; what they remember is explicit."""

    name: ClassVar[str]
    discloses: ClassVar[tuple[str, ...]] = ()

    def introduce(self, data: ClientData) -> Tensors:
        """Return what the server must know of a client before the first round; sent once."""
        return {}

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return the memory before the first round."""
        return {}

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
        return [int(i) for i in rng.choice(np.asarray(candidates), size=count, replace=False)], memory
