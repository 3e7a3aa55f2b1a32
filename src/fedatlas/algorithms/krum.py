"""Krum. Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent, NeurIPS 2017, Section 4.

s(k)    = sum of ||V_k - V_j||^2 over the m - f - 2 changes V_j that are closest to V_k;   m = |C|, f attackers
w^{t+1} = w^t + V_k  with the least s(k)

Where clients also move B tensors of running statistics by R_1 .. R_B, the distance is of both, each in its own unit:
||V_k - V_j||^2 / med{ ||V_i|| : i in C }^2 + 1/B sum_b ||R_bk - R_bj||^2 / med{ ||R_bi|| : i in C }^2
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.over_base import over
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import Combination, Gathered, left_in, norms
from fedatlas.parts.types import Cohort, Tensors


@dataclass(frozen=True, kw_only=True)
class Krum(Combination):
    """Keeps the change that is closest to most others."""

    name: ClassVar[str] = "krum"
    ignores_weights: ClassVar[bool] = True
    several: ClassVar[bool] = False
    """Whether it keeps as many changes as there are clients without attackers."""
    attackers: float = 0.2
    """The share of a round's clients that may be attackers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.attackers < 0.5:
            raise UsageError(
                f"{type(self).__name__}(attackers) must be in [0, 0.5), got {self.attackers}.",
                code="out-of-range",
                setting=f"{type(self).__name__}(attackers)",
                got=self.attackers,
            )

    def combine(self, gathered: Gathered, memory: Tensors, cohort: Cohort) -> tuple[Gathered, Tensors]:
        """Return the same changes, where those that are not kept weigh nothing."""
        there = gathered.weights.nonzero()[:, 0]
        found = left_in(gathered)
        count = len(found.changes)
        # The paper asks for 2f + 2 < m. Of one or two changes none is closer to the others: their mean is taken.
        faulty = max(0, min(floor(self.attackers * count + 1e-9), (count - 3) // 2))
        keep = count if count < 3 else count - faulty if self.several else 1
        best = scores(found.changes, max(1, count - faulty - 2), found.moves).argsort(stable=True)[:keep]
        kept = there[best].sort().values
        weights = torch.zeros_like(gathered.weights)
        weights[kept] = 1 / keep
        clients = [cohort.uploads[place].client for place in kept.tolist()]
        return replace(gathered, weights=weights, remarks={**gathered.remarks, self.name: {"kept": clients}}), memory


def scores(changes: Sequence[Tensors], neighbours: int, moves: Sequence[Tensors] = ()) -> Tensor:
    """Return each client's sum of squared distances to its nearest ones, float64.

    Running statistics have other units than parameters. Where clients move them, each tensor is measured in units of
    its median move, and all of them together count as much as the parameters.
    """
    squares = _squares(changes)
    if moves and moves[0]:
        squares = squares / _unit(changes)
        for name in moves[0]:
            own = [{name: one[name]} for one in moves]
            squares += _squares(own) / _unit(own) / len(moves[0])
    squares.fill_diagonal_(torch.inf)
    return squares.sort(1).values[:, : min(neighbours, len(changes) - 1)].sum(1)


def _squares(terms: Sequence[Tensors]) -> Tensor:
    """Return the squared distance between every two of several sets of tensors, float64."""
    count = len(terms)
    squares = torch.zeros(count, count, dtype=torch.float64)
    for name in terms[0]:
        rows = torch.stack([one[name].flatten().double().cpu() for one in terms])
        # From differences, not from products: those of two large and near changes cancel.
        for i in range(count - 1):
            squares[i, i + 1 :] += (rows[i + 1 :] - rows[i]).square().sum(1)
    return squares + squares.T


def _unit(terms: Sequence[Tensors]) -> float:
    """Return the square of the median length; where most are 0, so little that any other is far away."""
    return max(float(norms(terms).nanquantile(0.5)), 1e-30) ** 2


@recipe(changes="combination", over="base", paper="Blanchard et al. 2017")
def krum(base: Algorithm | None = None, attackers: float = 0.2) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) that applies the one change that is closest to most others."""
    return over(base, "krum").with_combination(Krum(attackers=attackers))
