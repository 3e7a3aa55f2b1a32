"""Clients that call two classes by each other's names, in a group that single clients' evidence cannot split.

delta_i = m_ik - m_il is the way from class l to class k at client i. Where names mean the same, these ways agree. If
some clients have the names exchanged, theirs point the other way, and all clients together show it though no two do:

    y_i = delta_i / sqrt(its noise),   sides = signs of y_i along the leading direction of sum of y_i y_i'
    t_i = side_i sum over j != i of side_j <y_i, y_j> / sqrt(n - 1)      by noise alone about 1 to 2

A group is split by the pair of classes with the largest mean t on the smaller side, if that is at least 3, and if the
smaller side's way is the larger one's reversed, to 0.25 of its length at least: a ring of three names reverses half of
it or less.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from fedatlas.atlas.floor import LEAST, noise_floor
from fedatlas.atlas.merge import Cells, cells_of, numbered, refine, weigh_evidence
from fedatlas.atlas.summary import Summary
from fedatlas.seeds import repeatable

SURE, REVERSED = 3.0, 0.25
FEWEST, SMALLER = 4, 2
"""Clients with both classes, and those of them on the smaller side; one alone is a suspect, not a side."""
MOST_CLASSES = 30
"""Of more classes, the pairs are too many to look at."""


def with_sides(summary: Summary, names: Sequence[str], groups: Tensor) -> Tensor:
    """Return (clients,) int64: the groups that were found, with those split whose clients are on two sides."""
    if not summary.labelled:
        return groups
    with repeatable(torch.device("cpu")):
        floor = noise_floor(summary)
        order = torch.tensor(sorted(range(len(names)), key=names.__getitem__))
        cells = cells_of(summary, floor).take(order)
        split = split_sides(cells, groups[order])
        if torch.equal(split, groups[order]):
            return groups
        # Where single clients say enough, those that lack the two classes find their side, too.
        refined = refine(cells, split, weigh_evidence(summary, floor))
        found = torch.empty_like(groups)
        found[order] = refined if int(refined.max()) >= int(split.max()) else split
        return numbered(found)


def split_sides(cells: Cells, labels: Tensor) -> Tensor:
    """Return (clients,) int64: the groups, with those split whose clients are on two sides about two classes."""
    labels = labels.clone()
    if not 1 < cells.counts.shape[0] <= MOST_CLASSES:
        return labels
    waiting = labels.unique().tolist()
    while waiting:
        group = waiting.pop()
        other = _other_side(cells, (labels == group).nonzero().flatten())
        if len(other):
            labels[other] = int(labels.max()) + 1
            waiting += [group, int(labels.max())]
    return labels


def _other_side(cells: Cells, members: Tensor) -> Tensor:
    """Return the members of a group that are on its smaller side about some two classes; none if there are no sides."""
    best, found = SURE, members[:0]
    own = cells.take(members)
    for k, m in combinations(range(cells.counts.shape[0]), 2):
        both = ((own.counts[k] >= LEAST) & (own.counts[m] >= LEAST)).nonzero().flatten()
        if len(both) < FEWEST:
            continue
        evidence, smaller = _sides(own.take(both), k, m)
        if evidence > best:
            best, found = evidence, members[both[smaller]]
    return found


def _sides(cells: Cells, k: int, m: int) -> tuple[float, Tensor]:
    """Return the mean t of the smaller side, and who is on it; 0 if it has too few clients or is not reversed."""
    ways = cells.means[k] - cells.means[m]
    noise, deviation = (own[k] + own[m] for own in (1 / cells.precisions, cells.anisotropy.sqrt() / cells.precisions))
    scaled = ways / deviation.sqrt()[:, None]
    sides = torch.where(along_leading(scaled) >= 0, 1.0, -1.0).double()
    # Of two sides of one size the first client's is the larger.
    sides = sides if float(sides.sum() + 0.5 * sides[0]) >= 0 else -sides
    smaller = sides < 0
    if int(smaller.sum()) < SMALLER:
        return 0.0, smaller
    sums = (sides[:, None] * scaled).sum(0)
    t = (sides * (scaled @ sums) - scaled.square().sum(1)) / (len(sides) - 1) ** 0.5
    one, other = (((ways / noise[:, None])[side].sum(0) / (1 / noise)[side].sum()) for side in (~smaller, smaller))
    reverse = -float(one @ other) / max(float(one @ one), 1e-300)
    return (float(t[smaller].mean()), smaller) if reverse >= REVERSED else (0.0, smaller)


def along_leading(rows: Tensor) -> Tensor:
    """Return where rows, (n, d), lie along the leading direction of the sum of their outer products, by some factor."""
    # The smaller of the two matrices gives the same answer.
    few = len(rows) < rows.shape[1]
    leading: Tensor = torch.linalg.eigh(rows @ rows.T if few else rows.T @ rows).eigenvectors[:, -1]
    return leading if few else rows @ leading
