"""From a table's cells to a model's inputs: scaled numbers, filled gaps and one entry for each category.

The statistics are the federation's, from sums that every client can send (``ColumnSums``), so the same cell becomes the
same input at every client, and no row leaves its client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.table import CATEGORY, EMPTY, NUMBER, ColumnSums, Floats, Table, fit_columns
from fedatlas.errors import DataError

MISSING = "missing"
"""The name of the entry that says that a cell is missing."""
_CONSTANT = 1e-14
"""A variance below this share of the mean square is rounding: the column does not vary."""


@dataclass(frozen=True, kw_only=True)
class PreparedColumn:
    """How one column becomes entries of the inputs."""

    name: str
    kind: str
    mean: float = 0.0
    std: float = 1.0
    """Of a number: it becomes (x - mean) / std, and a missing one 0, the mean."""
    categories: tuple[str, ...] = ()
    """Of a category: one entry each, 1 where it holds; an unknown one is 0 everywhere."""
    indicator: bool = False
    """Whether a further entry is 1 where the cell is missing."""

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entries that the column becomes."""
        own = (self.name,) if self.kind == NUMBER else tuple(f"{self.name}={name}" for name in self.categories)
        return (*own, f"{self.name} {MISSING}") if self.indicator else own


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How every table of a federation becomes inputs."""

    columns: tuple[PreparedColumn, ...]
    fixed: bool = False
    """Whether it came with a model, and so does not follow the clients that are there now."""

    @classmethod
    def from_sums(cls, sums: Iterable[ColumnSums], *, whole: bool = False) -> Preparation:
        """Return the preparation that clients' sums make together; they are added in the order given.

        The sums are of training rows, or of a ``whole`` table.

        mean = total / count, std = sqrt(squares / count - mean^2); std is 1 where a column does not vary. A column with
        a missing cell gets an indicator; one without any cell becomes nothing.
        """
        joined = reduce(ColumnSums.add, sums)
        count = np.maximum(joined.count, 1)
        mean = joined.total / count
        square = joined.squares / count
        variance = square - np.square(mean)
        std = np.sqrt(np.where(variance > _CONSTANT * square, variance, 1.0))
        columns = []
        for j, name in enumerate(joined.columns):
            kind = joined.kinds[j] if joined.count[j] else EMPTY
            column = PreparedColumn(name=name, kind=kind)
            if kind == NUMBER:
                column = replace(column, mean=float(mean[j]), std=float(std[j]))
            if kind != EMPTY:
                column = replace(column, categories=joined.categories[j], indicator=bool(joined.missing[j]))
            columns.append(column)
        if not any(column.entries for column in columns):
            said = "no column holds a value, so there is nothing to learn from. Check the columns that are left beside "
            said += "client and label."
            if not whole:
                rows = int(joined.count[0] + joined.missing[0])
                said = f"none of the {rows:,} training rows has a value in any column: the rows that have one are kept "
                said += "for the test, or belong to clients that do not train. Add rows, or draw others for the test "
                said += "(seed=, test_fraction=)."
            raise DataError(said, code="data-empty", what="columns")
        return cls(columns=tuple(columns))

    @classmethod
    def unscaled(cls, table: Table) -> Preparation:
        """Return the preparation that uses no statistics: numbers as they are, with 0 where they are missing."""
        plain = cls.from_sums([table.sums()], whole=True)
        return replace(plain, columns=tuple(replace(column, mean=0.0, std=1.0) for column in plain.columns))

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the inputs' entries, such as ``age``, ``chol missing`` and ``thal=fixed``."""
        return tuple(entry for column in self.columns for entry in column.entries)

    @property
    def width(self) -> int:
        """How many entries the inputs have."""
        return len(self.entries)

    def inputs(self, table: Table) -> NDArray[np.float32]:
        """Return a table's inputs, (rows, width); raise DataError if it has other columns."""
        order = self.places(table.columns, table.kinds)
        parts = [_entries(column, table, j) for column, j in zip(self.columns, order, strict=True)]
        inputs = np.concatenate([part for part in parts if part.shape[1]], 1)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(inputs, dtype=np.float32)

    def places(self, columns: tuple[str, ...], kinds: tuple[str, ...]) -> list[int]:
        """Return where each column stands in a table; raise DataError if the table has other columns."""
        own = [column.name for column in self.columns]
        return fit_columns(own, [column.kind for column in self.columns], columns, kinds)

    def unknown(self, table: Table) -> dict[str, dict[str, int]]:
        """Return the categories of a table that have no entry, by column, with the number of their rows."""
        found = {}
        for column, j in zip(self.columns, self.places(table.columns, table.kinds), strict=True):
            names = table.categories[j] if column.kind == CATEGORY else ()
            counts = {
                name: int((table.values[:, j] == i).sum())
                for i, name in enumerate(names)
                if name not in column.categories
            }
            if counts := {name: count for name, count in counts.items() if count}:
                found[column.name] = counts
        return found

    def lines(self) -> list[str]:
        """Return what the preparation does to the columns, in words."""
        empty = [column.name for column in self.columns if not column.entries]
        filled = [column.name for column in self.columns if column.indicator]
        numbers, categories = (sum(column.kind == kind for column in self.columns) for kind in (NUMBER, CATEGORY))
        said = [
            f"{self.width} inputs from {len(self.columns)} columns: {numbers} of numbers, scaled by the mean and the "
            f"standard deviation over all training rows, and {categories} of categories, one input for each category"
        ]
        if filled:
            said.append(
                f"missing cells in {_few(filled)}: a number becomes the mean, a category none, and one more input says "
                "that the cell is missing"
            )
        if empty:
            said.append(f"left out, as no training row has a value: {_few(empty)}")
        return said

    def described(self) -> list[dict[str, Any]]:
        """Return the columns as plain values, for a run's record or a message."""
        return [{**vars(column), "categories": list(column.categories)} for column in self.columns]

    @classmethod
    def from_described(cls, columns: Iterable[Mapping[str, Any]]) -> Preparation:
        """Return the preparation that came with a model, from its plain values."""
        read = (
            PreparedColumn(
                name=str(one["name"]),
                kind=str(one["kind"]),
                mean=float(one["mean"]),
                std=float(one["std"]),
                categories=tuple(map(str, one["categories"])),
                indicator=bool(one["indicator"]),
            )
            for one in columns
        )
        return cls(columns=tuple(read), fixed=True)


def _entries(column: PreparedColumn, table: Table, j: int) -> Floats:
    """Return the entries that a table's column becomes, (rows, entries)."""
    values = table.values[:, j]
    missing = np.isnan(values)
    parts: list[Floats] = []
    if column.kind == NUMBER:
        parts.append(np.where(missing, 0.0, (values - column.mean) / column.std)[:, None])
    elif column.kind == CATEGORY:
        names = table.categories[j] or ("",)
        known = np.array([[name == own for own in column.categories] for name in names], np.float64)
        parts.append(np.where(missing[:, None], 0.0, known[np.where(missing, 0, values).astype(int)]))
    if column.indicator:
        parts.append(missing[:, None].astype(np.float64))
    return np.concatenate(parts, 1) if parts else np.zeros((len(values), 0))


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
