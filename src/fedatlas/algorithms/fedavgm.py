"""FedAvgM. Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019 (arXiv:1909.06335).

client   as FedAvg
server   v <- beta v + sum_{k in C} p_k (w_k - w^t);   w^{t+1} = w^t + v
nesterov w^{t+1} = w^t + sum_{k in C} p_k (w_k - w^t) + beta v
"""

from dataclasses import dataclass
from typing import ClassVar

from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.tensor_math import add, zeros_like
from fedatlas.parts.types import Cohort, Roster, Tensors


@dataclass(frozen=True, kw_only=True)
class Momentum(ServerRule):
    """Carries a share of the last rounds' changes into this one."""

    name: ClassVar[str] = "momentum"
    beta: float = 0.9
    """How much of the last round's velocity stays; 1 forgets nothing."""
    nesterov: bool = False
    """Look ahead: apply the change and ``beta`` times the new velocity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta <= 1:
            raise UsageError(
                f"Momentum(beta) must be in [0, 1], got {self.beta}.",
                code="out-of-range",
                setting="Momentum(beta)",
                got=self.beta,
            )

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return zero velocity."""
        return zeros_like(shared)

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        """Return the velocity, or nesterov's look ahead, as the change to apply."""
        if self.beta == 0:
            return change, memory
        velocity = add(change, memory, self.beta)  # not dampened: the new change counts in full
        return (add(change, velocity, self.beta) if self.nesterov else velocity), velocity


@recipe(changes="server", paper="Hsu et al. 2019")
def fedavgm(beta: float = 0.9, nesterov: bool = False) -> Algorithm:
    """FedAvg whose server moves with momentum ``beta``."""
    return Algorithm(name="fedavgm", server=(Momentum(beta=beta, nesterov=nesterov),))
