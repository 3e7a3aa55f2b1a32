"""The server's knowledge of data that it never sees: the form of an example, and the classes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.dataset import DTYPES, Dataset, renumbered
from fedatlas.data.federation import Client, Federation
from fedatlas.data.preparation import Preparation
from fedatlas.data.table import ColumnSums
from fedatlas.data.task import CLASSIFICATION, Task, find_task
from fedatlas.errors import DataError
from fedatlas.seeds import generator

MOST_CLASSES = 1 << 15
MOST_TOKENS = 1 << 18
MOST_NUMBERS = 1 << 26
"""The most classes, tokens and numbers in an example that a node may claim: everybody's model grows with them."""
LONGEST_NAME = 200
"""The most characters in the name of a class or a token."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """A client as the server knows it."""

    name: str
    num_train: int
    num_test: int
    domain: str | None = None
    held_out: bool = False
    key: str = ""
    """A hash of its node's public key; empty if nodes are not authenticated."""


@dataclass(frozen=True, kw_only=True)
class DataForm:
    """The form of examples. It must be the same for all clients; only classes may differ, and are merged.

    Clients with tables send the sums of their columns. All sums together make the preparation, and with it the shape.
    """

    kind: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    vocabulary: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    sums: ColumnSums | None = None
    """Of the columns of a client's table, or of several clients'."""
    preparation: Preparation | None = None
    """How every table becomes inputs, once all sums are there."""
    task: Task = CLASSIFICATION
    """What is to be predicted."""

    @classmethod
    def of(cls, data: Dataset, rows: Tensor | None = None) -> DataForm:
        """Return the form of a data set; of a table with the sums of these rows, or of none."""
        some = np.zeros(0, np.int64) if rows is None else rows.cpu().numpy()
        return cls(
            kind=data.kind,
            shape=tuple(data.inputs.shape[1:]) if data.table is None else (),
            sums=None if data.table is None else data.table.sums(some),
            classes=data.classes,
            vocabulary=data.vocabulary,
            mean=data.mean,
            std=data.std,
            task=data.task,
        )

    def values(self) -> dict[str, Any]:
        """Return the form as plain values, for a message; what tables add is one text each."""
        tables = (("sums", self.sums), ("preparation", self.preparation))
        texts = {name: "" if part is None else json.dumps(part.described()) for name, part in tables}
        return {**self._plain(), **texts}

    def record(self) -> dict[str, Any]:
        """Return the form as plain values, for a run's record."""
        prepared = {} if self.preparation is None else {"preparation": self.preparation.described()}
        return {**self._plain(), **prepared}

    def _plain(self) -> dict[str, Any]:
        names = ("kind", "shape", "classes", "vocabulary", "mean", "std")
        found = ((name, getattr(self, name)) for name in names)
        task = {} if self.task.has_classes else {"task": self.task.name}
        return {**{name: value if isinstance(value, str) else list(value) for name, value in found}, **task}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> DataForm:
        """Return the form from the plain values of a message or of a record."""
        _check_bounds(values)
        sums, preparation = (_read(values.get(name)) for name in ("sums", "preparation"))
        return cls(
            kind=str(values["kind"]),
            shape=tuple(int(n) for n in values["shape"]),
            classes=tuple(str(name) for name in values["classes"]),
            vocabulary=tuple(str(token) for token in values["vocabulary"]),
            mean=tuple(float(x) for x in values["mean"]),
            std=tuple(float(x) for x in values["std"]),
            sums=None if sums is None else ColumnSums.from_described(sums),
            preparation=None if preparation is None else Preparation.from_described(preparation),
            task=find_task(str(values.get("task", CLASSIFICATION.name))),
        )

    def unite(self, other: DataForm) -> DataForm:
        """Return the form with the classes of both; raise DataError if the examples have different forms."""
        if self._bare() != other._bare():
            raise DataError(
                f"its examples are {other.line()}, the others' are {self.line()}",
                code="kind-mismatch",
                got=other.line(),
                wanted=self.line(),
            )
        classes = self.classes
        if {*classes} != {*other.classes} and not self.task.takes_further:
            raise DataError(
                f"its targets are {list(other.classes)}, the others' are {list(classes)}",
                code="names-unfit",
                got=list(other.classes),
                known=list(classes),
            )
        if classes != other.classes:
            classes = tuple(sorted({*self.classes, *other.classes}, key=natural_order))
            _check_names("classes", classes, MOST_CLASSES)
        if other.sums is not None and self.preparation is not None:
            self.preparation.places(other.sums.columns, other.sums.kinds)
        elif other.sums is not None and self.sums is not None:
            return replace(self, classes=classes, sums=self.sums.add(other.sums))
        return replace(self, classes=classes)

    def _bare(self) -> DataForm:
        """Return the form without what may differ between clients."""
        if self.sums is None and self.preparation is None:
            return replace(self, classes=())
        return replace(self, classes=(), shape=(), sums=None, preparation=None)

    def key(self) -> tuple[object, ...]:
        """Return what must be the same for all clients, to count by: of tables the columns."""
        if self.sums is None:
            return (self.task, self.kind, self.shape, self.vocabulary, self.mean, self.std)
        return (self.task, self.kind, tuple(self.sums.columns), tuple(self.sums.kinds))

    def settled(self) -> DataForm:
        """Return the form after all clients' are united: the sums of tables become the preparation."""
        if self.sums is None:
            return self
        preparation = Preparation.from_sums([self.sums])
        return replace(self, shape=(preparation.width,), sums=None, preparation=replace(preparation, fixed=True))

    def adopt(self, data: Dataset) -> Dataset:
        """Return a client's data with its labels numbered by this form's classes, and a table's inputs made by it."""
        self.unite(DataForm.of(data))
        if self.preparation is not None:
            data = data.prepared(self.preparation)
        return renumbered(data, self.classes, self.vocabulary)

    def line(self) -> str:
        """Return the form in words."""
        scaling = f", mean {list(self.mean)}, std {list(self.std)}" if self.mean else ""
        words = f", {len(self.vocabulary)} tokens known" if self.vocabulary else ""
        task = "" if self.task.has_classes else f", for {self.task.name}"
        if self.sums is not None or self.preparation is not None:
            return f"the rows of a table{task}"
        return f"{self.kind} of shape {list(self.shape)}{scaling}{words}{task}"

    def stand_in(self, members: Sequence[Member], sizes: Sequence[int] | None = None) -> Federation:
        """Return these clients with a few random examples, in place of data that the server never sees."""
        sizes = [1] * len(members) if sizes is None else sizes
        total = sum(sizes)
        rng = generator(0, "stand-in")
        if self.kind in ("features", "array"):
            inputs = torch.randn(total, *self.shape, generator=rng)
        else:
            top = 256 if self.kind == "image" else max(1, len(self.vocabulary))
            inputs = torch.randint(top, (total, *self.shape), generator=rng).to(DTYPES[self.kind])
        data = Dataset(
            name="flower",
            inputs=inputs,
            labels=self.task.stand_ins(total, len(self.classes), self.shape),
            classes=self.classes,
            mean=self.mean,
            std=self.std,
            vocabulary=self.vocabulary,
            task=self.task,
        )
        parts = torch.arange(total).split(list(sizes))
        clients = (
            Client(name=member.name, train=own, test=own[:0], domain=member.domain, held_out=member.held_out)
            for member, own in zip(members, parts, strict=True)
        )
        return Federation(data=data, clients=tuple(clients), partition="each client's own data, at its node")


