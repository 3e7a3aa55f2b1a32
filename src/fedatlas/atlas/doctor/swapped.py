"""Whether a client calls classes by other names than its reference does.

D_kl is the squared distance of class k of the client from class l of the reference, less its noise; the best matching
of the client's classes with the reference's gives class k the name l(k). A class may be matched with one that the
client lacks. Over the classes whose names differ, with d_k = M_l(k) - M_k:

    z   = sum of ( <m_k - M_k, d_k> - v_k ) / sd        0 with right names, and chance moves it little: one direction
    way = the same sum / sum of ( |d_k|^2 - noise )     0 with right names, 1 with swapped ones

Names are swapped if z is above 6, the way is at least 0.8, and the matching explains what is seen: by equal names less
than 4 standard deviations of noise are left, or it takes away more than 0.8 of D. The matching is the best of many, and
tails are longer than a normal's: of 7,000 clients with right names chance brought one to 4.8.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fedatlas.atlas.doctor.reference import Pairing

SURE, WAY = 6.0, 0.8
SURELY, UNEXPLAINED = 0.8, 4.0


class Renaming(NamedTuple):
    """The best matching of a client's classes with its reference's."""

    classes: tuple[tuple[int, int], ...]
    """(what the client calls it, what the others call it), where the two are not the same."""
    explained: float
    """rho = 1 - D of the matching / D of equal names."""
    residual: float
    """How far the client is from its reference by the matching, in standard deviations of noise."""
    along: float
    """z."""
    way: float

    def accuses(self) -> bool:
        """Return whether names are swapped."""
        if not self.classes or self.along <= SURE or self.way < WAY:
            return False
        return self.residual < UNEXPLAINED or self.explained > SURELY


def renaming_of(pairing: Pairing) -> Renaming:
    """Return the best matching of a client's classes with its reference's."""
    matched, after = pairing.match()
    total = float(pairing.excess().sum())
    moved = pairing.shared != matched
    along, way = _along(pairing, pairing.shared[moved], matched[moved])
    return Renaming(
        classes=tuple(zip(pairing.shared[moved].tolist(), matched[moved].tolist(), strict=True)),
        explained=min(1 - float(after.sum()) / total, 1.0) if total > 0 else 0.0,
        residual=pairing.z(after),
        along=along,
        way=way,
    )


def _along(pairing: Pairing, classes: Tensor, names: Tensor) -> tuple[float, float]:
    """Return z and the way of classes, (n,), towards the names, (n,), that they are matched with; 0 of none."""
    own, other = pairing.own, pairing.other
    if not len(classes):
        return 0.0, 0.0
    towards = other.means[names] - other.means[classes]
    noise = other.variances[classes] + other.variances[names]
    gone = ((own.means[classes] - other.means[classes]) * towards).sum(1) - other.variances[classes]
    # The noise of the direction itself matters where the reference is small.
    kappa = (own.anisotropy[classes] * other.anisotropy[classes]).sqrt()
    blurred = own.variances[classes] * noise + other.variances[classes] * (other.variances[classes] + noise)
    variance = (pairing.variance_along(classes, towards) + kappa * blurred).sum()
    whole = (towards.square().sum(1) - noise).sum().clamp(min=1e-12)
    total = gone.sum()
    return float(total / variance.clamp(min=1e-300).sqrt()), float(total / whole)
