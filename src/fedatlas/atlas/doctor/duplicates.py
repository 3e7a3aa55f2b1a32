"""The same examples at two clients, or in training and in test.

Exact copies only. Tables with few columns repeat rows by chance, so the copies between two clients count only where
they are far more than the copies within clients make likely. It needs every client's examples, or hashes of them, which
permit to guess an example and look whether a client has it; so over a network it is not done unasked.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.atlas.doctor.suspect import FALSE_ALARMS

LEAST, SHARE = 3, 0.01
"""Copies that are worth naming, and their share of the smaller part."""
MOST_HOLDERS = 20
"""An example that more clients have, such as a blank image, is not followed pair by pair."""


class Copies(NamedTuple):
    """Examples that two parts of the federation both have."""

    first: int
    """A client, by position; its training examples."""
    second: int
    """Another, or the same: then its test examples have the copies."""
    copies: int


def content_keys(rows: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return a number for each row, (N, ...), the same for equal rows and only for those."""
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
    whole = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    return np.unique(whole, return_inverse=True)[1].astype(np.int64).ravel()


def find_copies(train: Sequence[NDArray[np.int64]], test: Sequence[NDArray[np.int64]]) -> list[Copies]:
    """Return copies between clients' training examples, and between a client's training and its test.

    Args:
        train: the keys of each client's training examples.
        test: the same of its test examples.
    """
    keys = [{*map(int, own)} for own in train]
    within = sum(len(own) - len(distinct) for own, distinct in zip(train, keys, strict=True))
    pairs = sum(math.comb(len(own), 2) for own in train)
    chance = within / pairs if pairs else 0.0
    shared = _shared(keys)
    tests = len(shared) + len(train)
    found = [
        Copies(i, j, count)
        for (i, j), count in sorted(shared.items())
        if _notable(count, len(train[i]), len(train[j]), chance, tests)
    ]
    for i, own in enumerate(test):
        count = sum(int(key) in keys[i] for key in own)
        if _notable(count, len(train[i]), len(own), chance, tests):
            found.append(Copies(i, i, count))
    return found


def _shared(keys: Iterable[set[int]]) -> dict[tuple[int, int], int]:
    """Return how many keys every two clients share, of those that share any."""
    holders: dict[int, list[int]] = defaultdict(list)
    for i, own in enumerate(keys):
        for key in own:
            holders[key].append(i)
    counts: Counter[tuple[int, int]] = Counter()
    for having in holders.values():
        if 1 < len(having) <= MOST_HOLDERS:
            counts.update(combinations(having, 2))
    return dict(counts)


def _notable(count: int, first: int, second: int, chance: float, tests: int) -> bool:
    if count < max(LEAST, SHARE * min(first, second)):
        return False
    from scipy.special import gammainc  # here, as it takes longer to load than all of this package

    expected = chance * first * second
    # The chance of so many or more, of a Poisson distribution.
    return expected == 0 or float(gammainc(count, expected)) < FALSE_ALARMS / max(tests, 1)
