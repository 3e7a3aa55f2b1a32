"""Whether a client calls classes by other names than its reference does.

D_kl is the squared distance of class k of the client from class l of the reference, less its noise, and rho = 1 - D of
the best matching / D of equal names. A class may be matched with one that the client lacks. Names are swapped if the
client differs at all (z is an alarm), rho is at least 0.6, the matching is not that of equal names, and it explains
what is seen: z of the rest is below 4, or rho above 0.8.
"""

from __future__ import annotations

from typing import NamedTuple

from fedatlas.atlas.doctor.reference import Pairing
from fedatlas.atlas.doctor.suspect import threshold

EXPLAINED, SURELY = 0.6, 0.8
UNEXPLAINED = 4.0


class Renaming(NamedTuple):
    """The best matching of a client's classes with its reference's."""

    classes: tuple[tuple[int, int], ...]
    """(what the client calls it, what the others call it), where the two are not the same."""
    explained: float
    """rho."""
    z: float
    """How far the client is from its reference, by equal names."""
    residual: float
    """The same by the matching."""

    def accuses(self, tests: int) -> bool:
        """Return whether names are swapped, one client of ``tests``."""
        if not self.classes or self.z <= threshold(tests) or self.explained < EXPLAINED:
            return False
        return self.residual < UNEXPLAINED or self.explained > SURELY


def renaming_of(pairing: Pairing) -> Renaming:
    """Return the best matching of a client's classes with its reference's."""
    matched, after = pairing.match()
    before = pairing.excess()
    total = float(before.sum())
    return Renaming(
        classes=tuple((k, m) for k, m in zip(pairing.shared.tolist(), matched.tolist(), strict=True) if k != m),
        explained=min(1 - float(after.sum()) / total, 1.0) if total > 0 else 0.0,
        z=pairing.z(before),
        residual=pairing.z(after),
    )
