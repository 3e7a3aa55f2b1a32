"""FedLC. Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022.

client loss = mean over the batch of -log( e^{f_y - tau n_y^{-1/4}} / sum_c e^{f_c - tau n_c^{-1/4}} )
server      as FedAvg

n_c is how many training examples of class c the client has; a class that it does not have is left out of the sum.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientContext
from fedatlas.parts.objective import Term, mean_cross_entropy
from fedatlas.parts.types import Batch, Output


@dataclass(frozen=True, kw_only=True)
class CalibratedCrossEntropy(Term):
    """Cross-entropy with a larger margin for the classes that the client has few examples of."""

    name: ClassVar[str] = "calibrated_cross_entropy"
    needs_classes: ClassVar[bool] = True
    weighs_examples: ClassVar[bool] = True
    tau: float = 1.0
    """Strength of the calibration; 0 is plain cross-entropy over all classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tau >= 0:
            raise UsageError(
                f"CalibratedCrossEntropy(tau) must not be negative, got {self.tau}.",
                code="out-of-range",
                setting="CalibratedCrossEntropy(tau)",
                got=self.tau,
            )

    def begin(self, local: ClientContext) -> None:
        """Compute the shift of each logit; the label counts stay on the client."""
        if self.tau > 0:
            # 0^{-1/4} is infinite: the logit of a class without examples becomes -inf, its share of the softmax and
            # its gradient exactly 0. The loss stays finite, as the label of an example is a class that is there.
            local.scratch[self.name] = {"shift": self.tau * local.data.label_counts.pow(-0.25)}

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor:
        """Return the cross-entropy of the shifted logits."""
        if self.tau == 0:
            return mean_cross_entropy(output.logits, batch)
        # The paper's text sums over c != y, which has no lower bound; here over all c.
        return mean_cross_entropy(output.logits - local.scratch[self.name]["shift"], batch)


@recipe(changes="objective", paper="Zhang et al. 2022")
def fedlc(tau: float = 1.0) -> Algorithm:
    """FedAvg whose clients calibrate their logits by how many examples of each class they have."""
    return Algorithm(name="fedlc", objective=(CalibratedCrossEntropy(tau=tau),))
