"""A table of measurements as a Dataset: labels, clients, and columns of numbers and categories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedatlas.data.dataset import Dataset, first_few
from fedatlas.data.loading.cells import CellTable, dropping
from fedatlas.data.loading.columns import (
    MAX_CATEGORIES,
    Roles,
    as_names,
    check_filled,
    find_roles,
    is_counter,
    parse_column,
)
from fedatlas.data.loading.targets import Classes, Targets, read_targets
from fedatlas.data.preparation import Preparation
from fedatlas.data.table import NUMBER, Table, category_order
from fedatlas.data.task import CLASSIFICATION, find_task
from fedatlas.errors import DataError, UsageError, unknown_name


def from_cells(
    cells: CellTable,
    *,
    classes: Classes | None = None,
    categorical: Sequence[str] = (),
    task: str = CLASSIFICATION.name,
    **columns: Any,
) -> Dataset:
    """Return a Dataset from a table's cells; ``columns`` are the options of ``find_roles``.

    Its inputs are not scaled yet: ``federate`` does that, by the clients' training rows.
    """
    aim = find_task(task)
    roles = find_roles(cells, **columns)
    for name in categorical:
        if name not in roles.inputs:
            raise unknown_name(f"column in {cells.where}: categorical", name, roles.inputs)
    targets = _class_numbers(cells, roles, classes) if aim.has_classes else read_targets(cells, roles, classes, aim)
    owner, owners = _named(cells, roles.client)
    domain, domains = _named(cells, roles.domain)
    _check_ids(cells, roles, owner)
    table = replace(read_columns(cells, roles.inputs, categorical), dropped=roles.dropped)
    preparation = Preparation.unscaled(table)
    return Dataset(
        name=cells.name,
        inputs=torch.from_numpy(preparation.inputs(table)),
        labels=targets.values,
        classes=targets.names,
        owners=owners,
        owner=owner,
        domains=domains,
        domain=domain,
        table=table,
        preparation=preparation,
        remarks=(_found(cells, roles, table, targets.told, owners), *_counters(cells, table)),
        task=aim,
    )


def read_columns(cells: CellTable, names: Sequence[str], categorical: Collection[str]) -> Table:
    """Return the table of some columns."""
    parsed = [parse_column(cells.where, name, cells.columns[name], name in categorical) for name in names]
    return Table(
        columns=tuple(names),
        kinds=tuple(kind for kind, _, _ in parsed),
        values=np.stack([values for _, values, _ in parsed], 1),
        categories=tuple(known for _, _, known in parsed),
    )


def _class_numbers(cells: CellTable, roles: Roles, classes: Classes | None) -> Targets:
    """Return the number of each row's class, and the names of the classes."""
    if len(roles.labels) > 1:
        raise UsageError(
            f"{cells.where}: an example has one class, and {len(roles.labels)} columns are its label: "
            f"{first_few(roles.labels)}. Name one column; or give task='multi-label' or 'regression' (in a config, "
            "data.task).",
            code="settings-conflict",
            got=list(roles.labels),
            setting="label",
        )
    column = roles.labels[0]
    names = as_names(cells.columns[column])
    check_filled(cells.where, column, names)
    if classes is None:
        known = tuple(sorted(set(names), key=category_order))
        _check_classes(cells, column, known)
        class_of, class_names = {name: i for i, name in enumerate(known)}, known
    else:
        class_of, class_names = _groups(classes)
    strange = next((row for row, name in enumerate(names, start=1) if name not in class_of), None)
    if strange is not None:
        raise DataError(
            f"{cells.where}: row {strange} has the label {names[strange - 1]!r}, which is in no class; classes= (in a "
            f"config, data.classes) holds {sorted(class_of, key=category_order)}. Add it, or leave such rows out.",
            code="names-unfit",
            what="labels",
            row=strange,
            got=names[strange - 1],
            known=list(class_of),
        )
    numbers = [class_of[name] for name in names]
    counts = Counter(class_names[i] for i in numbers)
    said = ", ".join(f"{name}: {count:,}" for name, count in counts.most_common(4))
    return Targets(torch.tensor(numbers), class_names, f"label {column!r} ({said}{', ...' if len(counts) > 4 else ''})")


