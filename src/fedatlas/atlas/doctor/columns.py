"""What a client tells about the columns of its table, and which columns are wrong.

Stands for missing   a value such as 0, -9 or 999, at least 3 times and in more than 1 % of the cells, and alone: no
                     other cell of the client is near it, and none of another client at it or beyond; or it is beyond 2
                     interquartile ranges (IQR) from the others' quartile, where fewer than 0.5 % of all clients' cells
                     are. Where it is not 5 times as frequent as at the others' median, it is a remark about the column
Scale                the median, the IQR and the width from 10 to 90 % differ from the others' by the same factor, which
                     is one between units or at least 5, and three times what others differ among themselves
Constant             one value only, where chance would not give that: others' commonest value has share p, and
                     p^n < 0.05 / (clients x columns)

Quantiles are of a column without such values at its ends. A client sends no value of a person: counts only, of a value
such as 0 from three cells on, and quantiles from ten cells on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedatlas.atlas.doctor.suspect import FALSE_ALARMS

CODES = (0.0, -1.0, *(sign * nines for nines in (9.0, 99.0, 999.0, 9999.0, 99999.0) for sign in (1, -1)))
"""Values that people write for what was not measured."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
FEWEST_CELLS = 10
"""Cells that a column's quantiles need."""
TIMES, SHARE = 3, 0.01
FAR, NEAR, FAR_NEAR = 2.0, 0.1, 1.0
"""In interquartile ranges: a value so much beyond a quartile is far; what is near a value, and near one that is far."""
ALONE = 0.005
"""The share of all clients' cells that may be as far out as a value that stands for missing."""
OFTENER = 5.0
"""How many times as often as at the others' median such a value is at a client that is named for it."""
DISTINCT = 8
"""Values that a column has at least if it measures something; fewer are grades or yes and no."""
UNITS = (1.6093, 2.2046, 2.54, 3.2808, 4.184, 7, 10, 12, 18.02, 24, 28.35, 30.44, 38.67, 52.18, 60, 88.4, 88.57, 100)
"""Factors between units that people use: of lengths, weights, energies, times, and of glucose and fats in blood."""
LEAST_UNIT, LARGE_UNIT, LARGE = 1.5, 2.3, 5.0
"""Smaller factors are no unit's; above the second one may be less near a unit; above the third it need not be near."""
UNIT_NEAR, UNIT_ABOUT = 0.04, 0.10
"""How far the logarithm of a factor may be from that of a unit."""
APART, FAR_APART = 3.0, 5.0
"""How many times what others differ a factor is, and a small one, as logarithms."""
AGREE, AGREE_SHARE, SPREAD = 0.35, 0.25, 0.9
"""How far the logarithms of the three factors may be apart, the same as a share of a large one, and the quantile of
others' factors that is their spread."""


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
    commonest: int
    """How often the commonest value occurs, codes included."""
    tails: tuple[int, int]
    """Cells farther than ``FAR`` IQR below and above its quartiles, codes included; zeros without quantiles."""
    codes: tuple[tuple[int, int, int], ...]
    """For each of ``CODES``: how many cells are equal to it, 0 if fewer than ``TIMES``; how many less, with such few if
    it is below the median; and how many others near it: within ``NEAR`` IQR, ``FAR_NEAR`` if it is far, or a step."""


def describe_columns(values: NDArray[np.float64]) -> list[ColumnFigures]:
    """Return one client's figures about columns of numbers, (rows, columns); NaN is a missing cell."""
    return [_describe(column) for column in values.T]


def _describe(column: NDArray[np.float64]) -> ColumnFigures:
    here = column[np.isfinite(column)]
    values, counts = np.unique(here, return_counts=True)
    ends = [values[end] for end in {0, len(values) - 1} if len(values) and _often(int(counts[end]), len(here))]
    rest = here[~np.isin(here, [value for value in ends if float(value) in CODES])]
    quantiles = tuple(map(float, np.quantile(rest, QUANTILES))) if len(rest) >= FEWEST_CELLS else None
    upto = np.concatenate([[0], counts.cumsum()])

    def less(than: NDArray[np.float64], side: Literal["left", "right"] = "left") -> NDArray[np.int64]:
        return upto[np.searchsorted(values, than, side)].astype(np.int64)

    codes = np.array(CODES)
    below, equal = less(codes), less(codes, "right") - less(codes)
    few = equal < TIMES
    below += np.where(few & (codes < (np.median(here) if len(here) else 0.0)), equal, 0)
    equal = np.where(few, 0, equal)
    reach, tails = np.zeros(len(codes)), (0, 0)
    if quantiles is not None:
        width = _width(quantiles)
        edges = quantiles[1] - FAR * width, quantiles[3] + FAR * width
        # In steps, as whole numbers have them, the next value is no gap.
        steps = np.diff(np.unique(rest))
        reach = np.where((codes < edges[0]) | (codes > edges[1]), FAR_NEAR, NEAR) * width
        reach = np.maximum(reach, np.median(steps) if len(steps) else 0.0)
        tails = (int(less(np.array(edges))[0]), len(here) - int(less(np.array(edges), "right")[1]))
    near = less(codes + reach, "right") - less(codes - reach) - equal
    return ColumnFigures(
        count=len(here),
        missing=len(column) - len(here),
        distinct=min(len(np.unique(rest)), DISTINCT),
        quantiles=quantiles,
        commonest=int(counts.max()) if len(here) else 0,
        tails=tails,
        codes=tuple(zip(equal.tolist(), below.tolist(), near.tolist(), strict=True)),
    )


