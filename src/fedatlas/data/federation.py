"""A federation: the clients and their data. Clients are index sets into arrays that are held once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedatlas.data.dataset import Dataset
from fedatlas.data.html import bars_picture, facts_table, rows_table
from fedatlas.data.preparation import Preparation
from fedatlas.errors import DataError, UsageError, expect_number, unknown_name
from fedatlas.seeds import numpy_generator

MOST_BARS, MOST_ROWS = 100, 12
"""Classes and clients of which a notebook shows how many examples there are."""


class Transform(Protocol):
    """Changes a batch of images in [0, 1], (B, channels, height, width), on its device.

    All randomness must come from ``generator``, so that the same client sees the same bits again.
    """

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed images."""
        ...


class Shift(Protocol):
    """Changes the examples of clients once and for all; equal shifts share what they change."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return other inputs and labels of the same form; both arguments stay as they are."""
        ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Client:
    """One client's share of a federation."""

    name: str
    train: Tensor
    """int64 indices into the federation's examples."""
    test: Tensor
    domain: str | None = None
    """The domain, where known: for reports and fairness, never for training."""
    type: str | None = None
    """What makes its data differ, where a partition made them so: the truth to measure by, never for training. It does
    not leave the client over a network."""
    transform: Transform | None = None
    """A lasting change of this client's images (a degradation), in training and in test."""
    held_out: bool = False
    """A held-out client never trains; it is there to be tested or adapted to."""

    @property
    def kind(self) -> str | None:
        """What results are gathered by: the type where there is one, else the domain."""
        return self.domain if self.type is None else self.type

    def __repr__(self) -> str:
        parts = [repr(self.name), f"{len(self.train):,} examples to train on, {len(self.test):,} to test on"]
        parts += [f"domain {self.domain}"] if self.domain is not None else []
        parts += [f"type {self.type}"] if self.type is not None else []
        parts += [repr(self.transform)] if self.transform is not None else []
        return f"Client({', '.join(parts)}{', held out' if self.held_out else ''})"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How the clients of a federation were made of a data set."""

    data: str
    """The data set's name."""
    rule: str | None
    """The partition with its settings; None for one that cannot be written down."""
    seed: int
    test: str | None = None
    """``client``, ``domain`` or ``all``, as ``federate`` takes it. From here on None in files of older versions."""
    test_fraction: float | None = None
    held_out: str | None = None
    """How many clients, or which, in words."""
    fold: int | None = None
    """The part that is the test, of ``folds``; None for both without a cross-validation."""
    folds: int | None = None

    @classmethod
    def read(cls, record: object) -> "Origin | None":
        """Return the origin that a record holds; None where it holds none, as in files of older versions."""
        if not isinstance(record, Mapping) or not {"data", "rule", "seed"} <= record.keys():
            return None
        known: dict[str, Any] = {own.name: record.get(own.name) for own in fields(cls)}
        return cls(**known)


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """The clients and their data."""

    data: Dataset
    clients: tuple[Client, ...]
    partition: str = ""
    """One line that describes how the clients were made."""
    origin: Origin | None = None
    """The same as a record, where ``federate`` made them."""

    def __post_init__(self) -> None:
        if not self.clients:
            raise DataError(
                f"{self.data.name}: a federation needs at least one client.", code="data-empty", what="clients"
            )
        names = [client.name for client in self.clients]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(
                f"{self.data.name}: two clients are named {twice!r}; names must differ.",
                code="name-repeated",
                client=twice,
            )
        within = self._all_within()
        for client in self.clients:
            if len(client.train) == 0 and not client.held_out:
                raise DataError(
                    f"{self.data.name}: client {client.name} has no training data. "
                    "Use fewer clients, a larger least number of samples, or leave it out.",
                    code="too-few-examples",
                    client=client.name,
                )
            for part in () if within else (client.train, client.test):
                if len(part) and not 0 <= int(part.min()) <= int(part.max()) < len(self.data):
                    raise DataError(
                        f"{self.data.name}: client {client.name} points outside the {len(self.data)} examples.",
                        code="out-of-range",
                        client=client.name,
                    )
        if all(client.held_out for client in self.clients):
            raise DataError(f"{self.data.name}: all clients are held out; at least one must train.", code="held-out")

    def _all_within(self) -> bool:
        """Return whether all index sets are within the examples: one look at all, as a look at each takes long."""
        parts = torch.cat([part for client in self.clients for part in (client.train, client.test)])
        return not len(parts) or 0 <= int(parts.min()) <= int(parts.max()) < len(self.data)

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        held_out = len(self) - len(self.training_ids)
        parts = [f"{len(self):,} clients{f' ({held_out:,} held out)' if held_out else ''}"]
        parts += [f"{sum(len(client.train) for client in self if not client.held_out):,} examples to train on"]
        for title, names in (("domains", self.domains), ("types", self.types)):
            parts += [f"{title} {', '.join(names)}"] if 0 < len(names) <= 8 else []
            parts += [f"{len(names):,} {title}"] if len(names) > 8 else []
        return f"Federation({self.name!r}, {'; '.join([*parts, self.partition] if self.partition else parts)})"

    def _repr_html_(self) -> str:
        facts = {
            "clients": len(self),
            "held out": len(self) - len(self.training_ids),
            "training examples": sum(len(client.train) for client in self),
            "classes": self.num_classes,
            "domains": ", ".join(self.domains) or "none",
            "partition": self.partition or "by hand",
        }
        rows: list[tuple[object, ...]] = [
            (c.name, c.kind or "–", len(c.train), len(c.test), "yes" if c.held_out else "no") for c in self
        ]
        heads = ["client", "type" if self.types else "domain", "to train", "to test", "held out"]
        if 1 < len(self.label_counts(0)) <= MOST_BARS:
            classes = self.data.classes
            shown = [self.label_counts(i).tolist() for i in range(min(len(rows), MOST_ROWS))]
            bars = [bars_picture(counts, classes) for counts in shown]
            rows = [(*row, bars[i] if i < len(bars) else "") for i, row in enumerate(rows)]
            heads.append("labels")
        return facts_table(f"Federation of {self.name}", facts) + rows_table(heads, rows)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients)

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.data.name

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was found where the data came from, and how inputs were made from a table, a line each."""
        made = () if self.data.preparation is None else self.data.preparation.lines()
        return (*self.data.remarks, *(f"{self.name}: {line}" for line in made))

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.data.classes)

    @property
    def training_ids(self) -> list[int]:
        """Positions of the clients that may train."""
        return [i for i, client in enumerate(self.clients) if not client.held_out]

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that clients have, in order of first appearance."""
        return tuple(dict.fromkeys(c.domain for c in self.clients if c.domain is not None))

    @property
    def types(self) -> tuple[str, ...]:
        """The types that clients have, in order of first appearance."""
        return tuple(dict.fromkeys(c.type for c in self.clients if c.type is not None))

    def position(self, client: str | int) -> int:
        """Return a client's position, by its name or position."""
        return find_client([member.name for member in self.clients], client)

    def label_counts(self, client: int, part: str = "train") -> Tensor:
        """Return how many examples of each class a client has, float32 (classes,)."""
        indices = getattr(self.clients[client], part)
        return self.data.task.counts(self.data.labels[indices].cpu(), self.num_classes)

    def to(self, device: torch.device | str) -> "Federation":
        """Return the federation with its examples on a device; index sets move along."""
        data = replace(self.data, inputs=self.data.inputs.to(device), labels=self.data.labels.to(device))
        clients = tuple(replace(c, train=c.train.to(device), test=c.test.to(device)) for c in self.clients)
        return replace(self, data=data, clients=clients)

    def fold(self, fold: int, folds: int, seed: int = 0) -> "Federation":
        """Return the federation with part ``fold`` of ``folds`` as every client's test part.

        Each client's own examples (train and test together) are shuffled once by the seed and cut into ``folds``
        parts, so the same seed gives the same folds to every method that is compared. Clients may not share a test.
        """
        if not folds >= 2 or not 0 <= fold < folds:
            raise UsageError(
                f"fold must be in [0, folds) and folds at least 2, got fold={fold}, folds={folds}.",
                code="out-of-range",
                fold=fold,
                folds=folds,
            )
        tested = torch.cat([client.test for client in self.clients])
        if len(tested.unique()) < len(tested):
            raise UsageError(
                f"{self.name}: clients are tested on the same examples, so in folds one would train on what another is "
                "tested on. Use test='client' (in a config, data.test) with folds.",
                code="partition-unfit",
                setting="test",
            )
        clients = []
        for i, client in enumerate(self.clients):
            own = torch.cat([client.train, client.test]).unique()
            if len(own) < folds:
                raise DataError(
                    f"client {client.name} has {len(own)} examples, too few for {folds} folds.",
                    code="too-few-examples",
                    client=client.name,
                    got=len(own),
                    wanted=folds,
                )
            order = torch.from_numpy(numpy_generator(seed, "folds", i).permutation(len(own))).to(own.device)
            parts = own[order].tensor_split(folds)
            rest = torch.cat([part for j, part in enumerate(parts) if j != fold])
            clients.append(replace(client, train=rest.sort().values, test=parts[fold].sort().values))
        origin = self.origin and replace(self.origin, fold=fold, folds=folds)
        line = f"{self.partition}, fold {fold} of {folds}"
        return replace(self, clients=tuple(clients), partition=line, origin=origin).prepare()

    def hold_out(self, clients: Sequence[str | int]) -> "Federation":
        """Return the federation in which the given clients (names or positions) never train."""
        chosen = {self.position(client) for client in clients}
        kept = (replace(c, held_out=c.held_out or i in chosen) for i, c in enumerate(self.clients))
        return replace(self, clients=tuple(kept)).prepare()

    def prepare(self) -> "Federation":
        """Return the federation with a table's inputs scaled by the training rows of the clients that train.

        Each client adds up its own rows, and only the sums are joined. Other data, and inputs that were prepared for a
        trained model, stay as they are.
        """
        table, was = self.data.table, self.data.preparation
        if table is None or (was is not None and was.fixed):
            return self
        sums = (table.sums(self.clients[i].train.cpu().numpy()) for i in self.training_ids)
        return replace(self, data=self.data.prepared(Preparation.from_sums(sums)))

    def with_transforms(self, transforms: Sequence[Transform | None]) -> "Federation":
        """Return the federation with one lasting transform (or None) for each client, in order."""
        if len(transforms) != len(self.clients):
            raise UsageError(
                f"give one transform for each of {len(self.clients)} clients, got {len(transforms)}.",
                code="wrong-count",
                got=len(transforms),
                what="transforms",
                wanted=len(self.clients),
            )
        if self.data.kind != "image" and any(t is not None for t in transforms):
            raise UsageError(
                f"transforms change images; {self.name} holds {self.data.kind}.",
                code="kind-mismatch",
                what="transforms",
                got=self.data.kind,
            )
        changed = (replace(c, transform=t) for c, t in zip(self.clients, transforms, strict=True))
        return replace(self, clients=tuple(changed))


def find_client(names: Sequence[str], client: str | int) -> int:
    """Return a client's position among names, by its name or position."""
    if isinstance(client, str):
        if client not in names:
            raise unknown_name("client", client, names)
        return names.index(client)
    if not 0 <= expect_number(client, "client (by position)", whole=True) < len(names):
        raise UsageError(
            f"client must be a name or a position in [0, {len(names)}), got {client}.",
            code="client-position",
            got=client,
            known=list(names),
        )
    return int(client)
