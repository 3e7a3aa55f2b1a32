"""What a client is compared with: the others of its group, or the group that it is nearest to.

A client is judged by its own group without it if that has at least three others. If not, by the larger groups: the
nearest of them, where class k of the client may be any class of the group, so that a client with other names for its
classes is compared with those whose inputs it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedatlas.atlas.floor import LEAST, PRIOR, noise_floor
from fedatlas.atlas.label_shares import label_shares
from fedatlas.atlas.merge import Cells, cells_of, without
from fedatlas.atlas.summary import Summary, Whitening

ENOUGH, MANY = 3, 5
"""Others that a client's own group must have to judge it; with fewer than many, a larger group may be nearer."""
FEWEST = 2
"""Clients that any other group must have."""
UNEVEN = 100.0
"""Examples of the reference that a fourth moment counts against all clients' with; of few it says little."""
MOST_TRIED = 10
"""Groups, the largest, of which the nearest is looked for."""
MOST_EXPECTED = 1000.0
"""Examples that all clients' label shares are worth at most."""
FEWEST_CLASSES = 2
"""Common classes that a client and its reference must have."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """A client or a group: figures of each class, (classes,) or (classes, d)."""

    counts: Tensor
    means: Tensor
    variances: Tensor
    """v: the expected squared distance of the mean from the true one; inf for an empty class."""
    anisotropy: Tensor
    """kappa: 1 / the number of directions that this distance has."""
    inside: Tensor
    """The scatter towards other classes, summed over examples."""
    inside_squares: Tensor
    """The sum of the squares of the examples' parts of it."""
    cells: Tensor
    """How many cells of clients are summed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairing:
    """A client and what it is compared with."""

    client: int
    own: Side
    other: Side
    spread: Tensor
    """float64 (d,): the pooled variance of each whitened direction."""
    span: Tensor
    """float64 (d, s): the directions in which classes differ."""
    usual: Tensor
    """float64 (classes,): the expected scatter of an example of the reference towards other classes."""
    unevenness: Tensor
    """float64 (classes,): the variance of an example's scatter, by the square of ``usual``."""
    expected: Tensor
    """float64 (classes,): how many examples of each class all clients' shares are worth, as a guess of its own."""
    among: bool
    """Whether the reference is the client's own group."""

    @property
    def shared(self) -> Tensor:
        """The classes that both have enough examples of, int64."""
        return ((self.own.counts >= LEAST) & (self.other.counts >= LEAST)).nonzero().flatten()

    @property
    def seen(self) -> Tensor:
        """The classes that the client has any example of, and the reference enough, int64."""
        return ((self.own.counts > 0) & (self.other.counts >= LEAST)).nonzero().flatten()

    def excess(self, means: Tensor | None = None, kept: Tensor | None = None, classes: Tensor | None = None) -> Tensor:
        """Return |m_k - M_k|^2 less its noise, (shared,).

        Args:
            means: (classes, d), which stand for M where they are given.
            kept: (classes,), by how much these follow M, and so its noise.
            classes: which; by default those that are shared.
        """
        k = self.shared if classes is None else classes
        target = self.other.means if means is None else means
        followed = torch.ones(len(k)).double() if kept is None else kept[k].square()
        noise = self.own.variances[k] + followed * self.other.variances[k]
        return (self.own.means[k] - target[k]).square().sum(1) - noise

    @property
    def deviations(self) -> Tensor:
        """The standard deviation of each shared class's excess by noise, by sqrt(2)."""
        k = self.shared
        own, other = (side.anisotropy[k].sqrt() * side.variances[k] for side in (self.own, self.other))
        return own + other

    def z(self, excess: Tensor) -> float:
        """Return how many standard deviations of noise the sum of excesses is."""
        deviations = self.deviations
        return float(excess.sum() / (2 * deviations.square().sum()).sqrt()) if len(deviations) else 0.0

    def explained(self, after: Tensor) -> float:
        """Return the share of the shared classes' excess that is gone after a change, at most 1; 0 without excess.

        A class counts by how well it is known: of few examples the excess is mostly noise.
        """
        weights = self.deviations.clamp(min=1e-300).reciprocal()
        total = float((weights * self.excess()).sum())
        return min(1 - float((weights * after).sum()) / total, 1.0) if total > 0 else 0.0

    def z_between(self, means: Tensor, kept: Tensor | None = None, mixed: Tensor | None = None) -> float:
        """Return z of how far the shared classes are from other means in the directions in which classes differ.

        There are few of these, so it sees what is lost among all directions.

        Args:
            means: (classes, d), which stand for M.
            kept: (classes,), by how much these follow M, and so its noise.
            mixed: (shared,), how far else chance puts them, squared.
        """
        k, own, other = self.shared, self.own, self.other
        followed = torch.ones(len(k)).double() if kept is None else kept[k].square()
        wider = own.variances[k] * own.counts[k] / (other.variances[k] * other.counts[k])
        noise = self.usual[k] * (wider / own.counts[k] + followed / other.counts[k])
        noise = noise if mixed is None else noise + mixed
        excess = ((own.means[k] - means[k]) @ self.span).square().sum(1) - noise
        deviation = (2 * noise.square().sum() / max(self.span.shape[1], 1)).sqrt()
        return float(excess.sum() / deviation) if float(deviation) > 0 else 0.0

    def variance_along(self, classes: Tensor, directions: Tensor) -> Tensor:
        """Return the variance of <m_k - M_k, u_k> by noise, for classes k, (n,), and directions u, (n, d).

        By the pooled spread, wider where this class or this client scatters more.
        """
        own, other, k = self.own, self.other, classes
        typical = (self.spread @ self.span.square()).sum().clamp(min=1e-12)
        wider = own.variances[k] * own.counts[k] / (other.variances[k] * other.counts[k])
        along = (directions.square() @ self.spread) * self.usual[k] / typical
        return along * (wider / own.counts[k] + 1 / other.counts[k])

    def match(self) -> tuple[Tensor, Tensor]:
        """Return the class of the reference that each shared class fits best, and |m_k - M_l|^2 less its noise there.

        No two have the same; the client may lack what it is matched with, as a name that it uses for another class.
        """
        from scipy.optimize import linear_sum_assignment  # here, as it takes longer to load than all of this package

        k, known = self.shared, (self.other.counts >= LEAST).nonzero().flatten()
        off = (self.own.means[k][:, None] - self.other.means[known]).square().sum(2)
        table = off - self.own.variances[k][:, None] - self.other.variances[known]
        rows, columns = (torch.from_numpy(found) for found in linear_sum_assignment(table.numpy()))
        return known[columns], table[rows, columns]


