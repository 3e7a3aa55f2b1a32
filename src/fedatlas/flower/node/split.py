"""Which of its rows a node trains on and which it tests on: its owner's file says it, and no run does.

The parts are drawn once, by the policy's seed and share, and kept beside the client's memory row by row. A row is known
by its content (a picture by its file), so it stays in its part however a run reads the data. A row that came later is
left out until the owner lets it in: two answers must not differ by a single row.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.data import Dataset, Federation, Iid, federate
from fedatlas.data.loading.catalogue import kind_of
from fedatlas.data.loading.cells import Cells, read_cells
from fedatlas.data.loading.image_folder import picture_files
from fedatlas.data.table import ColumnSums, Table
from fedatlas.errors import DataError, RunFolderError
from fedatlas.flower.node.policy import Policy, PolicyError
from fedatlas.runs.files import atomic_write, private_folder
from fedatlas.seeds import numpy_generator

SPLIT, TOLD = "split.json", "table.json"
"""In the folder of a client's memory."""


@dataclass
class KeptSplit:
    """The parts that were drawn, in the file that keeps them."""

    path: Path
    train: list[str] = field(default_factory=list)
    """The names of rows, as ``row_names`` gives them."""
    test: list[str] = field(default_factory=list)
    waiting: int = 0
    """How many rows of the data are in neither part."""
    lets_in: bool = False
    """Whether the owner wants those in the parts."""
    draws: int = 0

    @classmethod
    def read(cls, path: Path) -> KeptSplit:
        """Return what a file keeps; raise RunFolderError if it cannot be read."""
        try:
            kept = cls(path, **json.loads(path.read_bytes()))
            lists = isinstance(kept.train, list) and isinstance(kept.test, list)
            if not lists or not all(isinstance(name, str) for name in (*kept.train, *kept.test)):
                raise TypeError("a part is no list of names")
            kept.waiting, kept.draws = int(kept.waiting), int(kept.draws)
        except (OSError, RecursionError, TypeError, ValueError) as error:
            raise _unreadable(path, error) from error
        return kept

    def write(self) -> None:
        """Write the file."""
        private_folder(self.path.parent)
        own = {name: value for name, value in vars(self).items() if name != "path"}
        atomic_write(self.path, json.dumps(own).encode())


def divided(data: Dataset, source: str | None, policy: Policy, memory: Path | None) -> Federation:
    """Return the rows as one client with its training and its test part.

    ``source`` is the file or folder that the data were read from, if it is one. Without a ``memory`` to keep the parts
    in they are drawn each time, the same for the same rows.
    """
    # Without an official test part, a share of the rows becomes the test part.
    official = not policy.folds and data.is_test is not None and bool(data.is_test.any())
    test, seed = "all" if official else "client", policy.split_seed
    drawn = federate(data, Iid(num_clients=1), test=test, test_fraction=policy.test_fraction, seed=seed)
    drawn = drawn.fold(policy.fold, policy.folds, seed) if policy.folds else drawn
    if memory is None:
        return drawn
    names, path = row_names(data, source, official=official), memory / SPLIT
    if not path.exists():
        (client,) = drawn.clients
        train, test_part = ([names[i] for i in part.tolist()] for part in (client.train, client.test))
        KeptSplit(path, train, test_part).write()
        return drawn
    kept = KeptSplit.read(path)
    places = _places(names, kept, data, policy, official=official)
    if not len(places[0]):
        raise DataError(
            f"no row of the data is in the training part that {path} keeps. If they are other data, delete that file, "
            "and the parts are drawn again.",
            code="split-unfit",
            path=str(path),
        )
    return replace(drawn, clients=(replace(drawn.clients[0], train=places[0], test=places[1]),)).prepare()


def _places(
    names: Sequence[str], kept: KeptSplit, data: Dataset, policy: Policy, *, official: bool
) -> tuple[Tensor, Tensor]:
    """Return where the rows of both parts stand, after those have come in that the owner lets in."""
    known = {*kept.train, *kept.test}
    new = [i for i, name in enumerate(names) if name not in known]
    waiting = len(new)
    if kept.lets_in:
        for part, rows in zip((kept.train, kept.test), _more(new, kept, data, policy, official=official), strict=True):
            if len(rows) >= policy.least_examples:
                part += [names[i] for i in rows]
                waiting -= len(rows)
    if waiting < len(new):
        kept.lets_in, kept.draws = False, kept.draws + 1
    if waiting != kept.waiting or waiting < len(new):
        kept.waiting = waiting
        kept.write()
        print(
            f"rows left out, as they came after the parts were drawn: {waiting:,}. Let them in with "
            f"`fedatlas flower split --let-in`, {policy.least_examples} or more at a time",
            flush=True,
        )
    place = {name: i for i, name in enumerate(names)}
    train, test = (sorted(place[name] for name in part if name in place) for part in (kept.train, kept.test))
    return torch.tensor(train, dtype=torch.int64), torch.tensor(test, dtype=torch.int64)


