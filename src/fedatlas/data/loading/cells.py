"""The cells of a table, by column: from a csv, tsv, jsonl or Parquet file, or from a pandas frame."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.dataset import first_repeated
from fedatlas.data.loading.catalogue import TABLE_ENDINGS
from fedatlas.data.memory import AS_OBJECTS, check_fits
from fedatlas.errors import DataError, UsageError

PARQUET = ".parquet"
MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?"})
"""Texts that stand for a missing cell, in any case."""
MOST_COLUMNS = 100_000
"""Columns of a table of text."""
MOST_LINE = 1 << 24
"""Characters of a line of jsonl: the objects in a longer one could take many times its size."""
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
Cells = list[str] | NDArray[np.float64]
"""One column: texts, "" where a cell is missing; or numbers, NaN where one is missing."""


@dataclass(frozen=True, kw_only=True)
class CellTable:
    """A table's cells as they were found."""

    name: str
    where: str
    """The file, or the name of what was given, for messages."""
    columns: dict[str, Cells]

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values()), ()))


@runtime_checkable
class Frame(Protocol):
    """A pandas data frame, or what gives its columns as one does."""

    columns: Any

    def to_dict(self, orient: Any, /) -> dict[Any, Any]:
        """Return the columns as lists, for ``list``."""
        ...


def read_cells(source: str | Path | Frame, name: str | None = None) -> CellTable:
    """Return a table's cells by column; raise an error if it has no rows, or if its rows do not fit its columns."""
    if isinstance(source, Frame):
        where, names = name or "frame", [str(column) for column in source.columns]
        _check_names(where, names)
        given = zip(names, source.to_dict("list").values(), strict=True)
        columns: dict[str, Cells] = {title: _plain(where, title, values) for title, values in given}
    else:
        file = check_table_file(source)
        where, name = str(file), name or file.stem
        columns = _read_file(file)
    table = CellTable(name=name or "frame", where=where, columns=columns)
    if not table.num_rows:
        raise DataError(f"{where}: the table has no rows.", code="data-empty", path=where, what="rows")
    return table


def check_table_file(path: str | Path) -> Path:
    """Return the path of a table; raise an error if the file is missing or has another ending."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file. Check the path.", code="file-missing", path=str(file))
    if file.suffix not in TABLE_ENDINGS:
        raise UsageError(f"{file}: a table must end in {', '.join(TABLE_ENDINGS)}.", code="file-ending", path=str(file))
    check_fits(file, times=AS_OBJECTS)
    return file


def table_rows(file: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of a table, one by one."""
    try:
        if file.suffix == PARQUET:
            yield from _read_parquet(file).to_pylist()
            return
        with file.open(encoding="utf-8-sig", newline="") as lines:
            if file.suffix == ".jsonl":
                yield from (json.loads(line) for line in _short_lines(file, lines) if line.strip())
            else:
                mark = _separator(file, lines.readline())
                lines.seek(0)
                yield from csv.DictReader(_texts_only(file, lines), delimiter=mark, strict=True)
    except (OSError, csv.Error, ValueError, RecursionError) as reason:
        if isinstance(reason, DataError):
            raise
        raise _unreadable(file, reason) from reason


def table_columns(path: str | Path) -> list[str]:
    """Return the names of a table's columns, from its first line."""
    file = check_table_file(path)
    if file.suffix == PARQUET:
        return [str(name) for name in _parquet(file).schema_arrow.names]
    if file.suffix == ".jsonl":
        first = next(table_rows(file), {})
        return [str(column) for column in first] if isinstance(first, dict) else []
    try:
        with file.open("rb") as lines:
            line = lines.readline().decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise _unreadable(file, reason) from reason
    return [cell.strip() for cell in next(csv.reader([line], delimiter=_separator(file, line)), [])]


_SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""How the files of xlsx, ods and xls begin."""


def _read_file(file: Path) -> dict[str, Cells]:
    if file.suffix == PARQUET:
        table = _read_parquet(file)
        _check_names(str(file), list(table.column_names))
        return {name: _plain(str(file), name, table[name].to_pylist()) for name in table.column_names}
    if file.suffix == ".jsonl":
        rows = list(table_rows(file))
        for number, row in enumerate(rows, start=1):
            if not isinstance(row, Mapping):
                raise DataError(
                    f"{file}: line {number} is not an object with a value for each column, got {row!r:.60}.",
                    code="wrong-type",
                    path=str(file),
                    row=number,
                )
        names = list(dict.fromkeys(name for row in rows for name in row))
        return {name: _plain(str(file), name, [row.get(name) for row in rows]) for name in names}
    return _delimited(file, _text(file))


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
        if content.startswith(_SPREADSHEETS) or b"\0" in content:
            raise _binary(file)
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as reason:
        raise _unreadable(file, reason) from reason


def _binary(file: Path) -> DataError:
    return DataError(
        f"{file}: this is not a text but a spreadsheet or another program's file. Open it there, and save it as "
        "'CSV UTF-8'.",
        code="file-unreadable",
        path=str(file),
        what="binary",
    )


def _texts_only(file: Path, lines: TextIO) -> Iterator[str]:
    """Return the lines of a file; raise DataError at a null byte, which no text has."""
    for line in lines:
        if "\0" in line:
            raise _binary(file)
        yield line


def _short_lines(file: Path, lines: TextIO) -> Iterator[str]:
    """Return the lines of a file; raise DataError at one that is too long to be a row."""
    number = 0
    while line := lines.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise DataError(
                f"{file}: line {number} has more than {MOST_LINE:,} characters. Write one row a line.",
                code="wrong-count",
                path=str(file),
                what="characters",
                row=number,
            )
        yield line


def _unreadable(file: Path, reason: Exception) -> DataError:
    if isinstance(reason, UnicodeDecodeError):
        line = reason.object[: reason.start].count(b"\n") + 1
        return DataError(
            f"{file}: line {line} is not UTF-8 text; it may be Latin-1 or another older encoding. Save the file as "
            "UTF-8, in a spreadsheet as 'CSV UTF-8'.",
            code="file-unreadable",
            path=str(file),
            what="encoding",
            line=line,
        )
    return DataError(
        f"{file}: cannot be read as a table ({reason}). Write UTF-8 csv, tsv or jsonl.",
        code="file-unreadable",
        path=str(file),
    )


def _delimited(file: Path, text: str) -> dict[str, Cells]:
    """Return the columns of a text with a header and one row a line."""
    if not text.strip():
        raise DataError(f"{file}: the file is empty.", code="data-empty", path=str(file), what="rows")
    lines = io.StringIO(text, newline="")
    mark = _separator(file, lines.readline())
    lines.seek(0)
    found: list[list[str]] = []
    try:
        found.extend(
            [cell.strip() for cell in row] for row in csv.reader(lines, delimiter=mark, strict=True) if any(row)
        )
    except csv.Error as reason:
        raise DataError(
            f"{file}: row {len(found)} cannot be read ({reason}). A quote before a cell needs one after it, and a cell "
            f"has at most {csv.field_size_limit():,} characters.",
            code="file-unreadable",
            path=str(file),
            row=len(found),
        ) from reason
    if not found:
        raise DataError(f"{file}: there is nothing in its cells.", code="data-empty", path=str(file), what="rows")
    header, *rows = found
    _check_names(str(file), header)
    if len(header) > MOST_COLUMNS:
        raise DataError(
            f"{file}: has {len(header):,} columns, and a table has at most {MOST_COLUMNS:,}. Write its numbers as an "
            "npz file.",
            code="wrong-count",
            path=str(file),
            what="columns",
            got=len(header),
            most=MOST_COLUMNS,
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise _ragged(file, number, row, header, mark)
    return {name: [_cleaned(row[j]) for row in rows] for j, name in enumerate(header)}


def _separator(file: Path, header: str) -> str:
    """Return the separator that cuts a header into most names."""
    usual = "\t" if file.suffix == ".tsv" else ","
    counts = {mark: _num_names(header, mark) for mark in (usual, *_SEPARATORS)}
    best = max(counts, key=lambda mark: counts[mark])
    if not counts[best] and header.strip():
        raise _unreadable(file, csv.Error(f"a name in its first line has over {csv.field_size_limit():,} characters"))
    return best


def _num_names(header: str, mark: str) -> int:
    try:
        return len(next(csv.reader([header], delimiter=mark), ()))
    except csv.Error:  # a wide table's header, taken for one long name
        return 0


def _ragged(file: Path, number: int, row: Sequence[str], header: Sequence[str], mark: str) -> DataError:
    joined = mark.join(row)
    other = next((m for m in _SEPARATORS if m != mark and joined.count(m) >= len(header) - 1 > 0), None)
    fields = {"path": str(file), "row": number, "got": len(row), "wanted": len(header)}
    if other is not None:
        return DataError(
            f"{file}: row {number} has {_SEPARATORS[other]} between its cells, the first line {_SEPARATORS[mark]}. "
            "Use one separator in the whole file.",
            code="wrong-count",
            what="separators",
            **fields,
        )
    return DataError(
        f"{file}: row {number} has {len(row)} cells for {len(header)} columns. Correct the row; a cell that holds "
        f"{_SEPARATORS[mark]} needs quotes.",
        code="wrong-count",
        what="cells",
        **fields,
    )


def _check_names(where: str, names: Sequence[str]) -> None:
    """Raise DataError if two columns have one name."""
    if len(set(names)) != len(names):
        twice = first_repeated(names)
        raise DataError(
            f"{where}: two columns are named {twice!r}. Rename one, or delete it.",
            code="name-repeated",
            column=twice,
            path=where,
        )


def _plain(where: str, name: str, values: Sequence[Any]) -> Cells:
    """Return typed values as cells: numbers stay numbers, all others become texts."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        try:
            return np.array(values, np.float64)
        except OverflowError as reason:
            raise DataError(
                f"{where}: column {name!r} holds a number beyond 1e308. Correct it, or leave the column out.",
                code="column-unfit",
                what="large",
                column=name,
            ) from reason
    return [_as_text(where, name, row, value) for row, value in enumerate(values, start=1)]


