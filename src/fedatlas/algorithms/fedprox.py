"""FedProx. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

client loss = cross-entropy + (mu / 2) ||w - w^t||^2        (Eq. 2)
server      as FedAvg
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.client import Local
from fedatlas.errors import UsageError
from fedatlas.objectives import Batch, Output, Term


@dataclass(frozen=True, kw_only=True)
class Proximal(Term):
    """Holds a client near the model it received."""

    name: ClassVar[str] = "proximal"
    mu: float = 0.01
    """Weight of the pull towards the received model."""

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise UsageError(f"Proximal(mu) must not be negative, got {self.mu}.")

    def loss(self, local: Local, batch: Batch, output: Output) -> Tensor | None:
        """Return ``(mu / 2) ||w - w^t||^2`` over the parameters."""
        if self.mu == 0:
            return None
        squares = [(w - local.start[name]).square().sum() for name, w in local.parameters.items()]
        return self.mu / 2 * torch.stack(squares).sum()


def fedprox(mu: float = 0.01) -> Algorithm:
    """FedAvg whose clients are pulled back to the received model with weight ``mu``."""
    return Algorithm(name="fedprox", objective=(*fedavg().objective, Proximal(mu=mu)))
