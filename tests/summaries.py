"""Summaries of clients: by hand, and of Gaussian classes whose shifts are known."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedatlas.atlas import Embeddings, Summary, Whitening
from fedatlas.data import Client, Dataset, Federation
from fedatlas.seeds import generator

CLASSES, WIDTH = 6, 12


def one_dimension(
    counts: Sequence[Sequence[int]],
    means: Sequence[Sequence[float]],
    scatter: Sequence[Sequence[float]],
    squares: Sequence[Sequence[float]],
) -> Summary:
    """Return a summary in one direction, whose whitening is exact: clients x classes of each."""
    whitening = Whitening(
        centre=torch.zeros(1).double(),
        basis=torch.ones(1, 1).double(),
        spread=torch.zeros(1).double(),
        span=torch.zeros(1, 0).double(),
        examples=torch.tensor(1000),
    )
    table = torch.tensor(scatter).double()
    return Summary(
        whitening=whitening,
        labelled=True,
        counts=torch.tensor(counts),
        means=torch.tensor(means)[:, :, None],
        scatter=table,
        squares=torch.tensor(squares).double(),
        halves=torch.zeros_like(table),
        inside=torch.zeros_like(table),
        inside_squares=torch.zeros_like(table),
    )


def gaussian(
    kinds: Sequence[str],
    *,
    examples: int = 60,
    seed: int = 0,
) -> tuple[Federation, Embeddings]:
    """Return clients with Gaussian classes, four standard deviations apart or so.

    A kind is ``plain``, ``shifted`` (every example moved), ``swapped`` (the first two classes change names), ``both``,
    or ``few`` (only three classes, in other shares).
    """
    rng = generator(seed, "gaussian clients")
    centres = 1.5 * torch.randn(CLASSES, WIDTH, generator=generator(0, "centres"))
    offset = 1.5 * torch.randn(WIDTH, generator=generator(1, "offset"))
    rows, labels = [], []
    for kind in kinds:
        weights = torch.tensor([0.6, 0.2, 0.2, 0, 0, 0]) if kind == "few" else torch.ones(CLASSES)
        own = torch.multinomial(weights, examples, replacement=True, generator=rng)
        moved = offset if kind in ("shifted", "both") else torch.zeros(WIDTH)
        rows.append(centres[own] + moved + torch.randn(examples, WIDTH, generator=rng))
        named = own.clone()
        if kind in ("swapped", "both"):
            named[own == 0], named[own == 1] = 1, 0
        labels.append(named)
    return federation(rows, labels)


def federation(rows: Sequence[Tensor], labels: Sequence[Tensor]) -> tuple[Federation, Embeddings]:
    """Return clients with these embeddings and labels."""
    data = Dataset(
        name="rows",
        inputs=torch.zeros(sum(map(len, rows)), 1),
        labels=torch.cat(list(labels)),
        classes=tuple("abcdefghij"[:CLASSES]),
    )
    parts = torch.arange(len(data)).split([len(own) for own in rows])
    none = torch.tensor([], dtype=torch.int64)
    clients = tuple(Client(name=f"client-{i}", train=part, test=none) for i, part in enumerate(parts))
    embeddings = Embeddings(encoder="rows", examples=torch.cat(list(rows)), classes=torch.eye(CLASSES))
    return Federation(data=data, clients=clients), embeddings
