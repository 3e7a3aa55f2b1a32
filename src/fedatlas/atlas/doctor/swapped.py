"""Whether a client calls classes by other names than its reference does.

How far class k went from its reference's mean M_k towards that of another class l, with d = M_l - M_k and its noise:

    gone = <m_k - M_k, d> - v_k      about 0 with the right name, and the whole, |d|^2 less noise, with the name of l
    z    = sum of gone / sd          over classes that have other names; chance moves it little, as it is one direction
    way  = sum of gone / sum of whole
    log likelihood ratio of other names against the right ones = (whole gone - whole^2 / 2) / variance

Two tests. One is of the best matching of the client's classes with the reference's, D_kl being the squared distance of
class k of the client from class l of the reference, less its noise; a class may be matched with one that the client
lacks. Names are swapped if z is above 6, the way is at least 0.8, and the matching explains what is seen: by it less
than 4 standard deviations of noise are left; or it takes away more than 0.8 of D, and three classes keep their names.
Against another group than its own, which may have other inputs, it must take away 0.6 of D, and two classes must keep
their names unless z is above 12. The names must pass in a ring among the client's classes. If one is passed to a class
that the client lacks, a natural difference looks the same: then no other name may have moved, at least five others
must judge, the client may not be rare, z must be above 9, and the matching must take away 0.6 of D; against another
group z must be above 12, or 0.8 be taken away. Otherwise it cannot be told.

The other asks for one pair of names only, and so finds what is harder to see. The client must have two examples of the
two classes, as one may be odd. Each class that it has of them must have gone half the way, or 0.3 of it if it has two
examples of each. Their ratios add up. Chance alone brings a ratio of x for one of so many pairs at most once in x times
as many, and far less often as a rule; by this bound four pairs in a federation may pass, of those that fewer than five
others or another group judge, one. Natural differences of one class look like a swap, too, so it takes 600 times the
ratio if one class speaks almost alone: if the client lacks the other or has one example of it, or if that went less
than half the way. For a name that it lacks the class must have gone 0.8 of the way, five others must judge, and the two
classes must be a standard deviation of their examples apart. Of a rare client both must speak, with 600 times the
ratio.

The two together must have gone 0.7 of the way, and z must be above 3, of a rare client above 9. With the two names
exchanged the client must be one of its reference: by them less than 4 standard deviations of noise are left; if both
speak and z is above 12, less than 8; if it lacks a name and z is not above 9, less than 2. Fewer than five others may
be a mixture: then it takes 0.8 of the way, and less than 4 are left. Of other inputs, too, a class may be like another
class: against another group than its own it takes 600 times the ratio, two classes more that both have, less than 1.64
standard deviations, and 0.8 of D that the two names take away; or, if both speak and z is above 9, less than 4 (above
12: 8) and 0.5.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.doctor.reference import Pairing
from fedatlas.atlas.doctor.suspect import BEYOND
from fedatlas.atlas.floor import LEAST

SURE, WAY, MOST, HALF, SOME = 6.0, 0.8, 0.7, 0.5, 0.3
MOSTLY, SURELY, UNEXPLAINED, KEPT = 0.6, 0.8, 4.0, 3
AGREES = 1.64
"""Standard deviations of noise that are left once in twenty by chance."""
ALARMS = 4.0
"""The clients of a federation that are accused of one wrong pair, by a bound that chance stays far below; of those that
few others of their group judge, or another group, one."""
ALONE = 6.4
"""By how much the logarithm of the ratio must be larger if one class alone speaks."""
SURER = 9.0
"""z of a matching with a name that the client lacks."""
SEPARATE = 1.0
"""Standard deviations of an example between two classes, for one to tell that it has the other's name."""
ENOUGH_OTHERS = 5
"""Clients of a reference that can judge names which the client lacks."""
FEWEST = 2
"""Examples of two classes that have each other's names, as one may be odd; and classes that keep theirs."""


