"""Coordinate-wise median. Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates, ICML 2018 (arXiv:1803.01498), Definition 1 and Algorithm 1, option I.

w^{t+1}_j = w^t_j + med{ (w_k - w^t)_j : k in C }      for every coordinate j, each client counting once
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.over_base import over
from fedatlas.algorithms.registry import recipe
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import Combination, Gathered, left_in, stacked
from fedatlas.parts.types import Cohort, Tensors


@dataclass(frozen=True, kw_only=True)
class Median(Combination):
    """Takes the median of every coordinate, whatever the weights; of an even number the mean of the middle two."""

    name: ClassVar[str] = "median"
    ignores_weights: ClassVar[bool] = True
    ends: ClassVar[bool] = True

    def combine(self, gathered: Gathered, memory: Tensors, cohort: Cohort) -> tuple[Gathered, Tensors]:
        """Return one change and one move of the buffers."""
        found = left_in(gathered)
        return replace(
            gathered,
            changes=[median_of(found.changes)],
            moves=[median_of(found.moves)],
            weights=torch.ones(1, dtype=torch.float64),
        ), memory


def median_of(terms: Sequence[Tensors]) -> Tensors:
    """Return the median of several sets of tensors, coordinate by coordinate."""
    return {name: _middle(stacked(terms, name)) for name in terms[0]}


def _middle(values: Tensor) -> Tensor:
    ordered = values.sort(0).values
    low, high = (len(values) - 1) // 2, len(values) // 2
    # Halves first: the sum of two large numbers may overflow.
    return ordered[low] if low == high else ordered[low] / 2 + ordered[high] / 2


@recipe(changes="combination", over="base", paper="Yin et al. 2018")
def median(base: Algorithm | None = None) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) with the coordinate-wise median of the changes for their mean."""
    return over(base, "median").with_combination(Median())
