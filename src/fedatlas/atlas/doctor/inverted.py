"""With two classes: which clients' labels are inverted.

delta_i = m_i1 - m_i0 is the way from one class to the other at client i. Where labels mean the same, these ways agree,
even if clients' inputs differ:

    g_ij = <delta_i, delta_j>,   var g_ij = delta_i' V_j delta_i + delta_j' V_i delta_j - tr V_i V_j,   z_ij = g_ij / sd

V_i is the covariance of delta_i; its estimate in the first two terms adds tr V_i V_j twice. The signs of the leading
eigenvector of z put the clients on two sides. Of the smaller side those are alarms whose way is against that of the
others, with the signs of their sides. Two sides of the same size disagree; which of them is wrong cannot be told.

An alarm says that chance did not turn a way round; nature may have, where clients' effects differ. So a client is named
only if the others show that they do not differ that much. With the alarms turned round, unless they are so many that it
must be nature, each way on the mean of all other ways is a number a_i with noise v_i. The others' have the mean m and,
beyond noise, the variance t. A tenth of the others at most, the farthest, are left out, and t is shrunk to (0.2 m)^2
with the weight of 8 clients. The evidence is the log ratio of two Student densities: of a_i about -m and about m. One
client of C is thought to be inverted before anything is seen, so log C is what it must exceed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.atlas.doctor.suspect import threshold
from fedatlas.atlas.floor import LEAST, noise_floor
from fedatlas.atlas.summary import Summary
from fedatlas.seeds import repeatable

ALARMS = 0.5
"""The chance of an alarm if clients' ways had nothing to do with each other. Right labels have z far above 0, and give
alarms far less often."""
FEWEST = 3
"""Clients with both classes; of two none can be the smaller side."""
USUAL_SPREAD, WEIGHT = 0.2, 8.0
"""By how much of their mean clients' effects differ, before they are seen, and as how many clients that counts."""
MANY, KEPT, NEAR = 8, 0.9, 2.5
"""From so many others on, so large a share of them is kept, or all within so many standard deviations."""
STEPS = 30
FEW, FEW_SHARE = 2, 0.2
"""More alarms than either are no faults of single clients but the nature of all."""


class Inversion(NamedTuple):
    """Which clients' labels are inverted."""

    inverted: dict[int, float]
    """By position, with the evidence: the log of how much likelier its way is if its labels are inverted."""
    untold: dict[int, float]
    """The same of those whose way is against the others', but no farther than clients' effects may differ."""
    disagree: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Two sides of the same size."""


def find_inverted(summary: Summary) -> Inversion:
    """Return the clients of a summary of two classes whose labels are inverted."""
    with repeatable(torch.device("cpu")):
        known = (summary.counts >= LEAST).all(1).nonzero().flatten()
        if summary.counts.shape[1] != 2 or len(known) < FEWEST:
            return Inversion({}, {}, None)
        ways, noise = _ways(summary, known)
        product, variance = _products(ways, noise)
        z = (product / variance.sqrt()).fill_diagonal_(0.0)
        leading = torch.linalg.eigh(z).eigenvectors[:, -1]
        sides = torch.where(leading >= 0, 1.0, -1.0).double()
        sides = sides if float(sides.sum()) >= 0 else -sides
        against = _against(product, variance, sides)
        alarm = threshold(len(known), ALARMS)
        lower = [j for j in range(len(known)) if sides[j] < 0 and -float(against[j]) > alarm]
        if 2 * int((sides < 0).sum()) == len(known):
            one, other = (
                tuple(int(known[j]) for j in range(len(known)) if sides[j] == side) for side in (sides[0], -sides[0])
            )
            return Inversion({}, {}, (one, other) if lower else None)
        evidence = {int(known[j]): found for j, found in _evidence(ways.numpy(), noise.numpy(), lower).items()}
        enough = math.log(len(known))
        return Inversion(
            {i: found for i, found in evidence.items() if found > enough},
            {i: found for i, found in evidence.items() if 0 < found <= enough},
            None,
        )


def _ways(summary: Summary, known: Tensor) -> tuple[Tensor, Tensor]:
    """Return delta, (clients, d), and the diagonal of V: the pooled spread, scaled to each cell's noise."""
    floor = noise_floor(summary)
    means = summary.means[known].double()
    spread = summary.whitening.spread
    noise = floor.variances[known].sum(1)
    return means[:, 1] - means[:, 0], noise[:, None] * spread / spread.sum()


