"""The server's knowledge of data that it never sees: the form of an example, and the classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedatlas.data.dataset import DTYPES, Dataset, renumbered
from fedatlas.data.federation import Client, Federation
from fedatlas.errors import DataError
from fedatlas.seeds import generator


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
    """The form of examples. It must be the same for all clients; only classes may differ, and are merged."""

    kind: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    vocabulary: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def of(cls, data: Dataset) -> DataForm:
        """Return the form of a data set."""
        return cls(
            kind=data.kind,
            shape=tuple(data.inputs.shape[1:]),
            classes=data.classes,
            vocabulary=data.vocabulary,
            mean=data.mean,
            std=data.std,
        )

    def values(self) -> dict[str, Any]:
        """Return the form as plain values, for a message."""
        return {name: v if isinstance(v, str) else list(v) for name, v in vars(self).items()}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> DataForm:
        """Return the form from its plain values."""
        return cls(
            kind=str(values["kind"]),
            shape=tuple(int(n) for n in values["shape"]),
            classes=tuple(str(name) for name in values["classes"]),
            vocabulary=tuple(str(token) for token in values["vocabulary"]),
            mean=tuple(float(x) for x in values["mean"]),
            std=tuple(float(x) for x in values["std"]),
        )

    def unite(self, other: DataForm) -> DataForm:
        """Return the form with the classes of both; raise DataError if the examples have different forms."""
        if replace(self, classes=()) != replace(other, classes=()):
            raise DataError(
                f"its examples are {other.line()}, the others' are {self.line()}",
                code="kind-mismatch",
                got=other.line(),
                wanted=self.line(),
            )
        if self.classes == other.classes:
            return self
        return replace(self, classes=tuple(sorted({*self.classes, *other.classes}, key=natural_order)))

    def adopt(self, data: Dataset) -> Dataset:
        """Return a client's data with its labels numbered by this form's classes."""
        self.unite(DataForm.of(data))
        return renumbered(data, self.classes, self.vocabulary)

    def line(self) -> str:
        """Return the form in words."""
        scaling = f", mean {list(self.mean)}, std {list(self.std)}" if self.mean else ""
        words = f", {len(self.vocabulary)} tokens known" if self.vocabulary else ""
        return f"{self.kind} of shape {list(self.shape)}{scaling}{words}"

    def stand_in(self, members: Sequence[Member], sizes: Sequence[int] | None = None) -> Federation:
        """Return these clients with a few random examples, in place of data that the server never sees."""
        sizes = [1] * len(members) if sizes is None else sizes
        total = sum(sizes)
        rng = generator(0, "stand-in")
        if self.kind == "features":
            inputs = torch.randn(total, *self.shape, generator=rng)
        else:
            top = 256 if self.kind == "image" else max(1, len(self.vocabulary))
            inputs = torch.randint(top, (total, *self.shape), generator=rng).to(DTYPES[self.kind])
        data = Dataset(
            name="flower",
            inputs=inputs,
            labels=torch.arange(total) % len(self.classes),
            classes=self.classes,
            mean=self.mean,
            std=self.std,
            vocabulary=self.vocabulary,
        )
        parts = torch.arange(total).split(list(sizes))
        clients = (
            Client(name=member.name, train=own, test=own[:0], domain=member.domain, held_out=member.held_out)
            for member, own in zip(members, parts, strict=True)
        )
        return Federation(data=data, clients=tuple(clients), partition="each client's own data, at its node")


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts ``client-2`` before ``client-10``."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]