def pairings(
    summary: Summary,
    groups: Tensor,
    apart: Collection[int] = (),
    enough: int = ENOUGH,
    only: Collection[int] | None = None,
) -> Iterator[Pairing]:
    """Yield every client with what it is compared with; one with which nothing can be compared is left out.

    Args:
        summary: of all clients.
        groups: the group of each.
        apart: clients, by position, that no other is compared with.
        enough: others that a client's own group must have to judge it.
        only: the clients that are wanted, by position; by default all.
    """
    kept = torch.tensor([i not in apart for i in range(len(summary))])
    cells = cells_of(summary, noise_floor(summary))
    count = int(groups.max()) + 1
    pooled = cells.take(kept).pool(groups[kept], count)
    sizes = torch.bincount(groups[kept], minlength=count).tolist()
    clients = _sums(summary)
    sums = {name: _by_group(table[kept], groups[kept], count) for name, table in clients.items()}
    overall = _side(pooled.pool(torch.zeros(count, dtype=torch.int64), 1), {k: v.sum(0) for k, v in sums.items()})
    sides = [_side(pooled.take(slice(g, g + 1)), {k: v[g] for k, v in sums.items()}) for g in range(count)]
    expected = expected_counts(summary.counts)
    largest = sorted(range(count), key=lambda g: -sizes[g])[:MOST_TRIED]
    for i in range(len(summary)) if only is None else sorted(only):
        home, mine = int(groups[i]), slice(i, i + 1)
        left = sizes[home] - int(kept[i])
        others = []
        if left >= enough and kept[i]:
            rest = without(pooled.take(slice(home, home + 1)), cells.take(mine))
            others = [(_side(rest, {name: table[home] - clients[name][i] for name, table in sums.items()}), True)]
        elif left >= enough:
            others = [(sides[home], True)]
        if left < max(enough, MANY):
            larger = [g for g in largest if g != home and sizes[g] >= FEWEST and sizes[g] > sizes[home]]
            others += [(sides[g], False) for g in larger]
        own = _side(cells.take(mine), {name: table[i] for name, table in clients.items()})
        found = [_pairing(i, own, other, overall, expected, summary.whitening, among=among) for other, among in others]
        found = [pairing for pairing in found if len(pairing.shared) >= FEWEST_CLASSES]
        if found:
            yield min(found, key=_nearness)


def expected_counts(counts: Tensor) -> Tensor:
    """Return (classes,): the parameters of a Dirichlet distribution that gives clients' label shares, of a table."""
    shares = counts.sum(0) / counts.sum()
    alpha = min(label_shares(counts).alpha(1), MOST_EXPECTED)
    return alpha * shares.double()


def _pairing(
    client: int, own: Side, other: Side, overall: Side, expected: Tensor, whitening: Whitening, *, among: bool
) -> Pairing:
    """Return a pairing; of scatter, all clients count as a few examples of the reference more."""

    def mean(side: Side) -> Tensor:
        return side.inside / (side.counts - side.cells).clamp(min=1)

    def uneven(side: Side) -> Tensor:
        many = side.counts.clamp(min=1)
        average = side.inside / many
        return (side.inside_squares / many / average.square().clamp(min=1e-12) - 1).clamp(min=0)

    freedom = (other.counts - other.cells).clamp(min=0)
    share, trust = freedom / (freedom + PRIOR), freedom / (freedom + UNEVEN)
    return Pairing(
        client=client,
        own=own,
        other=other,
        spread=whitening.spread,
        span=whitening.span,
        usual=share * mean(other) + (1 - share) * mean(overall),
        unevenness=trust * uneven(other) + (1 - trust) * uneven(overall),
        expected=expected,
        among=among,
    )


def _nearness(pairing: Pairing) -> float:
    """Return the mean squared distance of classes, by the best matching of their names."""
    return float(pairing.match()[1].mean())


def _sums(summary: Summary) -> dict[str, Tensor]:
    """Return the figures of every client that add up, (clients, classes) each."""
    return {
        "inside": summary.inside,
        "inside_squares": summary.inside_squares,
        "cells": (summary.counts > 0).double(),
    }


def _by_group(table: Tensor, groups: Tensor, count: int) -> Tensor:
    return table.new_zeros(count, table.shape[1]).index_add_(0, groups, table)


def _side(cells: Cells, sums: dict[str, Tensor]) -> Side:
    precisions = cells.precisions[:, 0]
    return Side(
        counts=cells.counts[:, 0],
        means=cells.means[:, 0],
        variances=torch.where(precisions > 0, 1 / precisions, torch.inf),
        anisotropy=cells.anisotropy[:, 0],
        **sums,
    )