def _groups(classes: Classes) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the class of each label, and the names of the classes."""
    if isinstance(classes, str) or not isinstance(classes, Mapping | Sequence) or len(classes) < 2:
        raise UsageError(
            "classes must name at least two classes, as a list or as a table of labels such as "
            f"{{healthy = [0], ill = [1, 2, 3, 4]}}; got {classes!r}.",
            code="wrong-type",
            got=classes,
            setting="classes",
        )
    groups = classes if isinstance(classes, Mapping) else {str(name): [name] for name in classes}
    class_of: dict[str, int] = {}
    for i, (name, labels) in enumerate(groups.items()):
        each = labels if isinstance(labels, Sequence) and not isinstance(labels, str) else [labels]
        for label in as_names([str(one) for one in each]):
            if label in class_of:
                raise UsageError(
                    f"classes: the label {label!r} is in two classes, the second is {name!r}. Name it once.",
                    code="name-repeated",
                    got=label,
                    setting="classes",
                )
            class_of[label] = i
    return class_of, tuple(map(str, groups))


def _check_classes(cells: CellTable, column: str, known: Sequence[str]) -> None:
    """Raise DataError if a column's values are measurements or names rather than classes, or all the same."""
    numbers = [name for name in known if category_order(name)[0] == 0]
    broken = next((name for name in numbers if not float(name).is_integer()), None)
    many = len(known) > MAX_CATEGORIES and (2 * len(numbers) > len(known) or 2 * len(known) > cells.num_rows)
    if broken is not None or many:
        raise DataError(
            f"{cells.where}: the label {column!r} has {len(known)} different values, such as {broken or known[-1]!r}: "
            "a measurement or a name, not a class. To predict a number, give task='regression' (in a config, "
            "data.task). Or name another column with label=, or make classes of it first.",
            code="not-classes",
            column=column,
            got=broken or known[-1],
            count=len(known),
        )
    if len(known) == 1:
        raise DataError(
            f"{cells.where}: every row has the label {known[0]!r} (column {column!r}), so there is nothing to learn. "
            "If other clients have other classes, name all with classes= (in a config, data.classes).",
            code="one-class",
            column=column,
            got=known[0],
        )


def _named(cells: CellTable, column: str | None) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Return an index for each row and the names, in order of first appearance."""
    if column is None:
        return None, ()
    names = as_names(cells.columns[column])
    check_filled(cells.where, column, names)
    place = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([place[name] for name in names]), tuple(place)


def _check_ids(cells: CellTable, roles: Roles, owner: torch.Tensor | None) -> None:
    """Raise DataError if two rows of a client have one id; clients may count their rows alike."""
    if len(roles.ids) != 1:
        return
    column = roles.ids[0]
    first: dict[tuple[int, str], int] = {}
    owners = [0] * cells.num_rows if owner is None else owner.tolist()
    for row, key in enumerate(zip(owners, as_names(cells.columns[column]), strict=True), start=1):
        if key[1] and first.setdefault(key, row) != row:
            raise DataError(
                f"{cells.where}: rows {first[key]} and {row} have the same {column!r}, {key[1]!r}. Leave one out; if "
                f"rows may share it, leave the column out: {dropping(column)}.",
                code="name-repeated",
                column=column,
                got=key[1],
                row=row,
                first=first[key],
            )


def _counters(cells: CellTable, table: Table) -> list[str]:
    """Return a line for each column that counts the rows."""
    return [
        f"{cells.name}: column {name!r} counts the rows ({low:g} to {high:g}), and is used as a measurement. If it is "
        f"an id, leave it out: {dropping(name)}"
        for name, kind, values in zip(table.columns, table.kinds, table.values.T, strict=True)
        if kind == NUMBER and is_counter(values)
        for low, high in [(values.min(), values.max())]
    ]


def _found(cells: CellTable, roles: Roles, table: Table, targets: str, owners: Sequence[str]) -> str:
    """Return one line that says what was found in a table."""
    said = [targets]
    if roles.client is None:
        said.append("no client column")
    else:
        single = "; one client alone can share nothing" if len(owners) == 1 else ""
        said.append(f"client {roles.client!r} ({len(owners)}: {first_few(owners)}{single})")
    said += [f"domain {roles.domain!r}"] if roles.domain is not None else []
    said += [f"ids {', '.join(map(repr, roles.ids))} (not used)"] if roles.ids else []
    said += [f"left out {first_few(roles.dropped)}"] if roles.dropped else []
    missing = int(table.missing.sum())
    number = f"{len(table.columns)} {'column' if len(table.columns) == 1 else 'columns'}"
    said.append(f"{number} of measurements with {missing:,} of {table.values.size:,} cells missing")
    return f"{cells.name}: {cells.num_rows:,} rows; {'; '.join(said)}"
