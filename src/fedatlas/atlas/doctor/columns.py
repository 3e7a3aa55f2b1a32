"""What a client tells about the columns of its table, and which columns are wrong.

Stands for missing   a value such as 0, -9 or 999 at the end of a column, at least 3 times and in more than 1 % of the
                     cells, farther than 2 interquartile ranges (IQR) from the others' quartile, with a gap of an IQR to
                     the rest of the column
Scale                the median and the width from 10 to 90 % differ from the others' by the same factor, of at least
                     1.8, and twice as much as most others differ among themselves
Constant             one value only, where chance would not give that: others' commonest value has share p, and
                     p^n < 0.05 / (clients x columns)

Quantiles are of a column without the values that stand for missing. A client sends no value of a person: of codes
counts only, and quantiles from ten cells on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedatlas.atlas.doctor.suspect import FALSE_ALARMS

CODES = (0.0, -1.0, *(sign * nines for nines in (9.0, 99.0, 999.0, 9999.0, 99999.0) for sign in (1, -1)))
"""Values that people write for what was not measured."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
FEWEST_CELLS = 10
"""Cells that a column's quantiles need."""
TIMES, SHARE = 3, 0.01
FAR, GAP = 2.0, 1.0
"""In interquartile ranges."""
DISTINCT = 8
"""Values that a column has at least if it measures something; fewer are grades or yes and no."""
FACTOR, APART, AGREE, SPREAD = 1.8, 2.0, 1.5, 0.8
"""The least factor, by how much it exceeds the others' spread, how far median and width may differ, and the quantile of
the others' factors that is called their spread."""


@dataclass(frozen=True)
class Code:
    """A value that may stand for missing, at the low or the high end of a column."""

    value: float
    count: int
    nearest: float | None
    """The rest's 2.5 % or 97.5 % quantile, whichever is on the code's side; None if the column has nothing else."""


@dataclass(frozen=True)
class ColumnFigures:
    """What one client tells about one column of numbers."""

    count: int
    """Cells that are there."""
    missing: int
    distinct: int
    """Different values, without codes; at most ``DISTINCT`` is told."""
    quantiles: tuple[float, ...] | None
    """Without codes; None of fewer than ten cells."""
    codes: tuple[Code, ...]
    commonest: int
    """How often the commonest value occurs, codes included."""


def describe_columns(values: NDArray[np.float64]) -> list[ColumnFigures]:
    """Return one client's figures about columns of numbers, (rows, columns); NaN is a missing cell."""
    return [_describe(column) for column in values.T]


def _describe(column: NDArray[np.float64]) -> ColumnFigures:
    here = column[np.isfinite(column)]
    values, counts = np.unique(here, return_counts=True)
    codes = []
    for end in {0, len(values) - 1} if len(values) else ():
        if float(values[end]) in CODES and counts[end] >= TIMES and counts[end] > SHARE * len(here):
            rest = here[here != values[end]]
            side = 0.025 if end == 0 and len(values) > 1 else 0.975
            nearest = float(np.quantile(rest, side)) if len(rest) >= FEWEST_CELLS else None
            codes.append(Code(float(values[end]), int(counts[end]), nearest))
    rest = here[~np.isin(here, [code.value for code in codes])]
    return ColumnFigures(
        count=len(here),
        missing=len(column) - len(here),
        distinct=min(len(np.unique(rest)), DISTINCT),
        quantiles=tuple(map(float, np.quantile(rest, QUANTILES))) if len(rest) >= FEWEST_CELLS else None,
        codes=tuple(codes),
        commonest=int(counts.max()) if len(here) else 0,
    )


@dataclass(frozen=True)
class Fault:
    """A column of a client that is wrong."""

    client: int
    column: int
    kind: str
    """``missing-coded``, ``other-scale`` or ``constant``."""
    value: float
    """The code, the factor, or how many cells have the one value."""
    count: int
    """Cells that are concerned."""
    of: int
    """Cells that are there."""