def _products(ways: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return g and its variance, (clients, clients)."""
    both = noise @ noise.T
    mixed = ways.square() @ noise.T
    # An estimate of the variance may not fall below that of ways that are all noise.
    return ways @ ways.T, (mixed + mixed.T - both).maximum(both).clamp(min=1e-12)


def _against(product: Tensor, variance: Tensor, sides: Tensor) -> Tensor:
    """Return (clients,): z of each client's way with the others', turned to the larger side."""
    others = 1 - torch.eye(len(sides)).double()
    # Each other counts by what it says: the inverse of its variance.
    weights = others / variance
    total = (weights * product * sides).sum(1)
    return total / (weights.square() * variance).sum(1).sqrt()


def _evidence(ways: NDArray[np.float64], noise: NDArray[np.float64], alarms: Sequence[int]) -> dict[int, float]:
    """Return of each alarm how much likelier its way is if its labels are inverted, as a logarithm."""
    if not alarms:
        return {}
    signs = np.ones(len(ways))
    if len(alarms) <= max(FEW, FEW_SHARE * len(ways)):
        signs[list(alarms)] = -1.0
    turned = ways * signs[:, None]
    noise = np.maximum(noise, 1e-12)
    usual = noise.mean(1)
    between = (np.square(turned - np.average(turned, 0, 1 / usual)) - usual[:, None]).mean()
    weights = (1 / (usual + max(float(between), 0.0)))[:, None]
    others = (weights * turned).sum(0) - weights * turned
    others /= np.maximum(np.linalg.norm(others, axis=1), 1e-12)[:, None]
    along, variances = (others * turned).sum(1), (np.square(others) * noise).sum(1)
    return {
        j: _log_ratio(signs[j] * along[j], variances[j], *_effect(np.delete(along, j), np.delete(variances, j)))
        for j in alarms
    }


def _effect(along: NDArray[np.float64], noise: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean of clients' effects, the variance of another client's about it, and the degrees of freedom."""
    mean, between, error = _moments(along, noise)
    if len(along) >= MANY:
        far = np.abs(along - mean) / np.sqrt(noise + between)
        kept = far <= max(float(np.sort(far)[math.ceil(KEPT * len(far)) - 1]), NEAR)
        mean, between, error = _moments(along[kept], noise[kept])
    seen = len(along) - 1
    shrunk = (seen * between + WEIGHT * (USUAL_SPREAD * mean) ** 2) / (seen + WEIGHT)
    return mean, shrunk + error, seen + WEIGHT


def _moments(along: NDArray[np.float64], noise: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean, the variance beyond noise, and the variance of the mean."""
    between = 0.0
    for _ in range(STEPS):
        weights = 1 / (noise + between)
        mean = float((weights * along).sum() / weights.sum())
        beyond = np.square(along - mean) - noise
        between = max(0.0, float((beyond * weights**2).sum() / (weights**2).sum()))
    return mean, between, 1 / float(weights.sum())


def _log_ratio(along: float, noise: float, mean: float, variance: float, freedom: float) -> float:
    """Return the log of the ratio of Student densities at ``along``: about -mean and about mean; 0 of no effect."""
    if mean <= 0:
        return 0.0
    far = [(along - centre) ** 2 / (variance + noise) / freedom for centre in (mean, -mean)]
    return float((freedom + 1) / 2 * (math.log1p(far[0]) - math.log1p(far[1])))
