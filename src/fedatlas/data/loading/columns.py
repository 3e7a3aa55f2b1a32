"""The columns of a table: what each is for, and what its cells hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedatlas.data.loading.cells import Cells, CellTable, dropping
from fedatlas.data.table import CATEGORY, EMPTY, NUMBER, Floats, category_order
from fedatlas.errors import DataError, unknown_name

CLIENTS = ("client", "hospital", "site", "center", "centre", "clinic", "institution", "owner")
LABELS = ("label", "target", "class", "diagnosis", "outcome", "num", "y")
DOMAINS = ("domain",)
IDS = ("id", "patient", "subject", "participant", "record", "case", "row", "index", "mrn", "", "unnamed: 0")
"""The usual names of columns, in any case and written in any way; all may end in id, name or number."""
MAX_CATEGORIES = 50
"""A column of more different texts is taken for free text or names."""
_BETWEEN_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])|[\s_.-]+")
_ENDING = re.compile(r" ?\b(id|name|number|no)$|(?<=[a-z])id$")
_FEWEST_NUMBERED = 20
"""Rows from which on a column that counts up by one is taken for a number of the row."""
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})( .*)?|\d{4}/\d{1,2}/\d{1,2}")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_WITH_UNIT = re.compile(r"([<>~]?\s*[+-]?\d+(?:[.,]\d+)?)\s*([^\W\d_]{1,12}|%|°.?|[^\W\d_]{1,6}/[^\W\d_]{1,6})")
_FEW_SIZES = 8
"""Different numbers that texts with a unit must have to be measurements; fewer may be categories, such as "2 weeks"."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What each column of a table is for."""

    labels: tuple[str, ...]
    """One column, or of several numbers or labels one each."""
    client: str | None
    domain: str | None
    ids: tuple[str, ...]
    inputs: tuple[str, ...]
    dropped: tuple[str, ...]


def find_roles(
    table: CellTable,
    *,
    client: str | None = "auto",
    label: str | Sequence[str] | None = "auto",
    domain: str | None = "auto",
    id: str | None = "auto",
    drop: Sequence[str] = (),
) -> Roles:
    """Return what the columns are for: as named, or by their usual names where ``auto`` is given."""
    names = list(table.columns)
    labels = [label] if isinstance(label, str) else list(label or ())
    named = [name for name in (client, *labels, domain, id) if name not in (None, "auto")]
    for name in (*named, *drop):
        if name not in names:
            raise unknown_name(f"column in {table.where}:", name, names)
    free = [name for name in names if name not in drop and name not in named]
    if label == "auto":
        labels = [name for name in (_one(table, "label", free, LABELS),) if name is not None]
    if not labels:
        raise DataError(
            f"{table.where}: no column is the label; the columns are {', '.join(map(repr, names[:20]))}. Name it with "
            "label= (in a config, data.label; on the command line, --set data.label=NAME).",
            code="column-missing",
            what="label",
            columns=names,
            path=table.where,
        )
    client = _one(table, "client", free, CLIENTS) if client == "auto" else client
    domain = _one(table, "domain", free, DOMAINS) if domain == "auto" else domain
    ids = tuple(_usual(free, IDS)) if id == "auto" else () if id is None else (id,)
    special = {*labels, client, domain, *ids, *drop}
    inputs = tuple(name for name in names if name not in special)
    if not inputs:
        raise DataError(
            f"{table.where}: no column is left for the inputs; the columns are {', '.join(map(repr, names[:20]))}. "
            "Check the separator of the file, and which columns are named.",
            code="column-missing",
            what="inputs",
            columns=names,
            path=table.where,
        )
    return Roles(labels=tuple(labels), client=client, domain=domain, ids=ids, inputs=inputs, dropped=tuple(drop))


def _usual(names: Sequence[str], usual: Sequence[str]) -> list[str]:
    return [name for name in names if _spoken(name) in usual or _ENDING.sub("", _spoken(name)) in usual]


def _spoken(name: str) -> str:
    """Return a column's name as small words.

    >>> _spoken("PatientID"), _spoken("site_name"), _spoken("Unnamed: 0")
    ('patient id', 'site name', 'unnamed: 0')
    """
    return _BETWEEN_WORDS.sub(" ", name).strip().lower()


def is_counter(values: Floats) -> bool:
    """Return whether a column of numbers counts the rows, in any order, and so says nothing about them.

    >>> is_counter(np.arange(1000.0, 1030.0)[::-1]), is_counter(np.arange(30.0) % 10)
    (True, False)
    """
    if len(values) < _FEWEST_NUMBERED or not np.isfinite(values).all():
        return False
    return bool((np.diff(np.sort(values)) == 1).all())


def _one(table: CellTable, role: str, names: Sequence[str], usual: Sequence[str]) -> str | None:
    """Return the one column with a usual name, if there is any; raise DataError if there are several."""
    found = _usual(names, usual)
    if len(found) > 1:
        raise DataError(
            f"{table.where}: each of the columns {', '.join(map(repr, found))} may be the {role}. Name it with {role}= "
            f"(in a config, data.{role}); leave columns out with drop=.",
            code="column-unclear",
            what=role,
            columns=found,
            path=table.where,
        )
    return found[0] if found else None


