"""Atlases small enough to work out by hand, and random ones for tiny federations."""

from collections.abc import Sequence

import torch

from fedatlas.atlas.atlas import Atlas
from fedatlas.data.federation import Federation
from fedatlas.seeds import generator
from fedatlas.types import ClientInfo

A, B, C = "client-0", "client-1", "client-2"


def by_hand(sizes: Sequence[int] = (1, 3, 2), **provenance: str) -> Atlas:
    """Cosines of the features: A and B 0, A and C 0.6, B and C 0.8; of the labels: A and B 1, both with C -1."""
    feature = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    label = torch.tensor([[1.0], [5.0], [-2.0]])
    count = len(sizes)
    return Atlas(
        names=(A, B, C)[:count],
        halves={"feature": feature[:count], "label": label[:count]},
        sizes=torch.tensor(sizes),
        provenance=provenance,
    )


def random_atlas(federation: Federation, width: int = 5, halves: Sequence[str] = ("feature", "label")) -> Atlas:
    """Random vectors for a federation's clients that may train."""
    training = [federation.clients[i] for i in federation.training_ids]
    rng = generator(0, "atlas")
    return Atlas(
        names=tuple(client.name for client in training),
        halves={half: torch.randn(len(training), width + i, generator=rng) for i, half in enumerate(halves)},
        sizes=torch.tensor([len(client.train) for client in training]),
    )


def roster_of(sizes: Sequence[int]) -> list[ClientInfo]:
    return [ClientInfo(id=i, name=f"client-{i}", num_examples=size) for i, size in enumerate(sizes)]