def _often(times: int, cells: int) -> bool:
    """Return whether a value occurs so often that it may stand for missing."""
    return times >= TIMES and times > SHARE * cells


def _width(quantiles: Sequence[float]) -> float:
    """Return the interquartile range, or half the range from 10 to 90 % where half of all values are equal."""
    low, first, _, third, high = quantiles
    return third - first if third > first else (high - low) / 2


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


@dataclass(frozen=True)
class Everywhere:
    """A value that stands alone in a column and may stand for missing, at most clients alike."""

    column: int
    value: float
    counts: tuple[int, ...]
    """Of each client, the cells that have it; 0 if they are fewer than three."""


def find_faults(figures: Sequence[Sequence[ColumnFigures]]) -> tuple[list[Fault], list[Everywhere]]:
    """Return the wrong columns, clients in order, and values that stand alone in a column of most clients.

    ``figures`` are clients x columns.
    """
    tests = len(figures) * max(len(figures[0]), 1) if figures else 1
    found, common = [], []
    for j, column in enumerate(zip(*figures, strict=True)):
        coded, everywhere = _coded(column)
        common += [Everywhere(j, CODES[k], tuple(one.codes[k][0] for one in column)) for k in everywhere]
        usual = _usual(column)
        for i, own in enumerate(column):
            if i in coded:
                found.append(Fault(i, j, "missing-coded", CODES[coded[i]], own.codes[coded[i]][0], own.count))
            # The others of each are listed only where something may be wrong: there may be a thousand.
            elif own.count and (own.commonest == own.count or _may_differ(own, usual)):
                others = [*column[:i], *column[i + 1 :]]
                found += [Fault(i, j, *fault) for fault in _faults(own, others, tests)]
    return sorted(found, key=lambda fault: (fault.client, fault.column)), common


def _faults(own: ColumnFigures, others: Sequence[ColumnFigures], tests: int) -> list[tuple[str, float, int, int]]:
    if is_constant(own, others, tests):
        return [("constant", float(own.commonest), own.count, own.count)]
    factor = other_scale(own, others)
    return [] if factor is None else [("other-scale", factor, own.count, own.count)]


def _coded(column: Sequence[ColumnFigures]) -> tuple[dict[int, int], list[int]]:
    """Return which code stands for missing at which client, and codes that stand alone at most clients alike."""
    often = [[_often(equal, own.count) for equal, _, _ in own.codes] for own in column]
    if not any(map(any, often)):
        return {}, []
    codes = np.array([own.codes for own in column])
    counts = np.array([own.count for own in column])
    tails = np.array([own.tails for own in column])
    quantiles = np.array([(math.nan,) * len(QUANTILES) if own.quantiles is None else own.quantiles for own in column])
    widths = np.array([math.nan if own.quantiles is None else _width(own.quantiles) for own in column])
    measured = np.array([own.distinct >= DISTINCT for own in column]) & np.isfinite(widths)
    shares = codes[:, :, 0] / np.maximum(counts, 1)[:, None]
    found: dict[int, int] = {}
    common: set[int] = set()
    for i, k in np.argwhere(often).tolist():
        others = np.arange(len(column)) != i
        known = others & measured
        if not known.any():
            known = ~others & measured
        if i in found or not known.any():
            continue
        value = CODES[k]
        low, high = np.median(quantiles[known][:, [1, 3]], axis=0)
        width = high - low if high > low else float(np.median(widths[known]))
        if width <= 0:
            continue
        alone = _is_outermost(codes[:, k], counts, i)
        if not alone and not low - FAR * width <= value <= high + FAR * width:
            side = int(value > high)
            edges = quantiles[:, 1 + 2 * side] + (2 * side - 1) * FAR * widths
            beyond = edges < value if side else edges > value
            far = tails[:, side] - np.where(beyond, codes[:, k, 0], 0)
            alone = far.sum() <= ALONE * (counts - codes[:, k, 0]).sum()
        if not alone:
            continue
        compared = shares[others & (counts >= FEWEST_CELLS), k]
        if len(compared) and OFTENER * float(np.median(compared)) >= shares[i, k]:
            common.add(k)
        else:
            found[i] = k
    return found, sorted(common)


