"""Atlases small enough to work out by hand, random ones for tiny federations, and vectors as an encoder gives them."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from fedatlas.atlas import Atlas, Embeddings, make_atlas
from fedatlas.data import Client, Dataset, Federation, Rotated, federate
from fedatlas.parts import ClientInfo
from fedatlas.seeds import generator

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


def three() -> Atlas:
    """Cosines: feature 01 = 0, 02 = 0.6, 12 = 0.8; label 01 = 1, 02 = 0, 12 = 0."""
    return Atlas(
        names=("a", "b", "c"),
        halves={
            "feature": torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]),
            "label": torch.tensor([[5.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        },
        sizes=torch.tensor([7, 1, 3]),
        domains=("x", "x", "y"),
        provenance={"source": "hand", "seed": 0},
    )


def blocks(per_block: int = 8, width: int = 12) -> Atlas:
    """Three tight bundles of directions with lengths all over the place; clients of the bundles take turns."""
    rng = generator(0, "blocks")
    centres = torch.eye(3, width).repeat(per_block, 1)
    rows = centres + 0.05 * torch.randn(3 * per_block, width, generator=rng)
    rows *= torch.rand(len(rows), 1, generator=rng) * 20 + 0.1
    return Atlas(
        names=tuple(f"client-{i}" for i in range(len(rows))),
        halves={"feature": rows, "label": torch.ones(len(rows), 4)},
        sizes=torch.arange(1, len(rows) + 1),
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


def clip_like(
    width: int = 128,
    class_width: int | None = None,
    domains: int = 4,
    clients: int = 3,
    samples: int = 32,
    classes: int = 10,
    held_out: Sequence[int] = (),
    seed: int = 0,
) -> tuple[Federation, Embeddings]:
    """Vectors in a narrow cone, as CLIP's are: a common part, the class, the domain and noise; IID clients a domain."""
    rng = generator(seed, "clip-like")

    def unit(count: int, width: int = width) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(count, width, generator=rng), dim=1)

    common, kind, look, count = unit(1), unit(classes), unit(domains), domains * clients * samples
    labels = torch.randint(classes, (count,), generator=rng)
    domain = torch.arange(count) // (clients * samples)
    examples = 10 * (0.7 * common + 0.4 * kind[labels] + 0.35 * look[domain] + 0.45 * unit(count))
    texts = kind if class_width is None else unit(classes, class_width)
    words = 8 * (0.8 * unit(1, texts.shape[1]) + 0.4 * texts + 0.4 * unit(classes, texts.shape[1]))
    members = tuple(
        Client(
            name=f"client-{i}",
            train=torch.arange(i * samples, (i + 1) * samples),
            test=torch.arange(0),
            domain=f"domain-{i // clients}",
            held_out=i in held_out,
        )
        for i in range(domains * clients)
    )
    data = Dataset(
        name="clip-like",
        inputs=torch.zeros(count, 1),
        labels=labels,
        classes=tuple(f"class {c}" for c in range(classes)),
    )
    embeddings = Embeddings(encoder="clip-like 1", examples=examples, classes=words)
    return Federation(data=data, clients=members, partition="by hand"), embeddings


def bars() -> Dataset:
    """Return four classes of noisy pictures: a bar near each edge."""
    rng = generator(0, "bars")
    labels = torch.arange(960) % 4
    images = 40 * torch.rand(960, 1, 16, 16, generator=rng)
    for label, (row, column) in enumerate(((slice(None), 2), (3, slice(None)), (slice(None), 12), (9, slice(None)))):
        images[labels == label, 0, row, column] += 150
    return Dataset(name="bars", inputs=images.to(torch.uint8), labels=labels, classes=("a", "b", "c", "d"))


def bars_atlas(federation: Federation) -> Atlas:
    """Return an atlas that knows its noise."""
    return make_atlas(federation, source="class-prototypes", progress=False)


@cache
def turned_atlas() -> Atlas:
    """Return the atlas of two groups of clients whose bars are turned by another angle."""
    return bars_atlas(federate(bars(), Rotated(num_clients=8, num_groups=2, degrees=(0, 45))))
