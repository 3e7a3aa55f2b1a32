"""TERM. Li, Beirami, Sanjabi, Smith: Tilted Empirical Risk Minimization, ICLR 2021. Tilted over clients.

F_k     = cross-entropy of w^t on client k's training data;   a_k = p_k exp(t F_k)
w^{t+1} = w^t - sum_{k in C} (a_k / sum_C a_j) (w^t - w_k)
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import ReceivedLoss, received_losses
from fedatlas.parts.types import Cohort, Tensors
from fedatlas.parts.weighting import Weighting


@dataclass(frozen=True, kw_only=True)
class Tilted(Weighting):
    """Tilts the weights towards clients with a high loss, or away from them."""

    name: ClassVar[str] = "tilted"
    t: float = 1.0
    """The tilt: 0 changes nothing, large nears the worst client, negative turns away from outliers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.t):
            raise UsageError(
                f"Tilted(t) must be a number, got {self.t}.", code="out-of-range", setting="Tilted(t)", got=self.t
            )

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Multiply the weights by ``exp(t F_k)``."""
        if self.t == 0:
            return weights, memory
        exponents = self.t * received_losses(cohort, type(self).__name__)
        return weights * (exponents - exponents.max()).exp(), memory  # relative to the largest: no overflow


@recipe(changes="weighting", paper="Li et al. 2021")
def term(t: float = 1.0) -> Algorithm:
    """FedAvg whose weights are tilted by ``exp(t loss)`` towards clients with a high loss."""
    base = fedavg()
    return Algorithm(name="term", objective=(*base.objective, ReceivedLoss()), weighting=(*base.weighting, Tilted(t=t)))
