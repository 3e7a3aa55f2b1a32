"""How to see inverted labels in a spreadsheet: columns whose means by label are the other way round at the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedatlas.atlas.doctor.figures import column_names, column_values, own_examples
from fedatlas.atlas.doctor.labels import INVERTED
from fedatlas.atlas.doctor.suspect import Cells, Suspect
from fedatlas.data.federation import Federation

MOST_COLUMNS = 3
CLEAR = 2.0
"""Standard errors that two means must be apart, at the client and at the others."""
FEWEST = 5
"""Rows of each label that a mean is taken of."""


def with_cells(suspects: Sequence[Suspect], federation: Federation) -> tuple[Suspect, ...]:
    """Return the suspects, those with inverted labels of a table with the columns that show it."""
    inverted = [own.client for own in suspects if own.kind == INVERTED]
    values = column_values(federation.data) if federation.data.table is not None else None
    if not inverted or values is None:
        return tuple(suspects)
    rows = {client.name: own.numpy() for client, own in zip(federation, own_examples(federation), strict=True)}
    others = np.concatenate([own for name, own in rows.items() if name not in inverted])
    labels = federation.data.labels.cpu().numpy()
    names, classes = column_names(federation.data), federation.data.classes
    found = []
    for own in suspects:
        if own.kind == INVERTED:
            faulty = {one.column for one in suspects}
            usable = [j for j, column in enumerate(names) if column not in faulty]
            sides = [_Means(values[part][:, usable], labels[part]) for part in (rows[own.client], others)]
            cells = _contrary(own.client, [names[j] for j in usable], classes, *sides)
            own = replace(own, cells=cells)
        found.append(own)
    return tuple(found)


class _Means:
    """The means of columns for each of two labels."""

    def __init__(self, values: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        parts = [values[labels == label] for label in (0, 1)]
        counts = np.stack([np.isfinite(part).sum(0) for part in parts])
        here = np.maximum(counts, 1)
        self.means = np.stack([np.where(np.isfinite(part), part, 0.0).sum(0) for part in parts]) / here
        squares = [
            np.square(np.where(np.isfinite(part), part - mean, 0.0)).sum(0)
            for part, mean in zip(parts, self.means, strict=True)
        ]
        errors = np.sqrt((np.stack(squares) / here / here).sum(0))
        enough = (counts >= FEWEST).all(0) & (errors > 0)
        self.apart = np.where(enough, (self.means[1] - self.means[0]) / np.where(enough, errors, 1.0), 0.0)
        """(columns,): the difference of the two means, in standard errors; 0 where it cannot be told."""


def _contrary(client: str, names: Sequence[str], classes: Sequence[str], own: _Means, others: _Means) -> Cells | None:
    """Return the columns in which the client's two labels differ clearly, and the other way round at the others."""
    clear = (np.abs(own.apart) >= CLEAR) & (np.abs(others.apart) >= CLEAR)
    contrary = np.flatnonzero(clear & (np.sign(own.apart) != np.sign(others.apart)))
    if not len(contrary):
        return None
    order = contrary[np.argsort(-np.abs(own.apart[contrary]), kind="stable")][:MOST_COLUMNS].tolist()
    rows = tuple((names[j], *_written([*own.means[:, j], *others.means[:, j]])) for j in order)
    column, *first = rows[0]
    here, elsewhere = (f"{classes[1]!r} {first[i + 1]}, {classes[0]!r} {first[i]}" for i in (0, 2))
    return Cells(
        f"average {column} by label. {client}: {here}. The others, the other way round: {elsewhere}",
        ("mean of", f"{classes[0]} here", f"{classes[1]} here", f"{classes[0]} elsewhere", f"{classes[1]} elsewhere"),
        rows,
    )


def _written(means: Sequence[float]) -> list[str]:
    """Return numbers with as many decimals each, such that the largest has three digits.

    >>> _written([0.14, 0.5468, 1.5])
    ['0.14', '0.55', '1.50']
    """
    largest = max(map(abs, means))
    decimals = min(6, max(0, 2 - math.floor(math.log10(largest)))) if largest > 0 else 0
    return [f"{mean:.{decimals}f}" for mean in means]
