"""Groups of clients that noise cannot explain: clients are merged while the evidence does not speak against it.

Two groups g and h are compared on each class k that both have. Their means are a squared distance q apart, of which
noise explains a = v_gk + v_hk. A spike (the same P(x | y)) is weighed against a slab (b, as different as two classes):

    lbf_k = nu_k / 2 [ log(1 + b / a) - (q / a) b / (a + b) ]        with q at most a + b
    S_gh  = sum over k of -log(0.7 + 0.3 exp(-lbf_k))

So a class on which they agree counts at most 0.36, and one on which they do not counts without bound. The pair with
the largest S is merged, its means are pooled by their precision, and its row is computed again, until the largest S is
below -3: odds of 20 to 1 against every merge. Two groups without a common class have S = -3 and are merged last. Then
clients move to the group that they fit best, until none does.

nu_k is the number of directions that the noise of the two cells has, by the floor's kappa, checked on halves of cells,
and halved: a few examples of one style move a mean farther than a chi-square of nu_k directions allows. The order of
the clients does not matter: they are merged in the order of their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.floor import LEAST, Floor, noise_floor
from fedatlas.atlas.summary import Summary
from fedatlas.seeds import numpy_generator, repeatable

STOP = -3.0
SPIKE = 0.7
"""The chance beforehand that two clients agree on a class."""
MOST_MERGED = 1000
"""Clients that are merged at once, as a table of all their pairs; of more, a sample is, and the others are placed."""
_BLOCK = 2_000_000
"""Numbers in a table of classes and pairs that is worked on at once."""
CAUTION = 0.5
"""Of clean federations of MNIST, 60 images a client, all of nu_k splits 2 of 10, and half of it none."""
MOST_PASSES = 10
"""Of moving clients between groups."""
_CELLS = 10.0
"""Cells' worth of trust in the floor before any halves are seen."""


class Cells(NamedTuple):
    """The classes of some groups: classes first, as products of many small matrices want it."""

    means: Tensor
    """float64 (classes, groups, d)."""
    precisions: Tensor
    """float64 (classes, groups): 1 / v, 0 for an empty cell."""
    counts: Tensor
    """int64 (classes, groups)."""
    anisotropy: Tensor
    """float64 (classes, groups): kappa, 1 / the number of directions that the noise of the cell's mean has."""

    def take(self, groups: Tensor | slice) -> Cells:
        """Return some of the groups."""
        return Cells(*(own[:, groups] for own in self))

    def pool(self, labels: Tensor, count: int) -> Cells:
        """Return ``count`` groups of these: means by precision, and sums of the rest."""
        weighted = (self.means * self.precisions[:, :, None], self.anisotropy * self.precisions)
        sums, anisotropy, precisions, counts = (
            own.new_zeros(own.shape[0], count, *own.shape[2:]).index_add_(1, labels, own)
            for own in (*weighted, self.precisions, self.counts)
        )
        variances = torch.where(precisions > 0, 1 / precisions, 0.0)
        return Cells(variances[:, :, None] * sums, precisions, counts, variances * anisotropy)


class Evidence(NamedTuple):
    """What a distance between two groups says."""

    trust: float
    """nu_k as a multiple of the directions by the floor's kappa."""
    slab: float
    """b."""


def cells_of(summary: Summary, floor: Floor) -> Cells:
    """Return every client as a group."""
    return Cells(
        summary.means.double().transpose(0, 1).contiguous(),
        (1 / floor.variances).T.contiguous(),
        summary.counts.T.contiguous(),
        floor.anisotropy.T.contiguous(),
    )


def weigh_evidence(summary: Summary, floor: Floor) -> Evidence:
    """Return how much a distance says: by the halves of cells, and by the distances between classes of one client."""
    return Evidence(CAUTION * _halves_ratio(summary, floor), 2 * class_distance(summary, floor))