def _is_outermost(codes: NDArray[np.int64], counts: NDArray[np.int64], client: int) -> bool:
    """Return whether no cell of another client is at a value or beyond it, and none of the client's own near it."""
    equal, below, near = codes.T
    others = np.arange(len(codes)) != client
    if near[client] or not others.any():
        return False
    under, over = below + equal, counts - below
    under[client], over[client] = below[client], over[client] - equal[client]
    return bool((under == 0).all() or (over == 0).all())


def other_scale(own: ColumnFigures, others: Sequence[ColumnFigures]) -> float | None:
    """Return the factor by which a column is larger than the others', if it is on another scale."""
    known = [one.quantiles for one in others if _sizes(one) is not None and one.quantiles is not None]
    mine = _sizes(own)
    if mine is None or len(known) < 2:
        return None
    usual = _of_quantiles(np.median(known, axis=0))
    if min(*mine, *usual) <= 0:
        return None
    factors = np.log(np.divide(mine, usual))
    factor = float(np.median(factors))
    natural = np.log(np.clip([_of_quantiles(np.array(one)) for one in known], 1e-12, None) / usual)
    spread = float(np.quantile(np.abs(np.median(natural, axis=1)), SPREAD))
    if np.ptp(factors) > max(AGREE, AGREE_SHARE * abs(factor), 2 * float(np.median(np.ptp(natural, axis=1)))):
        return None
    return math.exp(factor) if _is_unit(abs(factor), abs(float(factors[0])), spread) else None


def _is_unit(factor: float, of_medians: float, spread: float) -> bool:
    """Return whether the logarithm of a factor is one between units.

    ``of_medians`` is another estimate of it, often a better one; ``spread`` is how much others differ.
    """
    if factor < max(math.log(LEAST_UNIT), APART * spread):
        return False
    units = [unit for unit in map(math.log, UNITS) if abs(factor - unit) < UNIT_ABOUT + spread]
    near = any(min(abs(factor - unit), abs(of_medians - unit)) < UNIT_NEAR for unit in units)
    if factor > math.log(LARGE) or (near and factor > FAR_APART * spread):
        return True
    return bool(units) and factor > math.log(LARGE_UNIT)


def _usual(column: Sequence[ColumnFigures]) -> tuple[float, float, float]:
    """Return the median over clients of each size; zeros of none."""
    sizes = [size for one in column if (size := _sizes(one)) is not None]
    first, second, third = np.median(sizes, axis=0).tolist() if sizes else (0.0, 0.0, 0.0)
    return first, second, third


def _may_differ(own: ColumnFigures, usual: tuple[float, float, float]) -> bool:
    """Return whether a column's median and a width are far from those of all clients, itself included."""
    mine = _sizes(own)
    if mine is None or min(*mine, *usual) <= 0:
        return False
    of_median, *of_widths = (abs(math.log(one / other)) for one, other in zip(mine, usual, strict=True))
    return min(of_median, max(of_widths)) > math.log(LEAST_UNIT) / 3


def _sizes(figures: ColumnFigures) -> tuple[float, float, float] | None:
    """Return |median|, the width from 10 to 90 % and the IQR; None of a column whose values are few."""
    if figures.quantiles is None or figures.distinct < DISTINCT:
        return None
    return _of_quantiles(np.array(figures.quantiles))


def _of_quantiles(quantiles: NDArray[np.float64]) -> tuple[float, float, float]:
    low, first, middle, third, high = quantiles.tolist()
    return abs(middle), high - low, third - first


def is_constant(own: ColumnFigures, others: Sequence[ColumnFigures], tests: int) -> bool:
    """Return whether a column has one value where the others vary beyond chance."""
    if own.commonest < own.count or not others:
        return False
    shares = [one.commonest / one.count for one in others if one.count >= FEWEST_CELLS]
    if not shares or max(shares) == 1:
        return False
    # The most even of chances: the largest share of a value at any other client.
    return own.count * math.log(max(shares)) < math.log(FALSE_ALARMS / tests)
