"""AFL. Mohri, Sivek, Suresh: Agnostic Federated Learning, ICML 2019. With local training in place of one gradient.

F_k     = cross-entropy of w^t on client k's training data
w^{t+1} = sum_k lambda_k w_k;   then lambda <- Proj(lambda + lambda_lr F)      Proj: onto the simplex; lambda^1 uniform

If only C answered, with s = sum_C lambda: the weights are lambda_C / s, and
lambda_C <- s Proj(lambda_C / s + lambda_lr F_C); the others keep theirs.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import ReceivedLoss, received_losses
from fedatlas.parts.types import Cohort, Roster, Tensors
from fedatlas.parts.weighting import Equal, Weighting


@dataclass(frozen=True, kw_only=True)
class Agnostic(Weighting):
    """Moves weight, round by round, to the clients on which the model does worst."""

    name: ClassVar[str] = "agnostic"
    lambda_lr: float = 0.1
    """Step size of the clients' weights; 0 keeps them equal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lambda_lr < math.inf:
            raise UsageError(
                f"Agnostic(lambda_lr) must not be negative, got {self.lambda_lr}.",
                code="out-of-range",
                setting="Agnostic(lambda_lr)",
                got=self.lambda_lr,
            )

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return equal weights of all clients that may train."""
        may_train = torch.tensor([not client.held_out for client in roster], dtype=torch.float64)
        return {"lambda": may_train / may_train.sum()}

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Multiply the weights by lambda as it was, and move lambda for the next round."""
        if self.lambda_lr == 0:
            return weights, memory
        losses = received_losses(cohort, type(self).__name__)
        every = memory["lambda"].cpu()  # a resumed run has it on the device
        who = torch.tensor([upload.client for upload in cohort.uploads])
        mass = every[who].sum()
        if mass == 0:
            return weights, memory  # all weights are zero, so there is nothing to divide
        share = every[who] / mass
        moved = mass * onto_simplex(share + self.lambda_lr * losses)
        return weights * share, {"lambda": every.index_copy(0, who, moved)}


def onto_simplex(point: Tensor) -> Tensor:
    """Return the nearest point whose entries are not negative and sum to one."""
    falling = point.sort(descending=True).values
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(point) + 1, dtype=point.dtype)
    # rho = max{i: u_i + (1 - sum_{j <= i} u_j) / i > 0}; the condition holds up to rho and nowhere after.
    rho = int((falling > excess).sum())
    return (point - excess[rho - 1]).clamp(min=0)


@recipe(changes="weighting", paper="Mohri et al. 2019")
def afl(lambda_lr: float = 0.1) -> Algorithm:
    """Minimises the loss of the worst mixture of clients: weights climb where the loss is high."""
    return Algorithm(
        name="afl",
        objective=(*fedavg().objective, ReceivedLoss()),
        weighting=(Equal(), Agnostic(lambda_lr=lambda_lr)),
    )