def dropping(name: str) -> str:
    """Return how a column is left out, in Python and on the command line.

    >>> print(dropping("visit"))
    drop=['visit'] (on the command line, --set 'data.drop=["visit"]')
    """
    setting = f"data.drop={json.dumps([name], ensure_ascii=False)}"
    return f"drop={[name]} (on the command line, --set {shlex.quote(setting)})"


def _as_text(where: str, name: str, row: int, value: Any) -> str:
    if (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and math.isnan(value))
    ):
        return ""
    if isinstance(value, list | dict | tuple | set | bytes):
        raise DataError(
            f"{where}: row {row} of column {name!r} holds {value!r:.60}, not one number or text. Make one column of "
            f"each value, or leave the column out: {dropping(name)}.",
            code="column-unfit",
            what="nested",
            column=name,
            row=row,
        )
    return _cleaned(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _cleaned(text: str) -> str:
    text = text.strip()
    return "" if text.lower() in MISSING else text


def _parquet(file: Path) -> Any:
    """Return an open Parquet file; its rows are not read."""
    try:
        reader = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(
            f"{file}: Parquet needs the extra parquet: pip install 'fedatlas[parquet]' ({error}).",
            code="package-missing",
            path=str(file),
        ) from error
    try:
        return reader.ParquetFile(file)
    except _BROKEN_PARQUET as reason:
        raise _unreadable(file, reason) from reason


def _read_parquet(file: Path) -> Any:
    """Return the table in a Parquet file; a small file may hold rows without end, since equal cells take no room."""
    opened, found, total = _parquet(file), [], 0
    cells = opened.metadata.num_rows * opened.metadata.num_columns
    check_fits(file, cells * _NUMBER, times=AS_OBJECTS)
    try:
        for batch in opened.iter_batches(batch_size=_BATCH):
            total += batch.nbytes
            check_fits(file, total, times=AS_OBJECTS)
            found.append(batch)
        return importlib.import_module("pyarrow").Table.from_batches(found, opened.schema_arrow)
    except _BROKEN_PARQUET as reason:
        if isinstance(reason, DataError):
            raise
        raise _unreadable(file, reason) from reason


_BROKEN_PARQUET = (OSError, ValueError, KeyError, NotImplementedError, MemoryError)
_BATCH = 1024
"""Rows that are read at once."""
_NUMBER = 8
"""Bytes of a cell."""
