"""What is wrong in clients' inputs: columns of a table, images and copies, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedatlas.atlas.doctor.columns import ColumnFigures, Everywhere, Fault, find_faults
from fedatlas.atlas.doctor.duplicates import Copies
from fedatlas.atlas.doctor.pictures import PictureFigures, broken
from fedatlas.atlas.doctor.suspect import Cells, Suspect

COLUMN_KINDS = ("missing-coded", "other-scale", "constant")
COPIED, TESTED = COPIES = ("same-examples", "test-in-training")
MOST_REMARKS = 3
"""Columns of which it is said, each by itself, that all clients have a value which may stand for missing."""


class ColumnFindings(NamedTuple):
    """What the columns show."""

    suspects: list[Suspect]
    """Clients with wrong columns."""
    remarks: list[str]
    """Of values that may stand for missing at all clients alike, which accuses nobody."""
    notes: list[tuple[str, str]]
    """The same for each client itself: its name, and what may be told to it."""


def column_findings(
    names: Sequence[str], columns: Sequence[str], figures: Sequence[Sequence[ColumnFigures]]
) -> ColumnFindings:
    """Return the clients with wrong columns, and columns in which a value may stand for missing everywhere."""
    faults, common = find_faults(figures)
    suspects = [
        replace(
            _column(names[fault.client], columns[fault.column], fault),
            cells=_cells(names[fault.client], columns[fault.column], fault, [row[fault.column] for row in figures]),
        )
        for fault in faults
    ]
    remarks = [_remark(columns[own.column], own, figures) for own in common[:MOST_REMARKS]]
    if left := sorted({columns[own.column] for own in common[MOST_REMARKS:]}):
        more = f" and {len(left) - MOST_REMARKS} more" if len(left) > MOST_REMARKS else ""
        remarks.append(f"The same of values in {', '.join(left[:MOST_REMARKS])}{more}.")
    notes = [
        (
            name,
            f"column {columns[own.column]!r} is {own.value:g} in {count} of {row[own.column].count} cells: "
            "if that means not measured, leave these cells empty",
        )
        for own in common[:MOST_REMARKS]
        for name, count, row in zip(names, own.counts, figures, strict=True)
        if count
    ]
    return ColumnFindings(suspects, remarks, notes)


def _remark(column: str, own: Everywhere, figures: Sequence[Sequence[ColumnFigures]]) -> str:
    cells = sum(row[own.column].count for row in figures)
    having = sum(count > 0 for count in own.counts)
    where = "all clients" if having == len(figures) else f"{having} of {len(figures)} clients"
    share = f"{100 * sum(own.counts) / cells:.0f} % of the cells, at {where}"
    value = f"{own.value:g} in column {column!r}"
    return f"Whether {value} means not measured: it is in {share}. If it does, leave them empty."


def _cells(name: str, column: str, fault: Fault, figures: Sequence[ColumnFigures]) -> Cells:
    """Return how to see a wrong column in a spreadsheet; ``figures`` are all clients' of this column."""
    own = figures[fault.client]
    known = [one.quantiles for i, one in enumerate(figures) if i != fault.client and one.quantiles is not None]
    low, middle, high = [f"{np.median([one[j] for one in known]):.3g}" for j in (1, 2, 3)] if known else ["", "", ""]
    half = f"; at the others half of the values are from {low} to {high}" if known else ""
    rows = f"of the {own.count + own.missing} rows of {name}"
    if fault.kind == "missing-coded":
        empty = f" and {own.missing} have no value" if own.missing else ""
        return Cells(f"{rows} {fault.count} have {column} = {fault.value:g}{empty}{half}")
    if fault.kind == "other-scale" and own.quantiles is not None:
        return Cells(f"the median of {column} over the rows of {name} is {own.quantiles[2]:.3g}, elsewhere {middle}")
    return Cells(f"{rows} {own.count} have a value in {column}, and it is always the same{half}")


def _column(name: str, column: str, fault: Fault) -> Suspect:
    if fault.kind == "missing-coded":
        part = f"{fault.count} of {fault.of} cells"
        said = f"column {column!r}: {fault.value:g} stands for missing in {part}"
        return Suspect(
            name,
            fault.kind,
            said,
            f"whether {column} can be {fault.value:g}; if not, leave these cells empty",
            f"your {said}",
            column,
        )
    if fault.kind == "other-scale":
        said = f"column {column!r} is on another scale or in another unit: {fault.value:.3g} times the others'"
        return Suspect(name, fault.kind, said, f"the unit of {column} at {name}", f"your {said}", column)
    said = f"column {column!r} has one value in all {fault.count} cells, where others' vary"
    return Suspect(name, fault.kind, said, f"whether {column} was measured at {name}", f"your {said}", column)


def unmeasured(
    names: Sequence[str], columns: Sequence[str], figures: Sequence[Sequence[ColumnFigures]]
) -> Mapping[str, list[str]]:
    """Return the columns that hardly have a cell at a client and mostly have at another, by client."""
    share = np.array([[own.count / max(own.count + own.missing, 1) for own in row] for row in figures])
    found = {}
    for i, name in enumerate(names):
        empty = [column for j, column in enumerate(columns) if share[i, j] < 0.1 and share[:, j].max() > 0.5]
        if empty:
            found[name] = empty
    return found


def picture_suspects(names: Sequence[str], figures: Sequence[PictureFigures]) -> list[Suspect]:
    """Return the clients with broken images."""
    found = []
    for i, (kind, count) in broken(figures).items():
        name, of = names[i], figures[i].images
        what = "one colour everywhere" if kind == "blank" else "a lower part of one colour, as if cut off"
        said = f"{count} of {of} images have {what}"
        found.append(Suspect(name, "images-broken", said, f"these images of {name}, and how they were read", said))
    return found


def copy_suspects(names: Sequence[str], copies: Sequence[Copies]) -> list[Suspect]:
    """Return the clients that have the same examples as another, both of them, or in training and in test."""
    return [own for pair in copies for own in _copies(names[pair.first], names[pair.second], pair)]


def _copies(name: str, other: str, copies: Copies) -> list[Suspect]:
    if copies.first == copies.second:
        said = f"{copies.copies} of its test examples are in its training examples too"
        return [Suspect(name, TESTED, said, f"how {name} was split", f"{said}, so its scores are too good")]
    look, card = f"where {name} and {other} have them from", "others have some of your examples"
    return [
        Suspect(one, COPIED, f"{copies.copies} of its examples are at {another} too", look, card)
        for one, another in ((name, other), (other, name))
    ]
