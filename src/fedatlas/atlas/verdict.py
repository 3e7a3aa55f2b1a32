"""The verdict: which clients differ beyond noise, and in what: inputs, label shares, or labelling.

    inputs         P(x | y): the same class looks different in two groups
    label shares   P(y): clients have other shares of the classes than chance gives
    labelling      P(y | x): what one group calls 3 another calls 5

Groups come from ``merge`` and ``sides``. Inputs and labelling are told apart by matching the classes of two groups:
D_kl is the squared distance of class k of one and class l of the other, less its noise, and rho = 1 - D of the best
matching / D of equal names. If rho is at least 0.6 and the best matching is not that of equal names, the labelling
differs. If not, the same is tried once more without the offset that all classes have in common: if the renamed classes
then fit clearly better, inputs and labelling both differ. Groups that no such matching connects differ in their inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas.floor import LEAST, noise_floor
from fedatlas.atlas.label_shares import label_shares
from fedatlas.atlas.merge import Cells, cells_of, class_distance, find_groups
from fedatlas.atlas.sides import with_sides
from fedatlas.atlas.summary import Summary
from fedatlas.seeds import repeatable

APART, ALONE, MANY = 3.0, 6.0, 10
"""The least z between two groups whose difference is looked into; and of a group that is one client of at least ten, as
chance puts one of many so far."""
EXPLAINED = 0.6
"""The least rho of a matching of classes that is called a labelling."""
CLEARLY, ALIKE = 0.7, 0.4
"""If inputs differ too: the least rho among the renamed classes alone, as the others keep their difference, and how far
apart matched classes may be on average, as a share of the squared distance of two classes."""
EXCHANGED, KEPT = 0.4, 5
"""The least rho if two classes only have each other's names and at least so many have the same: of other inputs alone,
images that are turned or of four digit sets, that was 0.3 at most, and such matchings move more classes."""
FEW_CLASSES = 4
"""Common classes that a matching needs; of fewer classes, all."""
MOST_PAIRED = 50
"""Groups, the largest, of which every two are looked into."""
CHANCE, EFFECT = 1e-3, 0.01
"""Label shares differ if chance is less likely than this, and the effect is worth naming: tiny ones are significant."""


@dataclass(frozen=True)
class Finding:
    """Whether clients differ in one way, how much, and how that is known."""

    found: bool
    strength: float
    evidence: str
    """One sentence in plain words."""
    figures: str = ""
    """What tests gave, for those who know them, such as ``z = 73, 2 classes``."""


@dataclass(frozen=True)
class Matching:
    """Which class of one group is which of another, where their labelling differs."""

    groups: tuple[int, int]
    classes: tuple[tuple[int, int], ...]
    """(class in the first group, the same class as the second group calls it), where the two are not the same."""
    explained: float
    """rho: the share of the difference that goes away if classes are matched so."""
    inputs_too: bool
    """Whether inputs differ as well: the matching shows only without the offset that all classes have in common."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Verdict:
    """Groups of clients, and in what they differ."""

    names: tuple[str, ...]
    groups: Tensor
    """int64 (clients,): numbered in the order of their first clients."""
    inputs: Finding
    """Strength: how far one class is apart in two groups, by the distance of two classes; the largest of all pairs."""
    label_shares: Finding
    """Strength: how much likelier than by chance two examples of one client share a label, 0 to 1."""
    labelling: Finding
    """Strength: the share of common classes that two groups call differently; the largest of all pairs."""
    matchings: tuple[Matching, ...]
    labelled: bool
    """Whether labels were looked at; otherwise only inputs were, and other label shares look like other inputs."""

    @property
    def count(self) -> int:
        """How many groups there are."""
        return int(self.groups.max()) + 1

    def describe(self) -> str:
        """Return the verdict as lines of text."""
        sizes = ", ".join(str(size) for size in torch.bincount(self.groups).tolist()[:10])
        ways = {"inputs": self.inputs, "label shares": self.label_shares, "labelling": self.labelling}
        lines = [f"{self.count} group{'s' if self.count > 1 else ''} of {len(self.names)} clients ({sizes})"]
        lines += [f"{way}: {'yes' if own.found else 'no'}. {own.evidence}" for way, own in ways.items()]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        ways = {"inputs": self.inputs, "label_shares": self.label_shares, "labelling": self.labelling}
        return {
            "clients": len(self.names),
            "labelled": self.labelled,
            "shift": {
                way: {"found": own.found, "strength": own.strength, "evidence": own.evidence}
                for way, own in ways.items()
            },
            "groups": dict(zip(self.names, self.groups.tolist(), strict=True)),
            "matchings": [
                {
                    "groups": list(own.groups),
                    "classes": [list(pair) for pair in own.classes],
                    "explained": own.explained,
                    "inputs_too": own.inputs_too,
                }
                for own in self.matchings
            ],
        }


