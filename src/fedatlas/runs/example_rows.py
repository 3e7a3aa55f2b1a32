"""Some rows of a client's table as texts, in the columns in which it differs most from the others; or lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Federation
from fedatlas.data.table import CATEGORY, NUMBER, Floats, Table

MOST_COLUMNS = 4
"""Beside the label."""
MOST_WIDE = 2000
"""Columns of a table that are looked at."""
LONGEST_CELL, LONGEST_TEXT = 24, 90
"""Characters."""
FOR_MISSING = 3.0
"""Missing in all rows of one side and in none of the other counts as three standard deviations."""


def client_rows(federation: Federation, clients: Sequence[int], count: int = 6) -> np.ndarray | None:
    """Return rows of some clients, of as many classes as can be, as texts (clients, 1 + count + 2, columns).

    The first row has the names of the columns, the last two have a typical value at the client and at the others. A
    cell is empty where it is missing, a whole row where the client has no more. None for images and arrays.
    """
    data = federation.data
    if data.kind == "tokens":
        return np.stack([_texts(data, _own(federation, i), count) for i in clients]) if data.vocabulary else None
    if data.kind != "features":
        return None
    table = data.table if data.table is not None else _bare(data)
    everyone = _Cells(table, np.concatenate([_own(federation, i).numpy() for i in range(len(federation))]))
    found = [_rows(data, table, everyone, _own(federation, i), count) for i in clients]
    width = max(rows.shape[1] for rows in found)
    return np.stack([np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in found])


class _Cells:
    """Sums over the columns of some rows."""

    def __init__(self, table: Table, rows: np.ndarray) -> None:
        values = table.values[rows, :MOST_WIDE]
        known = np.isfinite(values)
        self.count = len(rows)
        self.here: np.ndarray = known.sum(0)
        """(columns,): cells that are not missing."""
        zeros = np.where(known, values, 0.0)
        self.total: Floats = zeros.sum(0)
        self.squares: Floats = (zeros**2).sum(0)
        self.of_each = {
            j: np.bincount(values[known[:, j], j].astype(np.int64), minlength=len(table.categories[j]))
            for j in range(values.shape[1])
            if table.kinds[j] == CATEGORY
        }
        """How many rows have each category, by column."""

    def less(self, other: _Cells) -> _Cells:
        """Return the sums of the rows that are not among the others."""
        rest = copy(self)
        rest.count, rest.here, rest.total = self.count - other.count, self.here - other.here, self.total - other.total
        rest.of_each = {j: counts - other.of_each[j] for j, counts in self.of_each.items()}
        return rest

    @property
    def spread(self) -> Floats:
        """(columns,): standard deviations, 1 for a column whose values are all the same."""
        here = np.maximum(self.here, 1)
        variance = self.squares / here - (self.total / here) ** 2
        return np.asarray(np.where(variance > 0, np.sqrt(np.maximum(variance, 0)), 1.0))

    def usual(self, table: Table, j: int) -> str:
        """Return a typical value of a column: its mean, or its commonest category."""
        if 2 * self.here[j] < self.count:
            return f"{1 - self.here[j] / self.count:.0%} missing"
        if not self.count:
            return ""
        if j in self.of_each:
            most = int(self.of_each[j].argmax())
            return _clip(f"{self.of_each[j][most] / self.here[j]:.0%} {table.categories[j][most]}")
        return _number(float(self.total[j] / self.here[j]))


def _differences(own: _Cells, others: _Cells, spread: Floats) -> Floats:
    """Return how much two sides differ in each column, in standard deviations."""
    missing = [1 - side.here / max(side.count, 1) for side in (own, others)]
    off = FOR_MISSING * np.abs(missing[0] - missing[1])
    means = [side.total / np.maximum(side.here, 1) for side in (own, others)]
    both = (own.here > 0) & (others.here > 0)
    apart = np.where(both, np.abs(means[0] - means[1]) / spread, 0.0)
    for j in own.of_each:
        shares = [side.of_each[j] / max(int(side.here[j]), 1) for side in (own, others)]
        apart[j] = np.abs(shares[0] - shares[1]).sum() if both[j] else 0.0
    return np.asarray(np.maximum(off, np.nan_to_num(apart)))


def _rows(data: Dataset, table: Table, everyone: _Cells, own: Tensor, count: int) -> np.ndarray:
    mine = _Cells(table, own.numpy())
    others = everyone.less(mine)
    first = _columns(mine, _differences(mine, others, everyone.spread))
    chosen = own[several_classes(data.labels[own.to(data.labels.device)].cpu(), count)].tolist()
    lines = [["label", *(_clip(table.columns[j]) for j in first)]]
    lines += [[_label(data, i), *(_cell(table, i, j) for j in first)] for i in chosen]
    lines += [[""] * len(lines[0])] * (count - len(chosen))
    lines += [["", *(side.usual(table, j) for j in first)] for side in (mine, others)]
    return np.array(lines, dtype=f"<U{LONGEST_CELL}")


def _columns(mine: _Cells, differences: Floats) -> list[int]:
    """Return the columns that differ most; those that the client hardly has come last, but for one."""
    order = np.argsort(-differences, kind="stable").tolist()
    empty = [j for j in order if 2 * mine.here[j] < mine.count]
    late = set(empty[1:])
    return [*(j for j in order if j not in late), *empty[1:]][:MOST_COLUMNS]


def _cell(table: Table, i: int, j: int) -> str:
    value = float(table.values[i, j])
    if np.isnan(value):
        return ""
    if table.kinds[j] == CATEGORY:
        return _clip(table.categories[j][int(value)])
    return _number(value) if np.isfinite(value) else str(value)


def _texts(data: Dataset, own: Tensor, count: int) -> np.ndarray:
    chosen = own[several_classes(data.labels[own.to(data.labels.device)].cpu(), count)]
    lines = [["label", "text"]]
    for i in chosen.tolist():
        words = [data.vocabulary[token] for token in data.inputs[i].tolist() if token < len(data.vocabulary)]
        between = "" if max(map(len, data.vocabulary)) == 1 else " "
        lines.append([_label(data, i), _clip(between.join(words), LONGEST_TEXT)])
    lines += [["", ""]] * (count + 2 - len(chosen))
    return np.array(lines, dtype=f"<U{LONGEST_TEXT}")


def _own(federation: Federation, i: int) -> Tensor:
    client = federation.clients[i]
    return (client.train if len(client.train) else client.test).cpu()


def _bare(data: Dataset) -> Table:
    """Return features without names as a table."""
    width = min(data.inputs.shape[1], MOST_WIDE)
    return Table(
        columns=tuple(f"input {j + 1}" for j in range(width)),
        kinds=(NUMBER,) * width,
        values=data.inputs[:, :width].cpu().double().numpy(),
        categories=((),) * width,
    )


def _label(data: Dataset, i: int) -> str:
    label = data.labels[i].cpu()
    if data.task.has_classes:
        return _clip(data.classes[int(label)])
    if data.task.outputs == "numbers":
        return ", ".join(_number(float(value)) for value in label.reshape(-1)[:3])
    return _clip(", ".join(name for name, on in zip(data.classes, label.reshape(-1).tolist(), strict=False) if on))


def several_classes(labels: Tensor, count: int) -> Tensor:
    """Return the positions of examples: the first of each class, then the second of each, and so on; by class.

    >>> several_classes(torch.tensor([5, 5, 5, 2, 7]), 4).tolist()
    [3, 0, 1, 4]
    """
    if labels.ndim > 1 or labels.is_floating_point():  # no one class for each example
        return torch.arange(min(count, len(labels)))
    turn = torch.zeros_like(labels)
    for one in labels.unique():
        mine = labels == one
        turn[mine] = torch.arange(int(mine.sum()), dtype=labels.dtype)
    chosen = turn.argsort(stable=True)[:count]
    return chosen[labels[chosen].argsort(stable=True)]


def _number(value: float) -> str:
    """Return a number in few characters.

    >>> _number(233.0), _number(1.25), _number(0.000012), _number(123456.7)
    ('233', '1.25', '1.2e-05', '123457')
    """
    if value == round(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def _clip(text: str, most: int = LONGEST_CELL) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
