"""q-FFL, by q-FedAvg. Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020.

F_k     = cross-entropy of w^t on client k's training data + 1e-10;   g_k = (w^t - w_k) / eta
h_k     = q F_k^{q-1} ||g_k||^2 + F_k^q / eta
w^{t+1} = w^t - sum_C F_k^q g_k / sum_C h_k
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import ReceivedLoss, received_losses
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.tensor_math import weighted_sum
from fedatlas.parts.types import Cohort, Tensors
from fedatlas.parts.weighting import Equal


@dataclass(frozen=True, kw_only=True)
class FairStep(ServerRule):
    """Steps more for clients with a high loss, and less far the steeper the raised losses are."""

    name: ClassVar[str] = "fair_step"
    ignores_weights: ClassVar[bool] = True
    reads_uploads: ClassVar[bool] = True
    q: float = 1.0
    """The power of the losses: 0 is the uniform mean, larger is fairer."""
    eta: float | None = None
    """Its inverse stands for the Lipschitz constant; None takes the clients' learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.q < math.inf:
            raise UsageError(
                f"FairStep(q) must not be negative, got {self.q}.",
                code="out-of-range",
                setting="FairStep(q)",
                got=self.q,
            )
        if self.eta is not None and not 0 < self.eta < math.inf:
            raise UsageError(
                f"FairStep(eta) must be a positive number, got {self.eta}.",
                code="out-of-range",
                setting="FairStep(eta)",
                got=self.eta,
            )

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        """Return the step of q-FedAvg in place of the weighted change."""
        changes = [upload.change for upload in cohort.uploads]
        draws = [cohort.draws.get(upload.client, 1) for upload in cohort.uploads]
        losses = received_losses(cohort, type(self).__name__) + 1e-10
        norms = torch.stack([torch.stack(torch._foreach_norm(list(one.values()))) for one in changes])
        squares = norms.double().square().sum(1).cpu()
        eta = self.eta if self.eta is not None else cohort.lr
        # Numerator and denominator times eta: eta h_k = F_k^q (1 + q ||w_k - w^t||^2 / (eta F_k)). Both over
        # max F^q, so that no power overflows; with q = 0 each coefficient is 1/m to the bit.
        powers = (losses / losses.max()).pow(self.q) * torch.tensor(draws, dtype=torch.float64)
        coefficients = powers / (powers * (1 + self.q * squares / (eta * losses))).sum()
        return weighted_sum(changes, coefficients), memory


@recipe(changes="server", paper="Li et al. 2020")
def qffl(q: float = 1.0, eta: float | None = None) -> Algorithm:
    """Minimises the losses raised to ``q + 1``: clients with a high loss move the model more."""
    return Algorithm(
        name="qffl",
        objective=(*fedavg().objective, ReceivedLoss()),
        weighting=(Equal(),),
        server=(FairStep(q=q, eta=eta),),
    )
