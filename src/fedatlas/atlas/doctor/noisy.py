"""Whether a client's labels are noisy: some examples of each class carry another class's label.

If a share e of a client's labels is drawn at random, a share c_k(e) of those that it calls k is foreign, and its means
move towards the middle of its other classes, F_k:

    m_k = M_k + c_k(e) (F_k - M_k),   u_k = c_k(0.1) (F_k - M_k)
    z_s = [ sum of n_k <m_k - M_k, u_k> - sum of n_k c_k v_k ] / sd     v_k: the noise of M_k, which both factors share
    z_d = the excess scatter of its classes towards other classes / sd   from the others' fourth moments

The variance along u_k is known on average over directions only, so it is corrected by what is seen over the clients,
for each class; and both z, and their score, are divided by what they usually are here. Wide scatter alone accuses no
client: those of another kind have it too. A class of which the client has one example counts, too: under label skew
most wrong labels go to classes that it hardly has. The true shares of its classes are taken from its labels and, as far
as clients' shares are alike, from all clients'.

With a and b, what a noise of 0.1 would make of z_s and z_d, each of the two counts by how much it would say:

    score = (a z_s + b z_d) / sd                  sd^2 = a^2 + a b + b^2: the two are taken to be correlated by 0.5
    both  = 0.1 (a z_s + b z_d) / (a^2 + b^2)     the noise that the two say
    e     = the noise that fits the means best

A client is accused if its score is an alarm, z_s > 1.64, z_d > -1, e is at least 0.04, and the noise explains what is
seen: after the fit z < 4, or half of the deviation is gone; against another group than its own 0.4 must be gone, and
z < 8. By chance a class has more or fewer foreign examples, or others, which puts its mean off by

    |m_k - M_k - c_k (F_k - M_k)|^2 = ( c_k w_k - c_k^2 |F_k - M_k|^2 ) / n_k    w_k: the mean of |M_l - M_k|^2

on top of its noise, so as much is not counted as left. The alarm must be rarer than usual
- 20 times if the reference has fewer than six clients, or if fewer than eight classes or three quarters of them are
  compared, but five at least: noise gives a client labels of most classes
- 400 times if both is below 0.035: a few odd examples look like that
- 2,000 times if z_d < 0, or if less than half of the deviation is gone and much is left, z > 2, or z > 3 in the
  directions in which classes differ: a client with other inputs looks like that if too few examples tell it from its
  group. Where so much is left z_d must be above 1.64, too.

A client that is rare in its federation, or that only another group can judge, is called noisy if z_s and z_d are each
an alarm that is 2,000 times rarer; one that is not rare also if with this noise it would be one of that group: z < 4,
0.6 of the deviation is gone, and z_d > 1.64; or z < 1.64 and 0.8 is gone. Otherwise whether its labels are noisy cannot
be told. A reference that knows few of its classes well cannot judge. A permutation of the names that explains clearly
more acquits it of noise, if it is of more examples than a noise of e would change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.doctor.reference import Pairing
from fedatlas.atlas.doctor.suspect import threshold
from fedatlas.atlas.doctor.swapped import AGREES, SURELY, Renaming
from fedatlas.atlas.floor import LEAST

TYPICAL = 0.1
"""The noise whose direction is looked for."""
SHRUNK, TIDY, LEAST_NOISE = 1.64, -1.0, 0.04
"""z_s that noise gives at least; z_d of a client whose classes overlap less than others', which speaks against noise;
and the noise that is looked for."""
FEW_OTHERS, SURER = 6, 20
"""Few clients or classes say little about what is usual, so it takes an alarm so many times rarer."""
LEAST_COMPARED, MANY_COMPARED, COMPARED = 5, 8, 0.75
"""Classes that are not few: so many, or this share of the reference's, but at least five."""
LIGHT, FAR_SURER = 0.035, 400
"""Light noise is what the tail of clean clients looks like, so it takes an alarm so many times rarer."""
RARER = 2000
"""By how much rarer alarms must be to call a rare client's labels noisy, or one's whose inputs may differ."""
KNOWN, FEW_CLASSES = 15, 4
"""Examples of a class with which a reference knows it, and classes that it must know; of fewer classes, all."""
UNEXPLAINED, EXPLAINED, AWAY, MOSTLY, BETTER = 4.0, 0.5, 0.4, 0.6, 0.3
APART = 3.0
"""z in the directions in which classes differ; few noisy clients are so far from where noise puts them."""
GRID = [i / 50 for i in range(36)]
PRIOR, WIDER, FAR = 6, 1.5, 4.0
"""So many clients are taken to have so much more variance than expected before any is seen; one farther out than two
standard deviations counts as that, as its labels may be noisy."""
CORRELATED = 0.5
"""The correlation that z_s and z_d are taken to have."""
LEAST_SIZE = (2 / 3) ** 0.5
"""The standard deviation of the score if the two are independent and say as much."""
CHANCE = {0.5: 0.6745, 0.8: 1.2816}
"""Quantiles of |z| of a standard normal."""
ALARMS, CAUTION = 0.1, 0.5
"""The chance of an alarm by the score alone, of which what else is asked for leaves little; and the chance at which a
client may be noisy, so that others are better not compared with it."""


