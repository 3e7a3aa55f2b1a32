"""With two classes: which clients' labels are inverted.

delta_i = m_i1 - m_i0 is the way from one class to the other at client i. Where labels mean the same, these ways agree,
even if clients' inputs differ:

    g_ij = <delta_i, delta_j>,   var g_ij = delta_i' V_j delta_i + delta_j' V_i delta_j - tr V_i V_j,   z_ij = g_ij / sd

V_i is the covariance of delta_i; its estimate in the first two terms adds tr V_i V_j twice. The signs of the leading
eigenvector of z put the clients on two sides. The smaller side is inverted, but a client is named only if its way
against that of the others, with the signs of their sides, is an alarm. Two sides of the same size disagree; which of
them is wrong cannot be told.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
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


class Inversion(NamedTuple):
    """Which clients' labels are inverted."""

    inverted: dict[int, float]
    """By position, with z of its disagreement."""
    disagree: tuple[tuple[int, ...], tuple[int, ...]] | None
    """Two sides of the same size."""


def find_inverted(summary: Summary) -> Inversion:
    """Return the clients of a summary of two classes whose labels are inverted."""
    with repeatable(torch.device("cpu")):
        known = (summary.counts >= LEAST).all(1).nonzero().flatten()
        if summary.counts.shape[1] != 2 or len(known) < FEWEST:
            return Inversion({}, None)
        ways, noise = _ways(summary, known)
        product, variance = _products(ways, noise)
        z = (product / variance.sqrt()).fill_diagonal_(0.0)
        leading = torch.linalg.eigh(z).eigenvectors[:, -1]
        sides = torch.where(leading >= 0, 1.0, -1.0).double()
        sides = sides if float(sides.sum()) >= 0 else -sides
        against = _against(product, variance, sides)
        alarms = {j: -float(against[j]) for j in range(len(known)) if -against[j] > threshold(len(known), ALARMS)}
        lower = [j for j in range(len(known)) if sides[j] < 0 and j in alarms]
        if 2 * int((sides < 0).sum()) == len(known):
            one, other = (
                tuple(int(known[j]) for j in range(len(known)) if sides[j] == side) for side in (sides[0], -sides[0])
            )
            return Inversion({}, (one, other) if lower else None)
        return Inversion({int(known[j]): alarms[j] for j in lower}, None)


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
