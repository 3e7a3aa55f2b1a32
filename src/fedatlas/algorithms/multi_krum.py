"""Multi-Krum. Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient
Descent, NeurIPS 2017, Section 6.

w^{t+1} = w^t + mean of the m - f changes with the least scores of Krum;   m = |C|, f attackers
"""

from dataclasses import dataclass
from typing import ClassVar

from fedatlas.algorithms.krum import Krum
from fedatlas.algorithms.over_base import over
from fedatlas.algorithms.registry import recipe
from fedatlas.parts.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Krum):
    """Keeps the changes that are closest to most others, as many as there are clients without attackers."""

    name: ClassVar[str] = "multi_krum"
    several: ClassVar[bool] = True


@recipe(changes="combination", over="base", paper="Blanchard et al. 2017")
def multi_krum(base: Algorithm | None = None, attackers: float = 0.2) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) that averages the changes that are closest to most others."""
    return over(base, "multi_krum").with_combination(MultiKrum(attackers=attackers))
