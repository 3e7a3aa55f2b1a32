"""The clients that are adapted to, and the training examples that each is adapted with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Protocol

import torch

from fedatlas.data.federation import Federation
from fedatlas.errors import DataError, UsageError, expect_number
from fedatlas.seeds import numpy_generator


def with_few(federation: Federation, number: int, examples: int | None, seed: int) -> Federation:
    """Return a federation with fewer training examples of one client; a smaller choice is part of a larger one."""
    client = federation.clients[number]
    size = len(client.train)
    if size == 0 or len(client.test) == 0:
        raise DataError(
            f"client {client.name} has examples to train on: {size}, to test on: {len(client.test)}; adapting "
            "needs both. Bring more of its examples, or name the other clients only (--client, clients=).",
            code="too-few-examples",
            client=client.name,
            got=size,
        )
    if examples is None:
        return federation
    if not 1 <= examples <= size:
        raise UsageError(
            f"examples must be in [1, {size}], as client {client.name} has {size}; got {examples}.",
            code="out-of-range",
            setting="examples",
            client=client.name,
            got=examples,
        )
    order = torch.from_numpy(numpy_generator(seed, "adapting", client.name).permutation(size))
    few = replace(client, train=client.train[order[:examples].sort().values.to(client.train.device)])
    return replace(federation, clients=(*federation.clients[:number], few, *federation.clients[number + 1 :]))


class HasClients(Protocol):
    """What knows clients by name; an ``Adapter`` does."""

    @property
    def federation(self) -> Federation:
        """The clients."""
        ...

    @property
    def held_out(self) -> list[str]:
        """The names of those that never train."""
        ...

    def position(self, client: str | int | None) -> int:
        """Return a client's position."""
        ...


def chosen_clients(
    known: HasClients, clients: Sequence[str | int] | None, examples: int | Sequence[int | None] | None
) -> tuple[list[int], list[int | None]]:
    """Return the positions of the clients that are named, and how many examples each may use."""
    if isinstance(clients, str):
        raise UsageError(
            f"clients must be a list of names or positions, got {clients!r}. Write [{clients!r}].",
            code="wrong-type",
            setting="clients",
            got=clients,
        )
    if clients is None and not known.held_out:
        raise UsageError(
            f"none of the {len(known.federation)} clients is held out. Name those you want: "
            "adapt_all([client.name for client in adapter.federation]).",
            code="no-clients",
        )
    numbers = [known.position(client) for client in (known.held_out if clients is None else clients)]
    if isinstance(examples, Real | str):
        examples = expect_number(examples, "examples", whole=True)
    counts = [examples] * len(numbers) if examples is None or isinstance(examples, int) else list(examples)
    if not numbers or len(counts) != len(numbers):
        raise UsageError(
            f"give at least one client, and one number of examples each; got {numbers} and {counts}.",
            code="wrong-count",
            got=len(counts),
            wanted=len(numbers),
        )
    return numbers, counts
