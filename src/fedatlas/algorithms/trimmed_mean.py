"""Coordinate-wise trimmed mean. Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates, ICML 2018 (arXiv:1803.01498), Definition 2 and Algorithm 1, option II.

b = floor(beta m), m = |C|
w^{t+1}_j = w^t_j + 1 / (m - 2b) sum of { (w_k - w^t)_j : k in C } without its b smallest and b largest, for every j
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.over_base import over
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import Combination, Gathered, left_in, stacked
from fedatlas.parts.types import Cohort, Tensors


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Combination):
    """Leaves out the smallest and the largest values of every coordinate, and takes the mean of the others."""

    name: ClassVar[str] = "trimmed_mean"
    ignores_weights: ClassVar[bool] = True
    ends: ClassVar[bool] = True
    beta: float = 0.2
    """The share of the clients that is left out at each end; of those it tolerates as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < 0.5:
            raise UsageError(
                f"TrimmedMean(beta) must be in [0, 0.5), got {self.beta}.",
                code="out-of-range",
                setting="TrimmedMean(beta)",
                got=self.beta,
            )

    def combine(self, gathered: Gathered, memory: Tensors, cohort: Cohort) -> tuple[Gathered, Tensors]:
        """Return one change and one move of the buffers."""
        found = left_in(gathered)
        return replace(
            gathered,
            changes=[self._trimmed(found.changes)],
            moves=[self._trimmed(found.moves)],
            weights=torch.ones(1, dtype=torch.float64),
        ), memory

    def _trimmed(self, terms: Sequence[Tensors]) -> Tensors:
        cut = math.floor(self.beta * len(terms) + 1e-9)  # 0.3 * 10 is 3, not 2.9999
        return {name: _mean(stacked(terms, name), cut) for name in terms[0]}


def _mean(values: Tensor, cut: int) -> Tensor:
    return values.sort(0).values[cut : len(values) - cut].mean(0)


@recipe(changes="combination", over="base", paper="Yin et al. 2018")
def trimmed_mean(base: Algorithm | None = None, beta: float = 0.2) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) with a trimmed mean of the changes for their mean."""
    return over(base, "trimmed_mean").with_combination(TrimmedMean(beta=beta))