def _more(
    new: Sequence[int], kept: KeptSplit, data: Dataset, policy: Policy, *, official: bool
) -> tuple[list[int], list[int]]:
    """Return which of the new rows are for training, and which for the test."""
    if official and data.is_test is not None:
        is_test = data.is_test.tolist()
        return [i for i in new if not is_test[i]], [i for i in new if is_test[i]]
    order = numpy_generator(policy.split_seed, "partition", "more", kept.draws).permutation(new).tolist()
    count = round((1 / policy.folds if policy.folds else policy.test_fraction) * len(order))
    count = count if count >= policy.least_examples else 0
    return order[count:], order[:count]


def row_names(data: Dataset, source: str | None, *, official: bool) -> list[str]:
    """Return a name for each row that depends on the row alone, not on how a run reads it; equal rows are numbered.

    Where the file says which rows are for test, that is part of the name.
    """
    seen: Counter[str] = Counter()
    parts = data.is_test.tolist() if official and data.is_test is not None else [False] * len(data)
    names = []
    for content, is_test in zip(_contents(data, source), parts, strict=True):
        name = f"{'test-' if is_test else ''}{hashlib.blake2b(content, digest_size=16).hexdigest()}"
        names.append(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def _contents(data: Dataset, source: str | None) -> Iterator[bytes]:
    if source is not None and kind_of(source) == "folder":
        folder = Path(source).expanduser()
        return (str(file.relative_to(folder)).encode() for file in picture_files(folder, task=data.task.name))
    if data.table is not None:
        of_file = source is not None and kind_of(source) == "table"
        return _rows(read_cells(str(source)).columns if of_file else _cells(data.table))
    if data.vocabulary and data.kind == "tokens":  # new texts may bring characters that number the tokens anew
        return (" ".join(data.vocabulary[token] for token in row).encode() for row in data.inputs.tolist())
    return (row.numpy().tobytes() for row in data.inputs.cpu())


def _rows(columns: Mapping[str, Cells]) -> Iterator[bytes]:
    named = (columns[name] for name in sorted(columns))
    texts = [cells if isinstance(cells, list) else cells.tolist() for cells in named]
    return ("\x1f".join(map(str, row)).encode("utf-8", "surrogatepass") for row in zip(*texts, strict=True))


def _cells(table: Table) -> dict[str, Cells]:
    """Return the columns of a table with the names of categories: their numbers depend on all rows."""
    named: dict[str, Cells] = {}
    for column, categories, values in zip(table.columns, table.categories, table.values.T, strict=True):
        named[column] = [("" if np.isnan(v) else categories[int(v)]) for v in values] if categories else values
    return named


class Told:
    """What a node told of its table: how it was read, and the sums of its columns. The first answer is kept."""

    def __init__(self, memory: Path, reading: Mapping[str, Any]) -> None:
        """Take the folder of the client's memory, and how this run reads the table; {} for what is no table."""
        self.path, self.reading = memory / TOLD, json.loads(json.dumps(reading, default=str))
        self.kept: dict[str, Any] | None = None
        if self.path.exists():
            try:
                self.kept = {"sums": None, **json.loads(self.path.read_bytes())}
                self.kept["reading"].keys()
                if self.kept["sums"] is not None:
                    ColumnSums.from_described(self.kept["sums"])
            except (AttributeError, DataError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
                raise _unreadable(self.path, error) from error
        self._new: dict[str, Any] | None = None

    def check(self) -> None:
        """Raise PolicyError if the table was read otherwise when it was told; nothing of it is read before."""
        before = self.reading if self.kept is None else self.kept["reading"]
        keys = sorted(key for key in {*before, *self.reading} if before.get(key) != self.reading.get(key))
        if keys:
            raise PolicyError(
                f"against the policy of this node: its table is told once, and was read with other settings then "
                f"({', '.join(f'data.{key}' for key in keys)}). Its owner can delete {TOLD} in the client's memory",
                code="against-policy",
                kind="reading",
                got=keys,
            )

    def sums(self, found: ColumnSums) -> ColumnSums:
        """Return the sums that were told first: of these rows, or of those that there were."""
        sums = None if self.kept is None else self.kept.get("sums")
        if sums is None:
            self._new = found.described()
            return found
        first = ColumnSums.from_described(sums)
        if (first.columns, first.kinds) != (found.columns, found.kinds):
            raise DataError(
                f"the table has other columns than when its sums were told. Delete {self.path} to tell them again.",
                code="names-unfit",
                path=str(self.path),
            )
        return first

    def keep(self) -> None:
        """Write what is told now for the first time; the reply must not leave before."""
        if (not self.reading and self._new is None) or (self.kept is not None and self._new is None):
            return
        private_folder(self.path.parent)
        self.kept = {"reading": self.reading, "sums": self._new}
        atomic_write(self.path, json.dumps(self.kept).encode())


def _unreadable(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(
        f"{path} cannot be read ({error}); restore it from a copy.", code="file-unreadable", path=str(path)
    )