class Evidence(NamedTuple):
    """What speaks for noisy labels at a client."""

    shrinking: float
    """z_s."""
    scatter: float
    """z_d."""
    score: float
    """Both, by their standard deviation."""
    share: float
    """The noise that the two say."""


class Fit(NamedTuple):
    """The noise that explains a client's means best."""

    share: float
    """e."""
    residual: float
    """z of what is left."""
    explained: float
    """The share of the deviation that the fit takes away."""
    between: float
    """z of what is left in the directions in which classes differ."""


def foreign_shares(counts: Tensor, noise: float, expected: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return c_k, the share of label k that is foreign, and the true shares of the classes, from counts of labels.

    A label is replaced with probability ``noise`` by one of the other classes, each as likely. ``expected`` are
    examples of each class that count beside the client's own: the more, the more alike clients' shares are.

    >>> c, p = foreign_shares(torch.tensor([82, 18]), 0.1)
    >>> [round(float(x), 3) for x in (*c, *p)]
    [0.012, 0.5, 0.9, 0.1]
    """
    classes = len(counts)
    shares = counts.double() / counts.sum()
    each = noise / max(classes - 1, 1)
    true = (shares - each).clamp(min=0)
    true = true if expected is None else true + expected / counts.sum()
    true = true / true.sum() if float(true.sum()) > 0 else shares
    kept = true * (1 - noise)
    arrived = each * (1 - true)
    return torch.where(shares > 0, arrived / (kept + arrived).clamp(min=1e-12), 0.0), true


class _Model(NamedTuple):
    """The expected change of a client's classes by noise."""

    share: Tensor
    """c, (classes,)."""
    towards: Tensor
    """F - M, (classes, d)."""
    width: Tensor
    """(classes,): the mean squared distance of a foreign example's class mean from M."""
    noise: Tensor
    """(classes,): v of F."""


def _model(pairing: Pairing, noise: float) -> _Model:
    share, true = foreign_shares(pairing.own.counts, noise, pairing.expected)
    means = pairing.other.means
    weights = torch.where(pairing.other.counts > 0, true, 0.0)
    rest = (weights.sum() - weights).clamp(min=1e-12)
    middle = ((weights[:, None] * means).sum(0) - weights[:, None] * means) / rest[:, None]
    away = (means[:, None] - means).square().sum(2)
    parts = torch.where(weights > 0, weights.square() * pairing.other.variances, 0.0)
    return _Model(share, middle - means, (away * weights).sum(1) / rest, (parts.sum() - parts) / rest.square())


class Noise(NamedTuple):
    """Whose labels are noisy."""

    noisy: dict[int, Fit]
    untold: dict[int, Fit]
    """Rare clients of which others would be accused by the same evidence."""


def find_noisy(
    judged: Sequence[tuple[Pairing, Renaming | None]],
    tests: int,
    known: Collection[int] = (),
    alarms: float = ALARMS,
    rare: Collection[int] = (),
) -> Noise:
    """Return the clients whose labels are noisy, of ``tests`` that were looked at.

    Args:
        judged: the clients that may be accused, each with the best other names of its classes, if they were looked for.
        tests: how many clients there are.
        known: suspects, which say nothing about what is usual.
        alarms: the chance that any of them is accused without noise.
        rare: clients that are rare in their federation.
    """
    found = Noise({}, {})
    for (pairing, renamed), evidence in zip(judged, evidence_of([own for own, _ in judged], known), strict=True):
        if not _may_be_noisy(evidence, threshold(tests, alarms)) or not is_judged(pairing):
            continue
        fit = fit_noise(pairing)
        if evidence.score <= threshold(tests, alarms / _times_rarer(pairing, evidence, fit)):
            continue
        if fit.share < LEAST_NOISE or not _explains(evidence, fit, pairing.among) or _acquits(renamed, pairing, fit):
            continue
        plain = (pairing.among or _belongs(evidence, fit)) and pairing.client not in rare
        both = min(evidence.shrinking, evidence.scatter) > threshold(tests, alarms / RARER)
        (found.noisy if plain or both else found.untold)[pairing.client] = fit
    return found


def _may_be_noisy(evidence: Evidence, limit: float) -> bool:
    """Return whether the score is above a limit, and neither of the two signs speaks against noise."""
    return evidence.score > limit and evidence.shrinking > SHRUNK and evidence.scatter > TIDY


def _times_rarer(pairing: Pairing, evidence: Evidence, fit: Fit) -> int:
    """Return by how much rarer than usual an alarm must be, by how well the client is known and what is left."""
    known = int((pairing.other.counts >= LEAST).sum())
    enough = max(LEAST_COMPARED, min(MANY_COMPARED, COMPARED * known))
    known_well = len(pairing.seen) >= enough and int(pairing.other.cells.max()) >= FEW_OTHERS
    if evidence.scatter < 0 or _may_differ(fit):
        return RARER
    if evidence.share < LIGHT:
        return FAR_SURER
    return 1 if known_well else SURER


def _may_differ(fit: Fit) -> bool:
    """Return whether other inputs may explain as much as noise does."""
    left = fit.residual > UNEXPLAINED / 2 or fit.between > APART
    return left and fit.explained < EXPLAINED


def _explains(evidence: Evidence, fit: Fit, among: bool) -> bool:
    """Return whether noise explains what is seen; against another group, other inputs look like noise, too."""
    if _may_differ(fit) and evidence.scatter <= SHRUNK:
        return False
    if among:
        return fit.residual < UNEXPLAINED or fit.explained >= EXPLAINED
    return fit.residual < 2 * UNEXPLAINED and fit.explained >= AWAY


def _belongs(evidence: Evidence, fit: Fit) -> bool:
    """Return whether a client of another group would be one of the reference with so much noise."""
    if evidence.scatter > SHRUNK:
        return fit.residual < UNEXPLAINED and fit.explained >= MOSTLY
    return fit.residual < AGREES and fit.explained >= SURELY


def _acquits(renamed: Renaming | None, pairing: Pairing, fit: Fit) -> bool:
    """Return whether other names explain clearly more, and are those of more examples than the noise would change.

    The few examples of a rare class may all be foreign ones, and then look renamed.
    """
    if renamed is None or not renamed.classes:
        return False
    examples = int(sum(pairing.own.counts[k] for k, _ in renamed.classes))
    # A negative share is that of a client without any deviation to explain.
    clearly = renamed.explained > max(fit.explained, 0.0) + BETTER
    return clearly and examples > fit.share * int(pairing.own.counts.sum())


def is_judged(pairing: Pairing) -> bool:
    """Return whether the reference knows enough classes well: it has 15 examples, and as many as the client."""
    own, other = pairing.own.counts[pairing.seen], pairing.other.counts[pairing.seen]
    known = int(((other >= KNOWN) & (other >= own)).sum())
    return known >= min(FEW_CLASSES, len(pairing.own.counts))


def evidence_of(pairings: Sequence[Pairing], known: Collection[int] = ()) -> list[Evidence]:
    """Return what speaks for noisy labels at each client, against its reference and by what is usual among all."""
    if not pairings:
        return []
    models = [_model(pairing, TYPICAL) for pairing in pairings]
    parts = [_shrinking(pairing, model) for pairing, model in zip(pairings, models, strict=True)]
    usual = torch.tensor([pairing.among and pairing.client not in known for pairing in pairings])
    values, expected, variances = (torch.stack(own) for own in zip(*parts, strict=True))
    by_class = _wider(values[usual], variances[usual])
    deviations = (variances / by_class).sum(1).sqrt()
    shrinking = torch.stack([_by(table, by_class, deviations) for table in (values, expected)])
    scatter = torch.tensor([_scatter(pairing, model) for pairing, model in zip(pairings, models, strict=True)]).T
    # (2, clients) each: z, and what it would be at a noise of 0.1.
    (z_s, a), (z_d, b) = (both / _usual_size(both[0], usual, 1.0) for both in (shrinking, scatter))
    both = a * z_s + b * z_d
    score = both / (a.square() + 2 * CORRELATED * a * b + b.square()).sqrt().clamp(min=1e-12)
    score = score / _usual_size(score, usual, LEAST_SIZE)
    share = TYPICAL * both / (a.square() + b.square()).clamp(min=1e-12)
    return [Evidence(*map(float, row)) for row in zip(z_s, z_d, score, share, strict=True)]


def _by(table: Tensor, by_class: Tensor, deviations: Tensor) -> Tensor:
    """Return the sum of each client's parts, (clients, classes), by its standard deviation; 0 if nothing is seen."""
    return torch.where(deviations > 0, (table / by_class).sum(1) / deviations.clamp(min=1e-300), 0.0)


def _wider(values: Tensor, variances: Tensor) -> Tensor:
    """Return (classes,): by how much the variance of each class is larger than expected, from (clients, classes)."""
    here = variances > 0
    seen = torch.where(here, values.square() / variances.clamp(min=1e-300), 0.0).clamp(max=FAR)
    return (PRIOR * WIDER + seen.sum(0)) / (PRIOR + here.sum(0))


def _usual_size(z: Tensor, usual: Tensor, least: float) -> float:
    """Return the standard deviation that quantiles of the usual |z| say, at least ``least``.

    The median, and one farther out, as tails may be long.
    """
    sizes = z[usual].abs()
    found = [
        float(torch.cat([sizes, torch.full((PRIOR,), chance)]).quantile(share)) / chance
        for share, chance in CHANCE.items()
    ]
    return max(*found, least)


def fit_noise(pairing: Pairing) -> Fit:
    """Return the noise that explains a client's means best."""
    weights = pairing.own.counts[pairing.seen].double()
    best = min(GRID, key=lambda noise: float((weights * _left(pairing, noise, pairing.seen)).sum()))
    before = _left(pairing, 0.0, pairing.shared)
    model, mixed = _model(pairing, best), _mixed(pairing, best, pairing.shared)
    after = _left(pairing, best, pairing.shared) - mixed
    total = float(before.sum())
    explained = min(1 - float(after.sum()) / total, 1.0) if total > 0 else 0.0
    between = pairing.z_between(_place(pairing, model), 1 - model.share, mixed)
    return Fit(best, pairing.z(after), explained, between)


def _place(pairing: Pairing, model: _Model) -> Tensor:
    """Return where noise puts the means, (classes, d)."""
    return pairing.other.means + model.share[:, None] * model.towards


def _left(pairing: Pairing, noise: float, classes: Tensor) -> Tensor:
    """Return the excess of some classes over where noise puts their means, less the noise that this place has."""
    model = _model(pairing, noise)
    return pairing.excess(_place(pairing, model), 1 - model.share, classes)


def _mixed(pairing: Pairing, noise: float, classes: Tensor) -> Tensor:
    """Return how far chance puts the means of some classes, squared, by which foreign examples they happen to have."""
    model = _model(pairing, noise)
    scatter = model.share * model.width - model.share.square() * model.towards.square().sum(1)
    return scatter.clamp(min=0)[classes] / pairing.own.counts[classes]


def _shrinking(pairing: Pairing, model: _Model) -> tuple[Tensor, Tensor, Tensor]:
    """Return the part of each class in the numerator of z_s, what the model expects, and its variance, (classes,)."""
    k, own, other = pairing.seen, pairing.own, pairing.other
    counts = own.counts[k].double()
    along = model.share[k, None] * model.towards[k]
    product = ((own.means[k] - other.means[k]) * along).sum(1)
    drift = model.share[k] * other.variances[k]
    variance = pairing.variance_along(k, along)
    # Noise of m and M along that of F and M, which matters where the reference is small.
    kappa = (own.anisotropy[k] * other.anisotropy[k]).sqrt()
    blurred = own.variances[k] * (other.variances[k] + model.noise[k])
    blurred = blurred + other.variances[k] * (2 * other.variances[k] + model.noise[k])
    variance = variance + model.share[k].square() * kappa * blurred
    rows = (counts * (product - drift), counts * along.square().sum(1), counts.square() * variance)
    found = torch.zeros(3, len(own.counts)).double().index_add(1, k, torch.stack(rows))
    return found[0], found[1], found[2]


def _scatter(pairing: Pairing, model: _Model) -> tuple[float, float]:
    """Return z_d, and what the model expects it to be."""
    k, own, other = pairing.shared, pairing.own, pairing.other
    counts, many = own.counts[k].double(), other.counts[k].double()
    excess = own.inside[k] - (counts - own.cells[k]) * pairing.usual[k]
    variance = (counts * pairing.unevenness[k] * pairing.usual[k].square() * (1 + counts / many)).clamp(min=1e-12)
    # Weighed by what noise would add, over its variance.
    added = counts * model.share[k] * model.width[k]
    deviation = float((added.square() / variance).sum().sqrt())
    return (float((added / variance * excess).sum()) / deviation, deviation) if deviation > 0 else (0.0, 0.0)