def _halves_ratio(summary: Summary, floor: Floor) -> float:
    """Return the variance that the floor expects of Q = |m' - m''|^2 / (v' + v'') by the one found, at most 1.

    m' and m'' are the means of a cell's halves; cells of at least six examples are looked at. Their noise is not
    inflated, as the whitening was fitted to these examples.
    """
    counts = summary.counts
    chosen = counts >= 2 * LEAST
    smaller = (counts // 2)[chosen].double()
    larger = counts[chosen] - smaller
    scale = (floor.variances * counts)[chosen] / summary.whitening.inflation
    found = (summary.halves[chosen] / (scale * (1 / smaller + 1 / larger)) - 1).square()
    expected = 2 * floor.anisotropy[chosen]
    usual = 2 * float(floor.anisotropy.mean())
    ratio = (_CELLS * usual + float(expected.sum())) / (_CELLS * usual + float(found.sum()))
    return min(ratio, 1.0)


def class_distance(summary: Summary, floor: Floor) -> float:
    """Return B, the mean squared distance between two classes of one client, without noise.

    Without two classes it is the scatter of a client's examples.
    """
    total, pairs = 0.0, 0
    known = (summary.counts >= LEAST).any(0).nonzero()[:, 0].tolist()  # of very many classes, few may have examples
    for i, k in enumerate(known):
        for other in known[i + 1 :]:
            both = (summary.counts[:, k] >= LEAST) & (summary.counts[:, other] >= LEAST)
            off = (summary.means[both, k].double() - summary.means[both, other].double()).square().sum(1)
            total += float((off - floor.variances[both, k] - floor.variances[both, other]).sum())
            pairs += int(both.sum())
    scatter = float(summary.scatter.sum()) / max(int((summary.counts - 1).clamp(min=0).sum()), 1)
    return max(total / pairs, 1e-3 * scatter) if pairs else scatter


def scores(one: Cells, other: Cells, evidence: Evidence) -> Tensor:
    """Return S, float64 (groups of one, groups of other)."""
    block = max(1, _BLOCK // max(1, other.counts.numel()))
    rows = range(0, one.counts.shape[1], block)
    return torch.cat([_scores(one.take(slice(start, start + block)), other, evidence) for start in rows])


def _scores(one: Cells, other: Cells, evidence: Evidence) -> Tensor:
    lengths = one.means.square().sum(2)[:, :, None] + other.means.square().sum(2)[:, None]
    distances = (lengths - 2 * one.means @ other.means.transpose(1, 2)).clamp_(min=0)
    rows, columns = (
        Cells(own.means, own.precisions.unsqueeze(axis), own.counts.unsqueeze(axis), own.anisotropy.unsqueeze(axis))
        for own, axis in ((one, 2), (other, 1))
    )
    return _total(distances, rows, columns, evidence)


def own_scores(one: Cells, other: Cells, evidence: Evidence) -> Tensor:
    """Return (groups,): S of each group of one with that of the other at the same position."""
    return _total((one.means - other.means).square().sum(2), one, other, evidence)


def _total(distances: Tensor, one: Cells, other: Cells, evidence: Evidence) -> Tensor:
    """Return S from squared distances, classes first; precisions, counts and anisotropies are of the same shape."""
    trust, b = evidence
    noise = 1 / one.precisions + 1 / other.precisions
    deviation = one.anisotropy.sqrt() / one.precisions + other.anisotropy.sqrt() / other.precisions
    # Empty cells have infinite noise; they are left out below.
    directions = trust * (noise / deviation).square().nan_to_num(1.0)
    weights = agreement(bayes_factors(distances, noise, directions, b))
    both = (one.counts >= LEAST) & (other.counts >= LEAST)
    return torch.where(both.any(0), torch.where(both, weights, 0.0).sum(0), STOP)


def bayes_factors(distances: Tensor, noise: Tensor, directions: Tensor, slab: float) -> Tensor:
    """Return lbf, the log Bayes factor of spike against slab, given q, a, nu and b."""
    # Means farther apart than the slab expects are no more likely under it: a few odd examples, not another class.
    apart = torch.minimum(distances, noise + slab)
    return directions / 2 * (torch.log1p(slab / noise) - apart / noise * (slab / (noise + slab)))


def agreement(factors: Tensor) -> Tensor:
    """Return the part of S that each lbf gives: -log(0.7 + 0.3 exp(-lbf))."""
    return -torch.logaddexp(torch.tensor(math.log(SPIKE)).double(), math.log(1 - SPIKE) - factors)


def merge(cells: Cells, evidence: Evidence) -> Tensor:
    """Return (groups,) int64: which of the given groups belong together, by the position of one of them."""
    labels, alive = torch.arange(cells.counts.shape[1]), torch.arange(cells.counts.shape[1])
    table = scores(cells, cells, evidence).fill_diagonal_(-torch.inf)
    cells = Cells(*(own.clone() for own in cells))
    count = len(alive)
    while count > 1:
        first, second = sorted(divmod(int(table.argmax()), len(table)))
        if float(table[first, second]) < STOP:
            break
        labels[labels == alive[second]] = alive[first].item()
        pooled = cells.take(torch.tensor([first, second])).pool(torch.zeros(2, dtype=torch.int64), 1)
        for own, new in zip(cells, pooled, strict=True):
            own[:, first] = new[:, 0]
        row = scores(cells.take(slice(first, first + 1)), cells, evidence)[0]
        row[first] = -torch.inf
        row[table[first].isneginf()] = -torch.inf  # what was merged into others before
        table[first], table[:, first] = row, row
        table[second], table[:, second] = -torch.inf, -torch.inf
        count -= 1
        if 2 * count <= len(alive):  # what is left is searched faster alone
            kept = (labels[alive] == alive).nonzero().flatten()
            cells, alive, table = cells.take(kept), alive[kept], table[kept][:, kept]
    return labels


def refine(cells: Cells, labels: Tensor, evidence: Evidence) -> Tensor:
    """Return (clients,) int64: the groups after every client moved to the group that it fits best without itself.

    What was merged early, on few common classes, may fit elsewhere once groups are known. Groups that lose what kept
    them apart are merged.
    """
    labels = numbered(labels)
    for _ in range(MOST_PASSES):
        pooled = cells.pool(labels, int(labels.max()) + 1)
        parts = torch.arange(len(labels)).split(MOST_MERGED)
        moved = numbered(torch.cat([_best(cells.take(part), labels[part], pooled, evidence) for part in parts]))
        merged = numbered(merge(cells.pool(moved, int(moved.max()) + 1), evidence)[moved])
        if torch.equal(merged, labels):
            break
        labels = merged
    return labels


def _best(members: Cells, labels: Tensor, pooled: Cells, evidence: Evidence) -> Tensor:
    """Return the group that each member fits best, and its own where no other is better."""
    table = scores(members, pooled, evidence)
    own = own_scores(members, without(pooled.take(labels), members), evidence)
    table[torch.arange(len(labels)), labels] = own
    best = table.max(1)
    return torch.where(best.values > own, best.indices, labels)


def without(groups: Cells, members: Cells) -> Cells:
    """Return each group without its member at the same position."""
    counts = groups.counts - members.counts
    precisions = torch.where(counts > 0, groups.precisions - members.precisions, 0.0)
    variances = torch.where(precisions > 0, 1 / precisions, 0.0)
    whole, own = groups.precisions * variances, members.precisions * variances
    return Cells(
        whole[:, :, None] * groups.means - own[:, :, None] * members.means,
        precisions,
        counts,
        (whole * groups.anisotropy - own * members.anisotropy).clamp(min=0),
    )


def find_groups(summary: Summary, names: Sequence[str], *, seed: int = 0) -> Tensor:
    """Return (clients,) int64: the group of each client, numbered in the order of the groups' first clients.

    Of more than ``MOST_MERGED`` clients a sample is merged, drawn with the seed. Each other client joins the group with
    the largest S; those that no group takes are merged with the groups, as many at a time.
    """
    with repeatable(torch.device("cpu")):
        floor = noise_floor(summary)
        evidence = weigh_evidence(summary, floor)
        order = torch.tensor(sorted(range(len(names)), key=names.__getitem__))
        cells = cells_of(summary, floor).take(order)
        found = torch.empty(len(names), dtype=torch.int64)
        found[order] = refine(cells, merge_many(cells, evidence, seed), evidence)
        return numbered(found)


def merge_many(cells: Cells, evidence: Evidence, seed: int) -> Tensor:
    """Return (clients,) int64 as ``merge`` does, without a table of all pairs of more than ``MOST_MERGED`` clients."""
    count = cells.counts.shape[1]
    if count <= MOST_MERGED:
        return merge(cells, evidence)
    labels = torch.full((count,), -1)
    waiting = torch.from_numpy(numpy_generator(seed, "verdict").permutation(count))
    while len(waiting):
        placed = labels >= 0
        known = int(labels.max()) + 1
        size = max(MOST_MERGED - known, 1)
        some, waiting = waiting[:size], waiting[size:]
        groups = cells.take(placed).pool(labels[placed], known)
        both = Cells(*(torch.cat(pair, dim=1) for pair in zip(groups, cells.take(some), strict=True)))
        merged = numbered(merge(both, evidence))
        labels[placed], labels[some] = merged[:known][labels[placed]], merged[known:]
        if len(waiting):
            best = scores(cells.take(waiting), both.pool(merged, int(merged.max()) + 1), evidence).max(1)
            fits = best.values >= STOP
            labels[waiting[fits]] = best.indices[fits]
            waiting = waiting[~fits]
    return labels


def numbered(labels: Tensor) -> Tensor:
    """Return labels as 0, 1, ... in the order of their first occurrence."""
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(label, len(numbers)) for label in labels.tolist()], dtype=torch.int64)
