"""Changes clipped by their norm. Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019
(arXiv:1911.07963), Section 5; here the bound may also follow the cohort.

M_k     = norm, or times * med{ ||w_j - w^t|| : j in C }
w^{t+1} = w^t + sum_{k in C} p_k (w_k - w^t) min(1, M / ||w_k - w^t||)
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.over_base import over
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import Combination, Gathered, norms, scaled
from fedatlas.parts.types import Cohort, Tensors


@dataclass(frozen=True, kw_only=True)
class Clipped(Combination):
    """Scales changes down that are longer than a bound; their directions stay."""

    name: ClassVar[str] = "clipped"
    times: float = 1.0
    """The bound, as a multiple of the median norm of the round's changes."""
    norm: float | None = None
    """The bound itself; None takes ``times``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting, value in {"times": self.times, "norm": self.norm}.items():
            if value is not None and not 0 < value < math.inf:
                raise UsageError(
                    f"Clipped({setting}) must be a positive number, got {value}.",
                    code="out-of-range",
                    setting=f"Clipped({setting})",
                    got=value,
                )

    def combine(self, gathered: Gathered, memory: Tensors, cohort: Cohort) -> tuple[Gathered, Tensors]:
        """Return the changes and the moves of buffers, none longer than its bound."""
        lengths = norms(gathered.changes)
        bound = self.times * _median(lengths) if self.norm is None else self.norm
        # Running statistics have another unit than parameters, so their bound is always the cohort's.
        moved = norms(gathered.moves)
        long = (lengths > bound).nonzero()[:, 0].tolist()
        clients = [cohort.uploads[place].client for place in long]
        return replace(
            gathered,
            changes=scaled(gathered.changes, _factors(lengths, bound)),
            moves=scaled(gathered.moves, _factors(moved, self.times * _median(moved))),
            remarks={**gathered.remarks, self.name: {"bound": bound, "clipped": clients}},
        ), memory


def _median(values: Tensor) -> float:
    return float(values.quantile(0.5))


def _factors(lengths: Tensor, bound: float) -> Tensor:
    """Return min(1, bound / length); a change of length 0 stays."""
    return torch.where(lengths > bound, bound / lengths.clamp(min=1e-300), torch.ones_like(lengths))


@recipe(changes="combination", over="base", paper="Sun et al. 2019")
def clipped(base: Algorithm | None = None, times: float = 1.0, norm: float | None = None) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) in which no change may be much longer than the others."""
    return over(base, "clipped").with_combination(Clipped(times=times, norm=norm))
