"""The same examples at two clients, or in training and in test.

Exact copies only. Tables with few columns repeat rows by chance. Of a client's n rows the share c of all pairs are
equal; between two clients at most n_i n_j sqrt(c_i c_j) pairs are then equal by chance, whatever the columns are (the
inequality of Cauchy and Schwarz). Copies count only where they are far more. Test examples are compared with training
examples only where the split was given: of rows that repeat, a split that was drawn has some in both parts.

Between clients it needs every client's examples, or keyed hashes of them: whoever has the key can guess an example and
look whether a client has it. So over a network clients send hashes only if their nodes were given a key, which the
server need not know.
"""

from __future__ import annotations

import hashlib
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
BEYOND = 1.5
"""How many times what chance gives copies must be, as rows that repeat come in bursts."""
MOST_HOLDERS = 20
"""An example that more clients have, such as a blank image, is not followed pair by pair."""


class CopyFigures(NamedTuple):
    """What one client tells about its own copies; blank images do not count."""

    train: int
    test: int
    """0 where its split was drawn."""
    pairs: int
    """Pairs of training examples that are equal."""
    tested: int
    """Test examples that are in training too; 0 where its split was drawn."""


class Copies(NamedTuple):
    """Examples that two parts of the federation both have."""

    first: int
    """A client, by position."""
    second: int
    """Another, or the same: then its test examples are copies of its training examples."""
    copies: int


def content_keys(rows: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return a number for each row, (N, ...), the same for equal rows and only for those."""
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
    whole = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    return np.unique(whole, return_inverse=True)[1].astype(np.int64).ravel()


def keyed_hashes(rows: NDArray[np.generic], key: bytes) -> NDArray[np.int64]:
    """Return a hash of 8 bytes for each row, (N, ...), that only those with the key can compute.

    >>> one, other = (keyed_hashes(np.zeros((1, 2)), key) for key in (b"our secret", b"another"))
    >>> bool(one[0] == other[0])
    False
    """
    secret = hashlib.blake2b(key).digest()
    hashes = [hashlib.blake2b(row.tobytes(), digest_size=8, key=secret).digest() for row in np.ascontiguousarray(rows)]
    return np.frombuffer(b"".join(hashes), np.dtype("<i8")).astype(np.int64)


def describe_copies(train: NDArray[np.int64], test: NDArray[np.int64]) -> CopyFigures:
    """Return one client's figures, from the keys of its training and of its test examples that it was given."""
    times = Counter(map(int, train))
    pairs = sum(math.comb(count, 2) for count in times.values())
    return CopyFigures(len(train), len(test), pairs, sum(int(key) in times for key in test))


def find_copies(figures: Sequence[CopyFigures], keys: Sequence[NDArray[np.int64]] = ()) -> list[Copies]:
    """Return copies between clients, and between a client's training and its test.

    Args:
        figures: of each client.
        keys: of each client's examples; without them clients are not compared with each other.
    """
    chances = _chances(figures)
    shared = _shared({*map(int, own)} for own in keys)
    tests = len(shared) + len(figures)
    found = [
        Copies(i, j, count)
        for (i, j), count in sorted(shared.items())
        if _notable(count, len(keys[i]), len(keys[j]), math.sqrt(chances[i] * chances[j]), tests)
    ]
    for i, own in enumerate(figures):
        if _notable(own.tested, own.train, own.test, chances[i], tests):
            found.append(Copies(i, i, own.tested))
    return found


def _chances(figures: Sequence[CopyFigures]) -> list[float]:
    """Return of each client the share of pairs of its examples that are equal.

    One pair more is counted, or as much of one as all clients make likely: few examples may have none by chance.
    """
    possible = [math.comb(own.train, 2) for own in figures]
    usual = sum(own.pairs for own in figures) / max(sum(possible), 1)
    return [
        (own.pairs + min(1.0, usual * most)) / most if most else usual
        for own, most in zip(figures, possible, strict=True)
    ]


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
    expected = chance * first * second
    if count <= BEYOND * expected:
        return False
    from scipy.special import gammainc  # here, as it takes longer to load than all of this package

    # The chance of so many or more, of a Poisson distribution.
    return expected == 0 or float(gammainc(count, expected)) < FALSE_ALARMS / max(tests, 1)
