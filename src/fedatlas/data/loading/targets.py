"""The columns of a table that hold numbers, or labels of which several may hold, as targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.loading.cells import CellTable
from fedatlas.data.loading.columns import Roles, as_names, check_filled, parse_column
from fedatlas.data.table import NUMBER
from fedatlas.data.task import Task
from fedatlas.errors import DataError, UsageError

LARGE = 10.0
"""Numbers beyond it make the first steps too long for the usual learning rate."""
Classes = Mapping[str, Sequence[Any]] | Sequence[str]


class Targets(NamedTuple):
    """What is to be predicted of each row."""

    values: Tensor
    names: tuple[str, ...]
    told: str
    """What was found, in words."""


def read_targets(cells: CellTable, roles: Roles, classes: Classes | None, task: Task) -> Targets:
    """Return the label columns as rows of numbers; of several labels each is 0 or 1."""
    if task.dtype != torch.float32:
        raise UsageError(
            f"{cells.where}: a table has no pixels, so {task.name} cannot be learned from it. Give an npz file or a "
            "folder of pictures.",
            code="task-unfit",
            got=task.name,
        )
    if classes is not None and list(classes) != list(roles.labels):
        raise UsageError(
            f"classes: in {task.name} the targets are named by their columns, {list(roles.labels)}. Leave it out.",
            code="settings-conflict",
            got=list(classes),
            setting="classes",
        )
    columns = [_numbers(cells, column, zero_or_one=task.outputs != "numbers") for column in roles.labels]
    values = np.stack(columns, 1).astype(np.float32)
    pairs = zip(roles.labels, columns, strict=True)
    if task.outputs == "numbers":
        large = "; so large, they need other units or a small optimizer.lr" if np.abs(values).max() > LARGE else ""
        each = (f"{name!r} ({column.min():g} to {column.max():g}{large})" for name, column in pairs)
    else:
        each = (f"{name!r} ({int(column.sum()):,})" for name, column in pairs)
    return Targets(torch.from_numpy(values), roles.labels, f"targets {', '.join(each)}")


def _numbers(cells: CellTable, column: str, *, zero_or_one: bool) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return a column of numbers of which none is missing."""
    names = as_names(cells.columns[column])
    check_filled(cells.where, column, names)
    kind, values, _ = parse_column(cells.where, column, cells.columns[column], categorical=False)
    wrong = next(
        (row for row, value in enumerate(values, start=1) if kind != NUMBER or (zero_or_one and value not in (0, 1))),
        None,
    )
    if wrong is not None:
        wanted = "0 or 1 (whether the label holds)" if zero_or_one else "a number"
        raise DataError(
            f"{cells.where}: row {wrong} has {names[wrong - 1]!r} in the target {column!r}, wanted {wanted}. Correct "
            "it, or name another column with label=.",
            code="column-unfit",
            what="targets",
            column=column,
            row=wrong,
            got=names[wrong - 1],
        )
    return values
