"""Clients that are right but rare: few examples, missing classes, columns that were never measured."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

USELESS = 3
"""A client with fewer examples cannot be compared with any other."""
SMALL = 5
"""A client with fewer examples than the typical one by this factor is small."""
FEW = 40
"""One with more is not called small."""
USUAL = 0.8
"""A class that this share of the clients have is one that others may be said to lack."""
FEWER_EXAMPLES, FEWER_CLASSES = 0.5, 0.6
"""By the typical client's: with fewer, a client is rare in its federation, and its labels are hard to judge."""


def small_clients(sizes: Sequence[int]) -> list[int]:
    """Return the clients with few examples, by position: fewer than 40, and than a fifth of the typical client's.

    >>> small_clients([100, 120, 80, 12])
    [3]
    """
    typical = sorted(sizes)[len(sizes) // 2]
    return [i for i, size in enumerate(sizes) if size < USELESS or (size < FEW and SMALL * size < typical)]


def rare_clients(counts: Tensor) -> dict[int, str]:
    """Return the clients that are rare in their federation, by position, and in what.

    They have fewer than half of the typical client's examples, or fewer than 0.6 of its classes. Where all clients lack
    classes, none is rare by that.

    >>> import torch
    >>> rare_clients(torch.tensor([[20, 20, 20], [20, 20, 20], [30, 30, 0], [0, 60, 0], [9, 9, 9]]))
    {3: 'few classes', 4: 'few examples'}
    """
    sizes, classes = counts.sum(1), (counts > 0).sum(1)
    small = sizes < FEWER_EXAMPLES * sizes.median()
    lacking = classes < FEWER_CLASSES * classes.median()
    return {i: "few examples" if small[i] else "few classes" for i in (small | lacking).nonzero().flatten().tolist()}


def lacking_classes(counts: Tensor) -> dict[int, list[int]]:
    """Return the classes that a client lacks and most others have, by the client's position.

    A class is named where chance does not explain it: the client would have three of it at the others' share.
    """
    found: dict[int, list[int]] = {}
    having = (counts > 0).double().mean(0)
    shares = counts.sum(0) / counts.sum().clamp(min=1)
    for i, own in enumerate(counts):
        expected = shares * int(own.sum())
        lacking = ((own == 0) & (having >= USUAL) & (expected >= USELESS)).nonzero().flatten().tolist()
        if lacking:
            found[i] = lacking
    return found
