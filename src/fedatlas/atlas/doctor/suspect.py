"""What the doctor says about one client."""

from __future__ import annotations

from dataclasses import dataclass

FALSE_ALARMS = 0.05
"""The chance that a test accuses any client of a federation without a fault: each of C is tested at this / C."""

BEYOND, FAR_BEYOND = 3.0, 4.0
"""Standard deviations of noise; chance alone gives as many to one of 700 and of 30,000."""


@dataclass(frozen=True)
class Cells:
    """How a reader sees a fault in a spreadsheet."""

    how: str
    """What to do there, and what to expect: which rows to keep, what to count or to average."""
    columns: tuple[str, ...] = ()
    """The heads of a small table of what there is to see; () if ``how`` says it all."""
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Suspect:
    """A client, what is the matter with its data, and how that is known."""

    client: str
    kind: str
    """Such as ``labels-noisy``; the same fault always has the same kind."""
    reason: str
    """One sentence in plain words."""
    look: str
    """What a person should look at."""
    card: str
    """The same for the client itself, without a word about other clients' data."""
    column: str | None = None
    """The column that is wrong, of a table."""
    figure: str = ""
    """What a test gave, for those who know it, such as ``z = 5.1``."""
    cells: Cells | None = None
    """How to see it in a spreadsheet, of a table."""


def beyond_chance(z: float) -> str:
    """Return in words how far beyond chance a finding is that so many standard deviations of noise speak for.

    >>> beyond_chance(2.0), beyond_chance(3.0), beyond_chance(5.0)
    ('more than chance usually gives', 'beyond chance', 'far beyond chance')
    """
    if z < BEYOND:
        return "more than chance usually gives"
    return "far beyond chance" if z >= FAR_BEYOND else "beyond chance"


def threshold(tests: int, alarms: float = FALSE_ALARMS) -> float:
    """Return the z above which one of so many tests is an alarm: Phi^-1(1 - alarms / tests).

    >>> round(threshold(1), 3), round(threshold(100), 3)
    (1.645, 3.291)
    """
    from scipy.special import ndtri  # here, as it takes longer to load than all of this package

    return float(ndtri(1 - alarms / max(tests, 1)))