def as_names(cells: Cells) -> list[str]:
    """Return cells as names, "" where one is missing; a number has one name, however it is written.

    >>> as_names(["3.0", "3", "normal", ""])
    ['3', '3', 'normal', '']
    """
    values = cells if isinstance(cells, list) else cells.tolist()
    return [_name(value) for value in values]


def _name(value: str | float) -> str:
    if isinstance(value, str):
        # A long number is an id, of which a float would lose the last digits.
        if _WHOLE.fullmatch(value):
            return str(int(value))
        if not _is_number(value):
            return value
    number = float(value)
    if np.isnan(number):
        return ""
    return str(int(number)) if number.is_integer() else repr(number)


def check_filled(where: str, column: str, names: Sequence[str]) -> None:
    """Raise DataError if a label, client or domain is missing."""
    empty = [row for row, name in enumerate(names, start=1) if not name]
    if empty:
        count = f"{len(empty)} rows have" if len(empty) > 1 else "a row has"
        raise DataError(
            f"{where}: {count} nothing in column {column!r}, first row {empty[0]}. Fill it in, or leave such rows out.",
            code="value-missing",
            path=where,
            column=column,
            row=empty[0],
            count=len(empty),
        )


def parse_column(where: str, name: str, cells: Cells, categorical: bool) -> tuple[str, Floats, tuple[str, ...]]:
    """Return a column's kind, its values with NaN where one is missing, and its categories."""
    if not categorical:
        numbers = _numbers(cells)
        if numbers is not None:
            _check_finite(where, name, numbers)
            return (EMPTY if np.isnan(numbers).all() else NUMBER), numbers, ()
        assert isinstance(cells, list)
        _check_words(where, name, cells)
    names = as_names(cells)
    known = tuple(sorted(set(names) - {""}, key=category_order))
    if len(known) > MAX_CATEGORIES and not categorical:
        raise _unfit(
            where,
            name,
            names,
            known[0],
            "categories",
            f"has {len(known)} different texts, too many for categories. Leave it out: {dropping(name)}; or, if each "
            f"is a category, categorical = [{name!r}]",
        )
    place = {category: float(i) for i, category in enumerate(known)} | {"": np.nan}
    return (CATEGORY if known else EMPTY), np.array([place[text] for text in names], np.float64), known


def _numbers(cells: Cells) -> Floats | None:
    """Return cells as numbers, or None if one is not a number."""
    if not isinstance(cells, list):
        return cells
    try:
        return np.array([float(cell or "nan") for cell in cells])
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_finite(where: str, name: str, numbers: Floats) -> None:
    if np.isinf(numbers).any():
        row = int(np.flatnonzero(np.isinf(numbers))[0]) + 1
        raise DataError(
            f"{where}: column {name!r} is infinite in row {row}. Correct it, or leave the cell empty.",
            code="not-finite",
            path=where,
            column=name,
            row=row,
        )


def _check_words(where: str, name: str, cells: Sequence[str]) -> None:
    """Raise DataError if texts of a column are dates, numbers with a comma or a unit, or exceptions among numbers."""
    words = [cell for cell in cells if cell and not _is_number(cell)]
    numbers = sum(bool(cell) for cell in cells) - len(words)
    if all(_DATE.fullmatch(word) for word in words):
        said = "holds dates. Make a number of it, such as an age in years or days since a date, or leave it out: "
        raise _unfit(where, name, cells, words[0], "dates", said + dropping(name))
    if all(_DECIMAL_COMMA.fullmatch(word) for word in words):
        said = "has commas in its numbers. Write a point before decimals, and nothing between thousands"
        raise _unfit(where, name, cells, words[0], "decimal commas", said)
    sizes = [found for word in words if (found := _WITH_UNIT.fullmatch(word))]
    if len(sizes) > 0.9 * len(words) and len({found[1] for found in sizes}) > _FEW_SIZES:
        said = f"holds numbers with a unit. Leave only the numbers, all in {sizes[0][2]!r}; or, if they are categories,"
        raise _unfit(where, name, cells, sizes[0][0], "units", f"{said} categorical = [{name!r}]")
    if numbers > len(words):
        said = (
            f"holds numbers, and texts in {len(words)} of {len(cells)} rows. Correct them or leave the cells empty; or,"
        )
        said += f" if they are categories, categorical = [{name!r}]"
        raise _unfit(where, name, cells, words[0], "text", said)


def _unfit(where: str, name: str, cells: Sequence[str], got: str, what: str, said: str) -> DataError:
    row = list(cells).index(got) + 1
    return DataError(
        f"{where}: column {name!r} ({got!r:.40} in row {row}) {said}.",
        code="column-unfit",
        path=where,
        column=name,
        row=row,
        got=got,
        what=what,
    )
