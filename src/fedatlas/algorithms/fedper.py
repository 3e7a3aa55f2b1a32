"""FedPer. Arivazhagan et al., Federated Learning with Personalization Layers, 2019.

client: w_k <- local steps on cross-entropy from (shared body w_B^t, its own head w_Hk)
server: w_B^{t+1} = sum_{k in C} (n_k / sum_C n) w_Bk          the heads never leave their clients
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedatlas.algorithms.registry import recipe
from fedatlas.models.head import head_parameters
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.split import Split


@dataclass(frozen=True, kw_only=True)
class KeepHead(Split):
    """Shares the body; the last layer, the module named ``head``, stays with its client."""

    name: ClassVar[str] = "keep_head"

    def personal_parameters(self, model: nn.Module) -> set[str]:
        """Return the names of the head's parameters."""
        return set(head_parameters(model))


@recipe(changes="split", paper="Arivazhagan et al. 2019")
def fedper() -> Algorithm:
    """One model for all but its last layer, which every client keeps and trains for itself."""
    return Algorithm(name="fedper", split=KeepHead())