def judge(
    summary: Summary,
    names: Sequence[str],
    classes: Sequence[str] | None = None,
    *,
    groups: Tensor | None = None,
    seed: int = 0,
) -> Verdict:
    """Return the verdict on the clients of a summary; groups that are given take the place of those that it finds.

    Without the names of the classes, the evidence calls them by their numbers.
    """
    groups = with_sides(summary, names, find_groups(summary, names, seed=seed)) if groups is None else groups
    with repeatable(torch.device("cpu")):
        floor = noise_floor(summary)
        pooled = cells_of(summary, floor).pool(groups, int(groups.max()) + 1)
        distance = class_distance(summary, floor)
        pairs = _pairs(pooled, torch.bincount(groups), distance, summary.labelled)
        matchings = tuple(pair.matching for pair in pairs if pair.matching is not None)
        return Verdict(
            names=tuple(names),
            groups=groups,
            inputs=_inputs(pairs, pooled, distance, summary.labelled),
            label_shares=_label_shares(summary),
            labelling=_labelling(pairs, matchings, classes or range(summary.counts.shape[1]), summary.labelled),
            matchings=matchings,
            labelled=summary.labelled,
        )


@dataclass(frozen=True)
class _Pair:
    """Two groups that differ."""

    groups: tuple[int, int]
    z: float
    shared: int
    distance: float
    """The mean squared distance of a class of one from the same of the other, without noise."""
    judged: bool
    """Whether they have enough classes in common to be matched."""
    matching: Matching | None


class _Side(NamedTuple):
    """One of two groups, on the classes that both have."""

    means: Tensor
    noise: Tensor
    deviation: Tensor
    """sqrt(kappa) v of each class."""

    @classmethod
    def of(cls, pooled: Cells, group: int, shared: Tensor) -> _Side:
        """Return a group on some classes."""
        noise = 1 / pooled.precisions[shared, group]
        return cls(pooled.means[shared, group], noise, pooled.anisotropy[shared, group].sqrt() * noise)


def _pairs(pooled: Cells, sizes: Tensor, distance: float, labelled: bool) -> list[_Pair]:
    """Return every two groups, of so many clients each, that differ by z; of very many groups, of the largest."""
    order = pooled.counts.sum(0).argsort(descending=True, stable=True)[:MOST_PAIRED].sort().values.tolist()
    enough = min(FEW_CLASSES, pooled.counts.shape[0])
    found = []
    for g, h in combinations(order, 2):
        shared = ((pooled.counts[:, g] >= LEAST) & (pooled.counts[:, h] >= LEAST)).nonzero().flatten()
        one, other = _Side.of(pooled, g, shared), _Side.of(pooled, h, shared)
        excess = (one.means - other.means).square().sum(1) - one.noise - other.noise
        z = _z(excess, one.deviation + other.deviation)
        lone = int(sizes.sum()) >= MANY and int(sizes[[g, h]].min()) == 1
        if z < (ALONE if lone else APART):
            continue
        judged = labelled and len(shared) >= enough
        found.append(
            _Pair(
                groups=(g, h),
                z=z,
                shared=len(shared),
                distance=float(excess.mean()),
                judged=judged,
                matching=_matched((g, h), shared, one, other, distance) if judged else None,
            )
        )
    return found


def _z(excess: Tensor, deviation: Tensor) -> float:
    return float(excess.sum() / (2 * deviation.square().sum()).sqrt()) if len(excess) else 0.0


def _matched(groups: tuple[int, int], shared: Tensor, one: _Side, other: _Side, distance: float) -> Matching | None:
    """Return the matching of classes that explains the difference of two groups, if one does."""
    noise = one.noise[:, None] + other.noise
    matched, explained = best_matching((one.means[:, None] - other.means).square().sum(2) - noise)
    moved = [k for k, found in enumerate(matched) if k != found]
    if moved and explained >= EXPLAINED:
        return _matching(groups, shared, matched, explained)
    # Once more without what all classes have in common.
    means = [own.means - own.means.mean(0) for own in (one, other)]
    table = (means[0][:, None] - means[1]).square().sum(2) - noise
    matched, _ = best_matching(table)
    moved = [k for k, found in enumerate(matched) if k != found]
    if not moved:
        return None
    before, after = table.diagonal()[moved], torch.stack([table[k, matched[k]] for k in moved])
    explained = float(1 - after.sum() / before.sum()) if float(before.sum()) > 0 else 0.0
    left = float(torch.stack([table[k, found] for k, found in enumerate(matched)]).mean())
    surely = _z(before - after, 2 * (one.deviation + other.deviation)[moved]) >= APART
    exchanged = len(moved) == 2 and len(matched) - 2 >= KEPT
    if explained >= (EXCHANGED if exchanged else CLEARLY) and left <= ALIKE * distance and surely:
        return _matching(groups, shared, matched, min(explained, 1.0), inputs_too=True)
    return None


