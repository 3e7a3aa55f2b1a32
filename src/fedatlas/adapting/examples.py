"""The training examples that a client is adapted with."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedatlas.data.federation import Federation
from fedatlas.errors import DataError, UsageError
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
