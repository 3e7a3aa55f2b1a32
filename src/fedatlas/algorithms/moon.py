"""MOON. Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021.

client loss = cross-entropy + mu * mean over the batch of
              -log( e^{cos(z, z_glob) / tau} / (e^{cos(z, z_glob) / tau} + e^{cos(z, z_prev) / tau}) )       (Eq. 3)
server      as FedAvg

z are the features under the current parameters, z_glob under the received ones, z_prev under those with which the
client ended its last participation.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientContext
from fedatlas.parts.objective import Term
from fedatlas.parts.types import Batch, Output, Tensors


@dataclass(frozen=True, kw_only=True)
class ModelContrast(Term):
    """Pulls a client's features to those of the received model and away from those of its last model."""

    name: ClassVar[str] = "model_contrast"
    needs_features: ClassVar[bool] = True
    mu: float = 1.0
    """Weight of the contrast."""
    tau: float = 0.5
    """Temperature: the smaller, the sharper the contrast."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mu >= 0:
            raise UsageError(
                f"ModelContrast(mu) must not be negative, got {self.mu}.",
                code="out-of-range",
                setting="ModelContrast(mu)",
                got=self.mu,
            )
        if not self.tau > 0:
            raise UsageError(
                f"ModelContrast(tau) must be above 0, got {self.tau}.",
                code="out-of-range",
                setting="ModelContrast(tau)",
                got=self.tau,
            )

    @property
    def regulariser_weight(self) -> float:
        """The weight ``mu``."""
        return self.mu

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor | None:
        """Return the weighted contrast of the batch."""
        if self.mu == 0:
            return None
        if self.name not in local.memory:
            # The previous model of a newcomer is the received one: both cosines are the same function of z, so the
            # contrast is log 2 and its gradient zero, without the two passes that would find so.
            return output.features.new_full((), self.mu * math.log(2))
        with torch.no_grad():
            # In the mode of training, as z itself: normalisation over the same batch makes the three comparable, and
            # the client need not remember running statistics. The authors' code puts both references in test mode.
            received = local.forward(local.start, batch.inputs).features
            previous = local.forward(local.memory[self.name], batch.inputs).features
        similarities = [F.cosine_similarity(output.features, z, dim=-1) for z in (received, previous)]
        # Eq. 3 is the cross-entropy of choosing the received model (class 0) over the previous one.
        logits = torch.stack(similarities, dim=1) / self.tau
        return self.mu * F.cross_entropy(logits, torch.zeros_like(logits[:, 0], dtype=torch.int64))

    def finish(self, local: ClientContext) -> Tensors:
        """Remember the parameters with which the client ends."""
        if self.mu > 0:
            local.memory[self.name] = {name: w.detach().clone() for name, w in local.parameters.items()}
        return {}


@recipe(changes="objective", paper="Li et al. 2021")
def moon(mu: float = 1.0, tau: float = 0.5) -> Algorithm:
    """FedAvg whose clients contrast their features with those of the received and of their own last model."""
    return Algorithm(name="moon", objective=(*fedavg().objective, ModelContrast(mu=mu, tau=tau)))
