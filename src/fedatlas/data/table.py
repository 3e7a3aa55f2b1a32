"""A table of measurements: columns of numbers and of categories, with missing cells kept as missing.

``ColumnSums`` are what a client tells about its columns: counts, sums and sums of squares. Added up over clients they
make a ``Preparation``, which turns any client's table into inputs of one form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import DataError

NUMBER, CATEGORY, EMPTY = "number", "category", "empty"
KINDS = (NUMBER, CATEGORY, EMPTY)
"""Of columns; an empty one has no cell from which its kind could be told."""
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The cells of a table's columns, before anything is filled in or scaled."""

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    """``number``, ``category`` or ``empty``, of each column."""
    values: Floats
    """(rows, columns); NaN is a missing cell, and a category is its position in ``categories``."""
    categories: tuple[tuple[str, ...], ...]
    """The names of each column's categories, in order; () for other columns."""
    dropped: tuple[str, ...] = ()
    """Columns of the file that were left out on demand."""

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        counts = [f"{self.kinds.count(kind)} of kind {kind}" for kind in KINDS if kind in self.kinds]
        return f"Table({len(self):,} rows, columns: {', '.join(counts)}; {int(self.missing.sum()):,} cells missing)"

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells are missing, (rows, columns)."""
        return np.isnan(self.values)

    def column(self, name: str) -> Floats:
        """Return one column's values, (rows,)."""
        return self.values[:, self.columns.index(name)]

    def take(self, rows: NDArray[np.int64]) -> Table:
        """Return a table of some of the rows."""
        return replace(self, values=self.values[rows])

    def sums(self, rows: NDArray[np.int64] | None = None) -> ColumnSums:
        """Return the sums of some rows, or of all: what one client tells about its columns."""
        values = self.values if rows is None else self.values[rows]
        here = ~np.isnan(values)
        numbers = np.where(here & (np.array(self.kinds) == NUMBER), values, 0.0)
        used = tuple(
            tuple(names[i] for i in np.unique(values[here[:, j], j]).astype(int)) if names else ()
            for j, names in enumerate(self.categories)
        )
        return ColumnSums(
            columns=self.columns,
            kinds=self.kinds,
            count=here.sum(0),
            missing=(~here).sum(0),
            total=numbers.sum(0),
            squares=np.square(numbers).sum(0),
            categories=used,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnSums:
    """The sums over the rows of one client, or of several, for each column; this is all that leaves a client."""

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    count: Counts
    """How many cells are there."""
    missing: Counts
    """How many are missing."""
    total: Floats
    """The sum of the numbers; 0 for categories."""
    squares: Floats
    """The sum of their squares."""
    categories: tuple[tuple[str, ...], ...] = field(default=())
    """The categories that occur."""

    def add(self, other: ColumnSums) -> ColumnSums:
        """Return the sums of both, with the columns in this one's order; raise DataError if they do not fit."""
        order = fit_columns(self.columns, self.kinds, other.columns, other.kinds)
        ranked = [(a, other.kinds[j]) for a, j in zip(self.kinds, order, strict=True)]
        joined = [{*a, *other.categories[j]} for a, j in zip(self.categories, order, strict=True)]
        return ColumnSums(
            columns=self.columns,
            kinds=tuple(b if a == EMPTY else a for a, b in ranked),
            count=self.count + other.count[order],
            missing=self.missing + other.missing[order],
            total=self.total + other.total[order],
            squares=self.squares + other.squares[order],
            categories=tuple(tuple(sorted(names, key=category_order)) for names in joined),
        )

    def described(self) -> dict[str, Any]:
        """Return the sums as plain values, for a message."""
        return {
            "columns": list(self.columns),
            "kinds": list(self.kinds),
            "count": self.count.tolist(),
            "missing": self.missing.tolist(),
            "total": self.total.tolist(),
            "squares": self.squares.tolist(),
            "categories": [list(names) for names in self.categories],
        }

    @classmethod
    def from_described(cls, values: Mapping[str, Any]) -> ColumnSums:
        """Return the sums from their plain values; raise DataError if they cannot be the sums of a table."""
        sums = cls(
            columns=tuple(map(str, values["columns"])),
            kinds=tuple(map(str, values["kinds"])),
            count=np.array(values["count"], np.int64),
            missing=np.array(values["missing"], np.int64),
            total=np.array(values["total"], np.float64),
            squares=np.array(values["squares"], np.float64),
            categories=tuple(tuple(map(str, names)) for names in values["categories"]),
        )
        sums.check()
        return sums

    def check(self) -> None:
        """Raise DataError if these cannot be the sums of a table."""
        width = (len(self.columns),)
        arrays = (self.count, self.missing, self.total, self.squares)
        whole = all(array.shape == width for array in arrays) and len(self.kinds) == len(self.categories) == width[0]
        if not whole or len(set(self.columns)) != width[0] or not set(self.kinds) <= set(KINDS):
            raise DataError("the sums of its columns do not fit one another", code="wrong-count", what="columns")
        with np.errstate(over="ignore"):
            # Cauchy and Schwarz: no numbers have a smaller sum of squares.
            least = np.square(self.total) / np.maximum(self.count, 1)
        counted = all(bool((array >= 0).all()) for array in (self.count, self.missing))
        finite = bool(np.isfinite(least).all() and np.isfinite(self.squares).all())
        if not counted or not finite or bool((self.squares < least * (1 - 1e-9)).any()):
            raise DataError("the sums of its columns are not those of any numbers", code="wrong-value", what="columns")


def fit_columns(
    columns: Sequence[str], kinds: Sequence[str], other: Sequence[str], other_kinds: Sequence[str]
) -> list[int]:
    """Return where each column stands in another table; raise DataError if the two do not fit."""
    known, places = set(columns), {name: j for j, name in enumerate(other)}
    missing = [name for name in columns if name not in places]
    strange = [name for name in other if name not in known]
    if missing or strange:
        lacks = f"lacks the columns {missing[:5]}" if missing else ""
        has = f"has the columns {strange[:5]}, which the others lack" if strange else ""
        raise DataError(
            f"its table {' and '.join(filter(None, (lacks, has)))}. Give all tables the same columns; one that was not "
            "measured may be empty",
            code="names-unfit",
            what="columns",
            missing=missing,
            got=strange,
        )
    order = [places[name] for name in columns]
    for name, kind, j in zip(columns, kinds, order, strict=True):
        if kind != other_kinds[j] and EMPTY not in (kind, other_kinds[j]):
            raise DataError(
                f"its column {name!r} holds {_plural(other_kinds[j])}, the others' {_plural(kind)}. Correct the cells, "
                f"or set categorical = [{name!r}] for all",
                code="kind-mismatch",
                column=name,
                got=other_kinds[j],
                wanted=kind,
            )
    return order


def category_order(name: str) -> tuple[int, float, str]:
    """Return a key that sorts numbers by their size, and before words."""
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


def _plural(kind: str) -> str:
    return {NUMBER: "numbers", CATEGORY: "categories", EMPTY: "nothing"}[kind]
