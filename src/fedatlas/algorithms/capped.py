"""A cap on how much one client counts, so that a client that lies about its size gains little.

p'_k = min(p_k, times * med{ p_j : j in C }), normalised over C        p_k: the base algorithm's weights
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedatlas.algorithms.over_base import over
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.types import Cohort, Tensors
from fedatlas.parts.weighting import Weighting


@dataclass(frozen=True, kw_only=True)
class Cap(Weighting):
    """Lets no client count more than a multiple of the median client of its round."""

    name: ClassVar[str] = "cap"
    foreseeable: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    times: float = 2.0
    """The multiple."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.times < math.inf:
            raise UsageError(
                f"Cap(times) must be 1 or more, got {self.times}.",
                code="out-of-range",
                setting="Cap(times)",
                got=self.times,
            )

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Return the weights, none above the cap; where the median is 0, as they are."""
        cap = self.times * float(weights.quantile(0.5))
        return (weights.clamp(max=cap) if cap > 0 else weights), memory


@recipe(changes="weighting", over="base", paper="fedatlas")
def capped(base: Algorithm | None = None, times: float = 2.0) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) in which no client counts much more than the median one."""
    return over(base, "capped").with_weighting(Cap(times=times))
