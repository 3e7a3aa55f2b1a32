"""FedProx. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

client loss = cross-entropy + (mu / 2) ||w - w^t||^2        (Eq. 2)
server      as FedAvg
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientContext
from fedatlas.parts.objective import Term


@dataclass(frozen=True, kw_only=True)
class Proximal(Term):
    """Holds a client near the model it received."""

    name: ClassVar[str] = "proximal"
    mu: float = 0.01
    """Weight of the pull towards the received model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise UsageError(
                f"Proximal(mu) must not be negative, got {self.mu}.",
                code="out-of-range",
                setting="Proximal(mu)",
                got=self.mu,
            )

    @property
    def regulariser_weight(self) -> float:
        """The weight ``mu``."""
        return self.mu

    def gradient(self, local: ClientContext, gradients: list[Tensor]) -> list[Tensor]:
        """Add ``mu (w - w^t)``, the gradient of the pull."""
        if self.mu == 0:
            return gradients
        moved = torch._foreach_sub(list(local.parameters.values()), list(local.start.values()))
        return list(torch._foreach_add(gradients, moved, alpha=self.mu))


@recipe(changes="objective", paper="Li et al. 2020")
def fedprox(mu: float = 0.01) -> Algorithm:
    """FedAvg whose clients are pulled back to the received model with weight ``mu``."""
    return Algorithm(name="fedprox", objective=(*fedavg().objective, Proximal(mu=mu)))
