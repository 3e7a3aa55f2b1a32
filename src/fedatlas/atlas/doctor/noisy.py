"""Whether a client's labels are noisy: some examples of each class carry another class's label.

If a share e of a client's labels is drawn at random, a share c_k(e) of those that it calls k is foreign, and its means
move towards the middle of its other classes, F_k:

    m_k = M_k + c_k(e) (F_k - M_k),   u_k = c_k(0.1) (F_k - M_k)
    z_s = [ sum of n_k <m_k - M_k, u_k> - sum of n_k c_k v_k ] / sd     v_k: the noise of M_k, which both factors share
    z_d = the excess scatter of its classes towards other classes / sd   from the others' fourth moments

The variance along u_k is known on average over directions only, so it is corrected by what is seen over the clients,
for each class; and both z, and their sum, are divided by what they usually are here. Wide scatter alone accuses nobody:
clients of another kind have it too. e is the best fit to the means. A class of which the client has one example counts,
too: under label skew most wrong labels go to classes that it hardly has. The true shares of its classes are taken from
its labels and, as far as clients' shares are alike, from all clients'.

A client is accused if (z_s + z_d) / sd, about sqrt(3), is an alarm, z_s > 1.64, z_d > 0, e is at least 0.04, and the
noise explains what is seen: after the fit z < 4, or half of the deviation is gone; against another group than its own
half must be gone, and z < 8. The alarm must be a rarer one if e is 0.08 or less, if the reference has fewer than six
clients or if fewer than five classes are compared. Of a client that is rare in its federation, or that only another
group can judge, z_s and z_d must each be an alarm that is 400 times rarer; otherwise whether its labels are noisy
cannot be told. A reference that knows few of its classes well cannot judge. A permutation of the names that explains
clearly more acquits it of noise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.doctor.reference import Pairing
from fedatlas.atlas.doctor.suspect import threshold

TYPICAL = 0.1
"""The noise whose direction is looked for."""
SHRUNK = 1.64
LEAST_NOISE, LIGHT, FEW_OTHERS, FEW_COMPARED, SURER = 0.04, 0.08, 6, 5, 20
"""Light noise is what the tail of clean clients looks like, and few clients or classes say little about what is usual,
so it takes an alarm so many times rarer."""
KNOWN, FEW_CLASSES = 15, 4
"""Examples of a class with which a reference knows it, and classes that it must know; of fewer classes, all."""
UNEXPLAINED, EXPLAINED, BETTER = 4.0, 0.5, 0.3
GRID = [i / 50 for i in range(36)]
PRIOR, WIDER, FAR = 6, 1.5, 4.0
"""So many clients are taken to have so much more variance than expected before any is seen; one farther out than two
standard deviations counts as that, as its labels may be noisy."""
SUM = 3**0.5
"""The standard deviation that z_s + z_d is taken to have: the two are not independent. If they were, sqrt(2)."""
CHANCE = {0.5: 0.6745, 0.8: 1.2816}
"""Quantiles of |z| of a standard normal."""
ALARMS, CAUTION = 0.02, 0.5
"""The chance of an alarm is less than in other tests, as tails are longer than a normal's even so; and the chance at
which a client may be noisy, so that others are better not compared with it."""


class Evidence(NamedTuple):
    """What speaks for noisy labels at a client."""

    shrinking: float
    """z_s."""
    scatter: float
    """z_d."""
    score: float
    """Their sum, by its standard deviation."""


class Fit(NamedTuple):
    """The noise that explains a client's means best."""

    share: float
    """e."""
    residual: float
    """z of what is left."""
    explained: float
    """The share of the deviation that the fit takes away."""


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
    judged: Sequence[tuple[Pairing, float]],
    tests: int,
    known: Collection[int] = (),
    alarms: float = ALARMS,
    rare: Collection[int] = (),
) -> Noise:
    """Return the clients whose labels are noisy, of ``tests`` that were looked at.

    Args:
        judged: the clients that may be accused, each with rho of the best other naming of its classes.
        tests: how many clients there are.
        known: suspects, which say nothing about what is usual.
        alarms: the chance that any of them is accused without noise.
        rare: clients that are rare in their federation.
    """
    found = Noise({}, {})
    for (pairing, renamed), evidence in zip(judged, evidence_of([own for own, _ in judged], known), strict=True):
        alarm = evidence.score > threshold(tests, alarms) and evidence.shrinking > SHRUNK and evidence.scatter > 0
        if not alarm or not is_judged(pairing):
            continue
        fit = fit_noise(pairing)
        known_well = len(pairing.seen) >= FEW_COMPARED and int(pairing.other.cells.max()) >= FEW_OTHERS
        surely = (fit.share > LIGHT and known_well) or evidence.score > threshold(tests, alarms / SURER)
        # A negative share is that of a client without any deviation to explain.
        named = renamed > max(fit.explained, 0.0) + BETTER
        if fit.share < LEAST_NOISE or not surely or not _explains(fit, pairing.among) or named:
            continue
        plain = pairing.among and pairing.client not in rare
        both = min(evidence.shrinking, evidence.scatter) > threshold(tests, alarms / SURER**2)
        (found.noisy if plain or both else found.untold)[pairing.client] = fit
    return found