def _matching(
    groups: tuple[int, int], shared: Tensor, matched: Sequence[int], explained: float, *, inputs_too: bool = False
) -> Matching:
    moved = tuple((int(shared[k]), int(shared[found])) for k, found in enumerate(matched) if k != found)
    return Matching(groups, moved, explained, inputs_too)


def best_matching(distances: Tensor) -> tuple[list[int], float]:
    """Return the matching of rows with columns of the least sum, and rho = 1 - its sum / the sum of the diagonal.

    >>> best_matching(torch.tensor([[4.0, 1.0], [1.0, 4.0]]))
    ([1, 0], 0.75)
    """
    from scipy.optimize import linear_sum_assignment  # here, as it takes longer to load than all of this package

    table = np.asarray(distances)
    rows, columns = linear_sum_assignment(table)
    plain = float(np.trace(table))
    explained = 1 - float(table[rows, columns].sum()) / plain if plain > 0 else 0.0
    return [int(column) for column in columns], min(explained, 1.0)


def _joined(pairs: Sequence[_Pair], count: int) -> list[int]:
    """Return groups connected by a labelling alone, each as the smallest of them."""
    home = list(range(count))
    for pair in pairs:
        if pair.matching is not None and not pair.matching.inputs_too:
            low, high = sorted(home[group] for group in pair.groups)
            home = [low if own == high else own for own in home]
    return home


def _inputs(pairs: Sequence[_Pair], pooled: Cells, distance: float, labelled: bool) -> Finding:
    count = pooled.counts.shape[1]
    home = _joined(pairs, count)
    apart = [pair for pair in pairs if home[pair.groups[0]] != home[pair.groups[1]]]
    # Two groups with too few classes in common say nothing where others tell inputs from labelling.
    telling = [pair for pair in apart if pair.judged] or ([] if any(pair.judged for pair in pairs) else apart)
    if not telling:
        why = "every difference between groups is one of labelling" if pairs else "noise explains every difference"
        return Finding(False, 0.0, f"Clients' inputs of one class are alike: {why}.")
    widest = max(telling, key=lambda pair: pair.distance)
    strength = (max(widest.distance, 0.0) / distance) ** 0.5
    one, other = widest.groups
    if not labelled:
        return Finding(
            True,
            strength,
            f"The mean examples of groups {one} and {other} are {strength:.1f} times as far apart as a client's "
            "examples are from their mean. Labels were not looked at; other label shares would look the same.",
            f"{strength:.2f} times, z = {widest.z:.0f}",
        )
    return Finding(
        True,
        strength,
        _between_groups(one, other, strength),
        f"{strength:.2f} times, z = {widest.z:.0f}, {widest.shared} class{'es' * (widest.shared != 1)}",
    )


def _between_groups(one: int, other: int, times: float) -> str:
    return f"The same class differs between groups {one} and {other}, {times:.1f} times as much as two classes do."


def _label_shares(summary: Summary) -> Finding:
    if not summary.labelled:
        return Finding(False, 0.0, "Labels were not looked at.")
    shares = label_shares(summary.counts)
    found = shares.p < CHANCE and shares.rho >= EFFECT
    strength = max(shares.rho, 0.0)
    if not found:
        return Finding(False, strength, "Chance explains them.", f"effect {strength:.3f}, p = {shares.p:.2g}")
    alpha = shares.alpha(summary.counts.shape[1])
    return Finding(
        True,
        strength,
        f"By {strength:.2f}, where 0 is chance and 1 is one class for each client.",
        f"p = {shares.p:.1g}, as a Dirichlet alpha of {alpha:.2g} gives",
    )


def _labelling(
    pairs: Sequence[_Pair], matchings: Sequence[Matching], classes: Sequence[str] | range, labelled: bool
) -> Finding:
    if not labelled:
        return Finding(False, 0.0, "Labels were not looked at.")
    if not matchings:
        few = [pair for pair in pairs if not pair.judged]
        why = (
            f"{len(few)} of {len(pairs)} pairs of groups have too few classes in common to tell"
            if few
            else "No other names for classes explain a difference"
        )
        return Finding(False, 0.0, f"{why}.")
    shared = {pair.groups: pair.shared for pair in pairs}
    widest = max(matchings, key=lambda own: len(own.classes) / shared[own.groups])
    strength = len(widest.classes) / shared[widest.groups]
    (one, other), *more = [(classes[k], classes[m]) for k, m in widest.classes[:10]]
    said = [f"{one!r} in group {widest.groups[0]} is {other!r} in group {widest.groups[1]}"]
    said += [f"{one!r} is {other!r}" for one, other in more]
    return Finding(
        True,
        strength,
        f"{', '.join(said)}: this explains {100 * widest.explained:.0f} % of their difference.",
    )