def _check_bounds(values: Mapping[str, Any]) -> None:
    """Raise DataError if a form claims more than a model could be made for; nothing is built of it before."""
    if values["kind"] not in DTYPES:
        raise DataError(
            f"its examples are of kind {values['kind']!r}, known are {', '.join(DTYPES)}",
            code="kind-mismatch",
            got=values["kind"],
            wanted=list(DTYPES),
        )
    shape = [int(length) for length in values["shape"]]
    if len(shape) > 8 or any(length < 1 for length in shape) or math.prod(shape) > MOST_NUMBERS:
        raise DataError(
            f"an example is said to have the shape {shape[:8]}; at most {MOST_NUMBERS:,} numbers are possible",
            code="out-of-range",
            got=shape[:8],
        )
    _check_names("classes", values["classes"], MOST_CLASSES)
    _check_names("vocabulary", values["vocabulary"], MOST_TOKENS)
    for name in ("mean", "std"):
        numbers = [float(x) for x in values[name]]
        if len(numbers) > 4096 or not all(math.isfinite(x) for x in numbers) or (name == "std" and 0.0 in numbers):
            raise DataError(f"its {name} cannot scale images", code="out-of-range", name=name)


def _check_names(what: str, names: Sequence[Any], most: int) -> None:
    if len(names) > most or len(set(names)) < len(names):
        raise DataError(
            f"its {what} are {len(names):,} names, {len(set(names)):,} of them different; at most {most:,} are "
            "possible, each once",
            code="out-of-range",
            name=what,
            got=len(names),
        )
    if long := next((str(name) for name in names if len(str(name)) > LONGEST_NAME), None):
        raise DataError(
            f"one of its {what} has a name of {len(long):,} characters, beginning {long[:40]!r}; at most "
            f"{LONGEST_NAME} are possible",
            code="out-of-range",
            name=what,
            got=len(long),
        )


def _read(value: Any) -> Any:
    """Return what a message holds as text, and a record as it is; None if it holds nothing."""
    return (json.loads(value) if isinstance(value, str) else value) if value else None


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts ``client-2`` before ``client-10``."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]
