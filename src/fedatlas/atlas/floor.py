"""The noise floor: how far apart chance puts the means of clients with the same data, and z, how much farther they are.

Cell (i, k), the class k of client i, has n examples, mean m and covariance A. If clients draw from the same P(x | y),
|m_ik - m_jk|^2 has mean v_ik + v_jk and about the variance 2 (sqrt(kappa_ik) v_ik + sqrt(kappa_jk) v_jk)^2, where

    v_ik = s_i t_k / n_ik             t_k: tr A of class k; s_i: how much wider than the others client i scatters
    kappa_ik = tr A^2 / (tr A)^2      1 / the number of directions that the scatter has

Over the classes that both clients have, z is the sum of |m_ik - m_jk|^2 less its mean, by its standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedatlas.atlas.summary import Summary
from fedatlas.errors import UsageError
from fedatlas.seeds import repeatable

LEAST = 3
"""Examples that a cell must have to be compared."""
PRIOR = 10.0
"""A client's own scatter counts against this many examples that scatter as everyone's do."""
MOST_COMPARED = 5000


@dataclass(frozen=True, eq=False)
class Floor:
    """The noise of every cell."""

    variances: Tensor
    """float64 (clients, classes): v, the expected squared distance of a cell's mean from the true one; inf if empty."""
    anisotropy: Tensor
    """float64 (clients, classes): kappa, in (0, 1]."""


def noise_floor(summary: Summary) -> Floor:
    """Return the noise of every cell of a summary."""
    counts = summary.counts.double()
    freedom = (counts - 1).clamp(min=0)
    by_class = _by_class(summary.scatter, freedom) * summary.whitening.inflation
    wider = (PRIOR + _ratio(summary.scatter * summary.whitening.inflation, by_class).sum(1)) / (PRIOR + freedom.sum(1))
    scale = wider[:, None] * by_class
    # Cells of three examples at least say something about their directions.
    weights = torch.where(summary.counts >= LEAST, freedom, torch.zeros_like(freedom))
    squares = summary.squares * summary.whitening.inflation**2
    kappa = _by_class(weights * squares, weights * scale.square())
    own = (PRIOR + (weights * _ratio(squares, kappa * scale.square())).sum(1)) / (PRIOR + weights.sum(1))
    return Floor(
        variances=torch.where(counts > 0, scale / counts, torch.inf),
        anisotropy=(own[:, None] * kappa).clamp(1 / summary.means.shape[2], 1.0),
    )


def _by_class(values: Tensor, weights: Tensor) -> Tensor:
    """Return (classes,): the sums of values over those of weights; the mean of all classes where one has no weight."""
    overall = values.sum() / weights.sum().clamp(min=1e-300)
    return torch.where(weights.sum(0) > 0, values.sum(0) / weights.sum(0), overall)


def _ratio(values: Tensor, by: Tensor) -> Tensor:
    return torch.where(by > 0, values / by, torch.zeros(()).double())


@dataclass(frozen=True, eq=False)
class Comparison:
    """How different every two clients are, in standard deviations of what chance alone would do."""

    names: tuple[str, ...]
    z: Tensor
    """float64 (clients, clients): about standard normal for clients with the same P(x | y); NaN without a common class.

    Single pairs reach 8 by chance among thousands, so a threshold for one pair finds nothing safely; ``Atlas.verdict``
    looks at all of them.
    """
    shared: Tensor
    """int64 (clients, clients): the classes that both have three examples of."""

    def describe(self) -> str:
        """Return the middle and the largest z in words."""
        upper = self.z[torch.triu(torch.ones_like(self.z, dtype=torch.bool), 1)]
        known = upper[upper.isfinite()]
        if not len(known):
            return f"{len(self.names)} clients, of which no two have a class in common"
        return f"{len(self.names)} clients: z of two is {known.median():.1f} in the middle, {known.max():.1f} at most"


def compare_clients(summary: Summary, names: tuple[str, ...]) -> Comparison:
    """Return z for every two clients of a summary."""
    if len(summary) > MOST_COMPARED:
        raise UsageError(
            f"a table of {len(summary)} x {len(summary)} clients is too large; at most {MOST_COMPARED} can be compared "
            "at once. Name some of them, or use atlas.verdict().",
            code="out-of-range",
            got=len(summary),
            most=MOST_COMPARED,
            what="clients",
        )
    with repeatable(torch.device("cpu")):
        floor = noise_floor(summary)
        present = summary.counts >= LEAST
        excess = torch.zeros(len(summary), len(summary), dtype=torch.float64)
        variance, shared = torch.zeros_like(excess), torch.zeros_like(excess, dtype=torch.int64)
        for k in range(summary.counts.shape[1]):
            rows = present[:, k].nonzero().flatten()
            means, noise = summary.means[rows, k].double(), floor.variances[rows, k]
            deviation = floor.anisotropy[rows, k].sqrt() * noise
            where = (rows[:, None], rows[None])
            excess[where] += squared_distances(means, means) - noise[:, None] - noise
            variance[where] += 2 * (deviation[:, None] + deviation).square()
            shared[where] += 1
        z = torch.where(shared > 0, excess / variance.sqrt(), torch.nan).fill_diagonal_(0.0)
    return Comparison(names, z, shared)


def squared_distances(one: Tensor, other: Tensor) -> Tensor:
    """Return (rows of one, rows of other): the squared distance of every two rows."""
    lengths = one.square().sum(1)[:, None] + other.square().sum(1)
    return (lengths - 2 * one @ other.T).clamp(min=0)