def _explains(fit: Fit, among: bool) -> bool:
    """Return whether noise explains what is seen; against another group, other inputs look like noise, too."""
    if among:
        return fit.residual < UNEXPLAINED or fit.explained >= EXPLAINED
    return fit.residual < 2 * UNEXPLAINED and fit.explained >= EXPLAINED


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
    values, variances = torch.stack([value for value, _ in parts]), torch.stack([variance for _, variance in parts])
    by_class = _wider(values[usual], variances[usual])
    shrinking = [_ratio((v / by_class).sum(), (w / by_class).sum()) for v, w in zip(values, variances, strict=True)]
    scatter = [_scatter(pairing, model) for pairing, model in zip(pairings, models, strict=True)]
    z_s, z_d = (_scaled(torch.tensor(z), usual, 1.0) for z in (shrinking, scatter))
    score = _scaled((z_s + z_d) / SUM, usual, 2**0.5 / SUM)
    return [Evidence(*map(float, row)) for row in zip(z_s, z_d, score, strict=True)]


def _wider(values: Tensor, variances: Tensor) -> Tensor:
    """Return (classes,): by how much the variance of each class is larger than expected, from (clients, classes)."""
    here = variances > 0
    seen = torch.where(here, values.square() / variances.clamp(min=1e-300), 0.0).clamp(max=FAR)
    return (PRIOR * WIDER + seen.sum(0)) / (PRIOR + here.sum(0))


def _scaled(z: Tensor, usual: Tensor, least: float) -> Tensor:
    """Return z by the standard deviation that quantiles of the usual |z| say, at least ``least``.

    The median, and one farther out, as tails may be long.
    """
    sizes = z[usual].abs()
    found = [
        float(torch.cat([sizes, torch.full((PRIOR,), chance)]).quantile(share)) / chance
        for share, chance in CHANCE.items()
    ]
    return z / max(*found, least)


def fit_noise(pairing: Pairing) -> Fit:
    """Return the noise that explains a client's means best."""
    weights = pairing.own.counts[pairing.seen].double()
    best = min(GRID, key=lambda noise: float((weights * _left(pairing, noise, pairing.seen)).sum()))
    before, after = (_left(pairing, noise, pairing.shared) for noise in (0.0, best))
    total = float(before.sum())
    explained = min(1 - float(after.sum()) / total, 1.0) if total > 0 else 0.0
    return Fit(best, pairing.z(after), explained)


def _left(pairing: Pairing, noise: float, classes: Tensor) -> Tensor:
    """Return the excess of some classes over where noise puts their means, less the noise that this place has."""
    model = _model(pairing, noise)
    return pairing.excess(pairing.other.means + model.share[:, None] * model.towards, 1 - model.share, classes)


def _shrinking(pairing: Pairing, model: _Model) -> tuple[Tensor, Tensor]:
    """Return the part of each class in the numerator of z_s, and its variance, (classes,); 0 if it is not seen."""
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
    zeros = torch.zeros(len(own.counts)).double()
    return zeros.index_add(0, k, counts * (product - drift)), zeros.index_add(0, k, counts.square() * variance)


def _scatter(pairing: Pairing, model: _Model) -> float:
    k, own, other = pairing.shared, pairing.own, pairing.other
    counts, many = own.counts[k].double(), other.counts[k].double()
    excess = own.inside[k] - (counts - own.cells[k]) * pairing.usual[k]
    variance = (counts * pairing.unevenness[k] * pairing.usual[k].square() * (1 + counts / many)).clamp(min=1e-12)
    # Weighed by what noise would add, over its variance.
    weights = counts * model.share[k] * model.width[k] / variance
    return _ratio((weights * excess).sum(), (weights.square() * variance).sum())


def _ratio(value: Tensor, variance: Tensor) -> float:
    return float(value / variance.sqrt()) if float(variance) > 0 else 0.0
