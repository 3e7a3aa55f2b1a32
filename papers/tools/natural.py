"""Prints whom ``fedatlas check`` suspects in tables with real clients, and how often it finds what is planted there.

python -m papers.tools.natural --folder csv/ [--tables opt,indo] [--parts nature,planted] [--seed 5]

The folder holds NAME.csv for each table, and a meta.json: {"NAME": ["COLUMN OF CLIENTS", "COLUMN OF LABELS"], ...}.
Nothing is shipped: ``python -m papers.tools.natural_tables`` makes the thirteen tables of docs/evidence/check.md and
says of what.

Faults are planted at three clients of 60 rows or more, one at a time: all labels inverted, where there are two and
three clients or more; a column in another unit (x 2.54, x 38.67, x 10); a code for missing (999, -9, 0) in a seventh
of its cells; and up to 30 rows of another client beside its own. The column has 20 values or more and a median other
than 0.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import fedatlas
from fedatlas.atlas import Diagnosis
from fedatlas.data import from_table

CLIENTS = 3
SEED = 5
FEWEST_ROWS, FEWEST_VALUES = 60, 20
FACTORS = (2.54, 38.67, 10.0)
CODES = (999, -9, 0)
MISSING = 7
"""Of so many cells one gets the code."""
COPIED = 30
KINDS = {
    "labels-inverted": "inverted labels",
    "other-scale": "another unit",
    "missing-coded": "a code for missing",
    "same-examples": "copied rows",
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table whose rows belong to real clients."""

    name: str
    rows: pd.DataFrame
    client: str
    label: str

    def check(self, rows: pd.DataFrame | None = None) -> Diagnosis:
        """Return the diagnosis of these rows, or of others of the same form."""
        data = from_table(self.rows if rows is None else rows, client=self.client, label=self.label)
        return fedatlas.check(fedatlas.federate(data))

    def numbers(self) -> list[str]:
        """Return the columns in which faults are planted."""
        columns = [name for name in self.rows.columns if name not in (self.client, self.label)]
        numeric = [name for name in columns if pd.api.types.is_numeric_dtype(self.rows[name])]
        return [
            name for name in numeric if self.rows[name].nunique() >= FEWEST_VALUES and self.rows[name].median() != 0
        ]


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A table in which one client has one fault."""

    kind: str
    client: str
    rows: pd.DataFrame
    victim: str = ""
    """Whose rows were copied: it is as right to name it."""


def plants(table: Table, seed: int) -> Iterator[Plant]:
    """Yield the table with one fault at one client, all faults at three clients."""
    rng = np.random.default_rng(seed)
    whole, owner = table.rows, table.rows[table.client]
    sizes = owner.value_counts()
    large = [client for client in sizes.index if sizes[client] >= FEWEST_ROWS]
    rng.shuffle(large)
    columns, classes = table.numbers(), list(whole[table.label].unique())
    for i, client in enumerate(large[:CLIENTS]):
        own = owner == client
        if len(classes) == 2 and len(sizes) >= 3:
            turned = whole.copy()
            turned.loc[own, table.label] = turned.loc[own, table.label].map(
                dict(zip(classes, classes[::-1], strict=True))
            )
            yield Plant(kind="labels-inverted", client=str(client), rows=turned)
        if columns:
            column = columns[i % len(columns)]
            scaled = whole.astype({column: float})
            scaled.loc[own, column] *= FACTORS[i % len(FACTORS)]
            yield Plant(kind="other-scale", client=str(client), rows=scaled)
            coded = whole.astype({column: float})
            places = coded.index[own]
            cells = rng.choice(places, max(5, len(places) // MISSING), replace=False)
            coded.loc[cells, column] = CODES[i % len(CODES)]
            yield Plant(kind="missing-coded", client=str(client), rows=coded)
        others = [other for other in large if other != client]
        if others:
            theirs = whole[owner == others[0]]
            copied = theirs.sample(min(COPIED, len(theirs) // 2), random_state=i + 10 * abs(seed - SEED))
            rows = pd.concat([whole, copied.assign(**{table.client: client})], ignore_index=True)
            yield Plant(kind="same-examples", client=str(client), rows=rows, victim=str(others[0]))


def accused(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    """Return the suspects and what they are suspected of."""
    return {(own.client, own.kind) for own in diagnosis.suspects}


def in_nature(table: Table) -> str:
    """Return a row of the first table: whom the check suspects though nothing was planted."""
    clients = table.rows[table.client].nunique()
    said = [f"{own.client} {own.kind}{f' ({own.column})' if own.column else ''}" for own in table.check().suspects]
    names = "; ".join(said[:4]) + (f"; {len(said) - 4} more" if len(said) > 4 else "")
    return f"| {table.name} | {clients}, {len(table.rows):,} | {names or 'none'} |"


def measure(table: Table, seed: int) -> dict[str, tuple[int, int, int]]:
    """Return for each kind how many faults were planted and found, and in how many cases others are newly accused."""
    before = accused(table.check())
    found = dict.fromkeys(KINDS, (0, 0, 0))
    for plant in plants(table, seed):
        now = accused(table.check(plant.rows))
        copied = {(plant.victim, plant.kind)}
        others = {own for own in now - before - copied if own[0] != plant.client}
        planted, right, wrong = found[plant.kind]
        found[plant.kind] = planted + 1, right + ((plant.client, plant.kind) in now), wrong + bool(others)
    return found


def read(folder: Path, names: str) -> Iterator[Table]:
    """Yield the tables of a folder, some or all of them."""
    forms = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    for name in names.split(",") if names else forms:
        client, label = forms[name][:2]
        rows = pd.read_csv(folder / f"{name}.csv", low_memory=False)
        yield Table(name=name, rows=rows, client=client, label=label)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of NAME.csv and meta.json")
    parser.add_argument("--tables", default="", help="comma separated; all by default")
    parser.add_argument("--parts", default="nature,planted", help="comma separated")
    parser.add_argument("--seed", type=int, default=SEED, help="chooses the clients, the cells and the rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # of rows that a table has twice, and of small clients
    parts = options.parts.split(",")
    if "nature" in parts:
        print("| table | clients, rows | suspects |\n|---|---|---|", flush=True)
        for table in read(options.folder, options.tables):
            print(in_nature(table), flush=True)
    if "planted" in parts:
        print(f"\n| table | {' | '.join(KINDS.values())} |\n|---|{'---|' * len(KINDS)}", flush=True)
        total = np.zeros((len(KINDS), 3), np.int64)
        for table in read(options.folder, options.tables):
            counts = np.array(list(measure(table, options.seed).values()))
            total += counts
            print(_line(table.name, counts), flush=True)
        print(_line("all", total), flush=True)


def _line(name: str, counts: np.ndarray) -> str:
    cells = [f"{found} of {planted}; {others}" if planted else "–" for planted, found, others in counts.tolist()]
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
