"""FedDisco. Ye et al., Federated Learning with Discrepancy-Aware Collaboration, ICML 2023.

d_k  = KL(P_k || uniform) / sum_{j in C} KL(P_j || uniform)       P_k: the client's label distribution
p'_k = ReLU(p_k - a d_k + b), normalised over C                   p_k: the base algorithm's weights, normalised
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError, expect
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientData
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.types import Cohort, Tensors
from fedatlas.parts.weighting import Weighting


@dataclass(frozen=True, kw_only=True)
class Discrepancy(Weighting):
    """Takes weight from clients whose labels are far from balanced."""

    name: ClassVar[str] = "discrepancy"
    needs_classes: ClassVar[bool] = True
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure("label_counts", "the number of training examples of each class, once", "introduction", ("classes",)),
    )
    a: float = 0.5
    """How much weight the discrepancy takes."""
    b: float = 0.1
    """Weight that every client gets first, so that clients with strongly skewed labels can still count."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.a < math.inf:
            raise UsageError(
                f"Discrepancy(a) must not be negative, got {self.a}.",
                code="out-of-range",
                setting="Discrepancy(a)",
                got=self.a,
            )
        if not math.isfinite(self.b):
            raise UsageError(
                f"Discrepancy(b) must be a number, got {self.b}.",
                code="out-of-range",
                setting="Discrepancy(b)",
                got=self.b,
            )

    def introduce(self, data: ClientData) -> Tensors:
        """Return the client's label counts."""
        return {"label_counts": data.label_counts}

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Return ``ReLU(p_k - a d_k + b)``, or the unchanged weights if all of these are zero."""
        if self.a == 0 and self.b == 0:
            return weights, memory
        introductions = [cohort.roster[upload.client].introduction[self.name] for upload in cohort.uploads]
        divergence = from_uniform(torch.stack([each["label_counts"] for each in introductions]).double().cpu())
        total = divergence.sum()
        share = divergence / total if total > 0 else divergence  # all balanced: no discrepancy
        adjusted = (weights / weights.sum() - self.a * share + self.b).relu()
        # The authors' code does not handle the case that all are zero; here the base's weights are used.
        return (adjusted if bool((adjusted > 0).any()) else weights), memory


def from_uniform(counts: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of each row of counts from the uniform distribution, in nats."""
    shares = counts / counts.sum(1, keepdim=True)
    # Rounding may leave a balanced row a hair below 0; a negative sum would turn the shares of the cohort around.
    return torch.xlogy(shares, shares * counts.shape[1]).sum(1).clamp(min=0)


@recipe(changes="weighting", over="base", paper="Ye et al. 2023")
def feddisco(base: Algorithm | None = None, a: float = 0.5, b: float = 0.1) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) in which clients with balanced labels count more."""
    base = base if base is not None else fedavg()
    expect(base, Algorithm, "feddisco(base) must be an algorithm", "Write feddisco(fedatlas.algorithms.fedavg()).")
    if any(link.name == Discrepancy.name for link in base.weighting):
        raise UsageError(
            f"feddisco over {base.name}: it already weighs by discrepancy; set a and b there.",
            code="base-unfit",
            base=base.name,
            part=Discrepancy.__name__,
        )
    deaf = [type(rule).__name__ for rule in base.server if rule.ignores_weights]
    if deaf:
        raise UsageError(
            f"feddisco over {base.name}: its server rule {deaf[0]} ignores weights, so weighing has no effect. "
            "Use another base.",
            code="base-unfit",
            base=base.name,
            part=deaf[0],
        )
    name = "feddisco" if base.name == "fedavg" else f"feddisco+{base.name}"
    if a != 0 or b != 0:
        # p_k = n_k / sum n over every base, as in the authors' code, also where the base counts all clients the same.
        base = base.counting_by_examples()
    return replace(base, name=name).with_weighting(Discrepancy(a=a, b=b))