class Renaming(NamedTuple):
    """Other names for a client's classes: those that its reference uses for what is most like them."""

    classes: tuple[tuple[int, int], ...]
    """(what the client calls it, what the others call it), where the two are not the same."""
    explained: float
    """rho = 1 - D by these names / D of equal names."""
    residual: float
    """How far the client is from its reference by these names, in standard deviations of noise."""
    along: float
    """z."""
    way: float
    sure: bool
    """Whether names are swapped."""
    alone: bool = False
    """Whether only the test of one pair says so; noise brings rare classes nearer to each other, too."""
    untold: bool = False
    """Whether names look swapped that the client lacks, where too little is known to say so."""


class _Gone(NamedTuple):
    """How far each class of a client went towards each of its reference: float64 (classes, classes)."""

    gone: Tensor
    variance: Tensor
    whole: Tensor

    def sums(self, moved: list[tuple[int, int]]) -> tuple[float, float, float]:
        """Return gone, its variance, and the whole, of classes with their names."""
        rows, columns = ([pair[side] for pair in moved] for side in (0, 1))
        gone, variance, whole = (float(table[rows, columns].sum()) for table in self)
        return gone, max(variance, 1e-300), max(whole, 1e-12)

    def ratios(self) -> Tensor:
        """Return the logarithms of the likelihood ratios."""
        ratios: Tensor = (self.whole * self.gone - self.whole.square() / 2) / self.variance.clamp(min=1e-300)
        return ratios


def renaming_of(pairing: Pairing, tests: int, *, rare: bool = False) -> Renaming:
    """Return the other names that a client's classes most likely have.

    Args:
        pairing: the client and its reference.
        tests: how many clients are looked at.
        rare: whether the client is rare in its federation.
    """
    matched, after = pairing.match()
    moved = [(k, m) for k, m in zip(pairing.shared.tolist(), matched.tolist(), strict=True) if k != m]
    table = _gone(pairing)
    found = _renaming(pairing, table, moved, after)
    sure = bool(moved) and found.along > SURE and found.way >= WAY and _explains(pairing, found)
    few = _few_others(pairing)
    judged = not few and not rare
    lacking = {m for _, m in moved} - {k for k, _ in moved}
    if sure and (not lacking or (judged and _tells_one_name(pairing, found))):
        return found._replace(sure=True)
    unsure = 0.0 if pairing.among and not few else math.log(ALARMS)
    margins = _Margins(
        both=unsure + (ALONE if rare or not pairing.among else 0.0),
        single=math.inf if rare else unsure + ALONE,
        alone=unsure + ALONE if judged else math.inf,
    )
    if pair := _likeliest(pairing, table, tests, margins):
        names = torch.arange(len(pairing.own.counts))
        names[[k for k, _ in pair]] = torch.tensor([m for _, m in pair])
        exchanged = _renaming(pairing, table, pair, pairing.excess(pairing.other.means[names]))
        if _fits(pairing, exchanged, rare):
            return exchanged._replace(sure=True, alone=True)
    return found._replace(untold=sure)


def _tells_one_name(pairing: Pairing, found: Renaming) -> bool:
    """Return whether one class alone has another name, which the client lacks, and no natural difference says so."""
    surely = pairing.among or found.along > 2 * SURE or found.explained >= SURELY
    return len(found.classes) == 1 and found.along > SURER and found.explained >= MOSTLY and surely


def _few_others(pairing: Pairing) -> bool:
    return int(pairing.other.cells.max()) < ENOUGH_OTHERS


def _apart(pairing: Pairing, exchanged: Renaming) -> float:
    """Return how many standard deviations of an example a class is from that whose name it has."""
    ((k, _),) = exchanged.classes
    return exchanged.along * math.sqrt(1 / int(pairing.own.counts[k]) + 1 / int(pairing.other.counts[k]))


def _fits(pairing: Pairing, exchanged: Renaming, rare: bool) -> bool:
    """Return whether the client is one of its reference if two classes have each other's names."""
    few = _few_others(pairing)
    if exchanged.way < (WAY if few else MOST) or exchanged.along <= (SURER if rare else BEYOND):
        return False
    if len(exchanged.classes) == 1 and _apart(pairing, exchanged) < SEPARATE:
        return False
    if len(exchanged.classes) > 1 and exchanged.along > SURER:
        limit, least = 2 * UNEXPLAINED if exchanged.along > 2 * SURE and not few else UNEXPLAINED, HALF
    elif not pairing.among:
        limit, least = AGREES, SURELY
    else:
        speaks_alone = len(exchanged.classes) == 1 and exchanged.along <= SURER
        limit, least = UNEXPLAINED / 2 if speaks_alone else UNEXPLAINED, 0.0
    if exchanged.residual >= limit:
        return False
    named = {k for pair in exchanged.classes for k in pair}
    kept = sum(k not in named for k in pairing.shared.tolist())
    return pairing.among or (kept >= FEWEST and exchanged.explained >= least)