def find_faults(figures: Sequence[Sequence[ColumnFigures]]) -> list[Fault]:
    """Return the wrong columns, clients in order; ``figures`` are clients x columns."""
    tests = len(figures) * max(len(figures[0]), 1) if figures else 1
    found = []
    for j, column in enumerate(zip(*figures, strict=True)):
        usual = _middle([size for one in column if (size := _sizes(one)) is not None])
        for i, own in enumerate(column):
            # The others of each are listed only where something may be wrong: there may be a thousand.
            if own.count and (own.codes or own.commonest == own.count or _may_differ(own, usual)):
                others = [*column[:i], *column[i + 1 :]]
                found += [Fault(i, j, *fault) for fault in _faults(own, others, tests)]
    return sorted(found, key=lambda fault: (fault.client, fault.column))


def _faults(own: ColumnFigures, others: Sequence[ColumnFigures], tests: int) -> list[tuple[str, float, int, int]]:
    coded = next((code for code in own.codes if stands_for_missing(code, own, others)), None)
    if coded is not None:
        return [("missing-coded", coded.value, coded.count, own.count)]
    if is_constant(own, others, tests):
        return [("constant", float(own.commonest), own.count, own.count)]
    factor = other_scale(own, others)
    return [] if factor is None else [("other-scale", factor, own.count, own.count)]


def stands_for_missing(code: Code, own: ColumnFigures, others: Sequence[ColumnFigures]) -> bool:
    """Return whether a code is not a measurement, by the quartiles of the others, or of its own column if need be."""
    known = [one.quantiles for one in others if one.quantiles is not None and one.distinct >= DISTINCT]
    if not known and own.quantiles is not None and own.distinct >= DISTINCT:
        known = [own.quantiles]
    if not known:
        return False
    low, high = (float(np.median([quantiles[j] for quantiles in known])) for j in (1, 3))
    width = high - low
    if width <= 0 or low - FAR * width <= code.value <= high + FAR * width:
        return False
    return code.nearest is None or abs(code.nearest - code.value) > GAP * width


def other_scale(own: ColumnFigures, others: Sequence[ColumnFigures]) -> float | None:
    """Return the factor by which a column is larger than the others', if it is on another scale."""
    sizes = [size for one in others if (size := _sizes(one)) is not None]
    mine = _sizes(own)
    if mine is None or len(sizes) < 2:
        return None
    usual = _middle(sizes)
    factors = [math.log(mine[j] / usual[j]) for j in range(2)]
    spread = float(np.quantile([abs(math.log(size[0] / usual[0])) for size in sizes], SPREAD))
    agree = abs(factors[0] - factors[1]) < math.log(AGREE)
    if not agree or min(map(abs, factors)) < max(math.log(FACTOR), APART * spread):
        return None
    return math.exp(factors[0])


def _middle(sizes: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of each size; 0 of none."""
    return (float(np.median([a for a, _ in sizes])), float(np.median([b for _, b in sizes]))) if sizes else (0.0, 0.0)


def _may_differ(own: ColumnFigures, usual: tuple[float, float]) -> bool:
    """Return whether a column's median is far from that of all clients, itself included."""
    mine = _sizes(own)
    return mine is not None and usual[0] > 0 and abs(math.log(mine[0] / usual[0])) > math.log(FACTOR) / 3


def _sizes(figures: ColumnFigures) -> tuple[float, float] | None:
    """Return |median| and width of a column; None of one that has neither, or whose values are few."""
    if figures.quantiles is None or figures.distinct < DISTINCT:
        return None
    low, _, middle, _, high = figures.quantiles
    return (abs(middle), high - low) if middle != 0 and high > low else None


def is_constant(own: ColumnFigures, others: Sequence[ColumnFigures], tests: int) -> bool:
    """Return whether a column has one value where the others vary beyond chance."""
    if own.commonest < own.count or not others:
        return False
    shares = [one.commonest / one.count for one in others if one.count >= FEWEST_CELLS]
    if not shares or max(shares) == 1:
        return False
    # The most even of chances: the largest share of a value at any other client.
    return own.count * math.log(max(shares)) < math.log(FALSE_ALARMS / tests)
