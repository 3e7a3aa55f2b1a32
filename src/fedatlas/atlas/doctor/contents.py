"""What is wrong in clients' inputs: columns of a table, images and copies, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.atlas.doctor.columns import ColumnFigures, Fault, describe_columns, find_faults
from fedatlas.atlas.doctor.duplicates import Copies, content_keys, find_copies
from fedatlas.atlas.doctor.pictures import broken, describe_pictures, is_blank
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.data.federation import Federation
from fedatlas.data.table import NUMBER, Table

COLUMN_KINDS = ("missing-coded", "other-scale", "constant")
MOST_COLUMNS = 2000
"""Wider rows of numbers are vectors, of which no single entry means anything."""


def own_examples(federation: Federation) -> list[Tensor]:
    """Return every client's examples: for training, and for a test that no other client shares."""
    times = torch.zeros(len(federation.data), dtype=torch.int64)
    for client in federation:
        times[client.test.cpu()] += 1
    return [
        torch.cat([client.train.cpu(), test[times[test] == 1]]).unique()
        for client in federation
        for test in (client.test.cpu(),)
    ]


def column_names(federation: Federation) -> tuple[str, ...]:
    """Return the names of the columns of numbers; () of data that have none."""
    data = federation.data
    if data.table is not None:
        return tuple(data.table.columns[j] for j in _numbers(data.table))
    wide = data.kind != "features" or data.inputs.shape[1] > MOST_COLUMNS
    return () if wide else tuple(f"feature {j}" for j in range(data.inputs.shape[1]))


def column_figures(federation: Federation) -> list[list[ColumnFigures]]:
    """Return what every client tells about its columns of numbers, as they were before any scaling."""
    data = federation.data
    values = data.inputs.double().cpu().numpy() if data.table is None else data.table.values[:, _numbers(data.table)]
    return [describe_columns(values[own.numpy()]) for own in own_examples(federation)]


def _numbers(table: Table) -> list[int]:
    return [j for j, kind in enumerate(table.kinds) if kind == NUMBER]


def column_suspects(
    names: Sequence[str], columns: Sequence[str], figures: Sequence[Sequence[ColumnFigures]]
) -> list[Suspect]:
    """Return the clients with wrong columns."""
    return [_column(names[fault.client], columns[fault.column], fault) for fault in find_faults(figures)]


def _column(name: str, column: str, fault: Fault) -> Suspect:
    if fault.kind == "missing-coded":
        part = f"{fault.count} of {fault.of} cells"
        said = f"column {column!r}: {fault.value:g} stands for missing in {part}"
        return Suspect(
            name,
            fault.kind,
            f"{said}, as no other value is near it",
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


def picture_suspects(federation: Federation) -> list[Suspect]:
    """Return the clients with broken images."""
    if federation.data.kind != "image":
        return []
    figures = [describe_pictures(federation.data.inputs[own]) for own in own_examples(federation)]
    found = []
    for i, (kind, count) in broken(figures).items():
        name, of = federation.clients[i].name, figures[i].images
        what = "one colour everywhere" if kind == "blank" else "a lower part of one colour, as if cut off"
        said = f"{count} of {of} images have {what}"
        found.append(Suspect(name, "images-broken", said, f"these images of {name}, and how they were read", said))
    return found


def copy_suspects(federation: Federation) -> list[Suspect]:
    """Return the clients that have the same examples as another, or in training and in test; blank images are none."""
    data = federation.data
    cells = data.inputs.cpu().numpy() if data.table is None else np.nan_to_num(data.table.values, nan=-1e300)
    keys = content_keys(cells)
    counted = ~is_blank(data.inputs).cpu().numpy() if data.kind == "image" else np.ones(len(data), bool)

    def kept(part: Tensor) -> NDArray[np.int64]:
        own: NDArray[np.int64] = part.cpu().numpy()
        found: NDArray[np.int64] = keys[own[counted[own]]]
        return found

    found = find_copies([kept(client.train) for client in federation], [kept(client.test) for client in federation])
    return [_copies(federation, own) for own in found]


def _copies(federation: Federation, copies: Copies) -> Suspect:
    name, other = (federation.clients[i].name for i in (copies.first, copies.second))
    if copies.first == copies.second:
        said = f"{copies.copies} of its test examples are in its training examples too"
        return Suspect(name, "test-in-training", said, f"how {name} was split", f"{said}, so its scores are too good")
    said = f"{copies.copies} of its examples are at {other} too"
    return Suspect(name, "same-examples", said, f"where {name} and {other} have them from", "others have some of yours")