def _explains(pairing: Pairing, found: Renaming) -> bool:
    """Return whether a matching of all classes explains what is seen."""
    kept = len(pairing.shared) - len(found.classes)
    explains = found.residual < UNEXPLAINED or (found.explained > SURELY and kept >= KEPT)
    if pairing.among:
        return explains
    # Of other inputs, too, a matching explains a part; names are swapped where it explains most, and others agree.
    return explains and found.explained >= MOSTLY and (kept >= FEWEST or found.along > 2 * SURE)


def _renaming(pairing: Pairing, table: _Gone, moved: list[tuple[int, int]], after: Tensor) -> Renaming:
    gone, variance, whole = table.sums(moved) if moved else (0.0, 1.0, 1.0)
    return Renaming(
        classes=tuple(moved),
        explained=pairing.explained(after),
        residual=pairing.z(after),
        along=gone / variance**0.5,
        way=gone / whole,
        sure=False,
    )


def _gone(pairing: Pairing) -> _Gone:
    own, other, k = pairing.own, pairing.other, pairing.seen
    names = (other.counts >= LEAST).nonzero().flatten()
    towards = other.means[names] - other.means[k][:, None]
    noise = other.variances[k][:, None] + other.variances[names]
    gone = ((own.means[k] - other.means[k])[:, None] * towards).sum(2) - other.variances[k][:, None]
    # The noise of the direction itself matters where the reference is small.
    kappa = (own.anisotropy[k] * other.anisotropy[k]).sqrt()[:, None]
    mine, theirs = own.variances[k][:, None], other.variances[k][:, None]
    blurred = mine * noise + theirs * (theirs + noise)
    flat = pairing.variance_along(k.repeat_interleave(len(names)), towards.flatten(0, 1))
    variance = flat.reshape(len(k), len(names)) + kappa * blurred
    tables = (gone, variance, (towards.square().sum(2) - noise).clamp(min=1e-12))
    where = (k[:, None], names)
    return _Gone(*(torch.zeros(2 * (len(own.counts),)).double().index_put(where, table) for table in tables))


class _Margins(NamedTuple):
    """By how much the logarithm of a ratio must be larger."""

    both: float
    """If both classes speak: the client has several examples of each, and both went more than half the way."""
    single: float
    """If one of them hardly speaks."""
    alone: float
    """If it has none of one of them."""


def _likeliest(pairing: Pairing, table: _Gone, tests: int, margins: _Margins) -> list[tuple[int, int]]:
    """Return the pair of names that is likeliest swapped, if it surely is; [] otherwise."""
    counts, known = pairing.own.counts, pairing.other.counts >= LEAST
    ways, ratios = table.gone / table.whole.clamp(min=1e-12), table.ratios()
    here, lacking = (counts > 0) & known, (counts == 0) & known
    enough = (counts[:, None] + counts >= FEWEST) & here[:, None]
    looked = (enough & here).triu(1), enough & lacking
    pairs = max(sum(int(some.sum()) for some in looked), 1)
    several, less = torch.minimum(counts[:, None], counts) >= FEWEST, torch.minimum(ways, ways.T)
    both, alone = looked[0] & (less > torch.where(several, SOME, HALF)), looked[1] & (ways > WAY)
    speak = several & (less > HALF)
    mutual = ratios + ratios.T - torch.where(speak, margins.both, margins.single)
    scores = torch.where(both, mutual, torch.where(alone, ratios - margins.alone, -torch.inf))
    k, m = divmod(int(scores.argmax()), len(counts))
    if float(scores[k, m]) <= math.log(pairs * tests / ALARMS):
        return []
    return [(k, m), (m, k)] if bool(both[k, m]) else [(k, m)]
