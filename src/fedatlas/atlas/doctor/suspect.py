"""What the doctor says about one client."""

from __future__ import annotations

from dataclasses import dataclass

FALSE_ALARMS = 0.05
"""The chance that a test accuses any client of a federation without a fault: each of C is tested at this / C."""


@dataclass(frozen=True)
class Suspect:
    """A client, what is the matter with its data, and how that is known."""

    client: str
    kind: str
    """Such as ``labels-noisy``; the same fault always has the same kind."""
    reason: str
    """One sentence, with numbers."""
    look: str
    """What a person should look at."""
    card: str
    """The same for the client itself, without a word about other clients' data."""
    column: str | None = None
    """The column that is wrong, of a table."""


def threshold(tests: int, alarms: float = FALSE_ALARMS) -> float:
    """Return the z above which one of so many tests is an alarm: Phi^-1(1 - alarms / tests).

    >>> round(threshold(1), 3), round(threshold(100), 3)
    (1.645, 3.291)
    """
    from scipy.special import ndtri  # here, as it takes longer to load than all of this package

    return float(ndtri(1 - alarms / max(tests, 1)))
