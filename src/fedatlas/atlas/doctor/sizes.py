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


def small_clients(sizes: Sequence[int]) -> list[int]:
    """Return the clients with few examples, by position: fewer than 40, and than a fifth of the typical client's.

    >>> small_clients([100, 120, 80, 12])
    [3]
    """
    typical = sorted(sizes)[len(sizes) // 2]
    return [i for i, size in enumerate(sizes) if size < USELESS or (size < FEW and SMALL * size < typical)]


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
