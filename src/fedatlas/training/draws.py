"""Who takes part in each round of a run, by the algorithm's sampler."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from fedatlas.errors import UsageError
from fedatlas.parts.sampler import Sampler
from fedatlas.parts.types import Roster, Tensors
from fedatlas.seeds import numpy_generator
from fedatlas.training.settings import check_cohort_size

DRAW = "Let sample() return exactly count of its candidates."
"""What a sampler must do."""


class SamplingError(UsageError):
    """A sampler drew something other than clients that may train."""


class Draws:
    """Who takes part in each round of a run. A round may be drawn before its time, while clients train."""

    def __init__(self, sampler: Sampler, roster: Roster, count: int, seed: int) -> None:
        # Once a run: among very many clients, finding those who are not held out takes time.
        self._candidates = [client.id for client in roster if not client.held_out]
        self._known = frozenset(self._candidates)
        check_cohort_size(count, len(self._candidates))
        self._sampler, self._roster, self.count, self.seed = sampler, roster, count, seed
        self._ahead: tuple[int, Tensors, tuple[list[int], Tensors]] | None = None

    def draw(self, number: int, memory: Tensors, drawn_from: Sequence[Sequence[int]] = ()) -> tuple[list[int], Tensors]:
        """Return the clients of a round and the sampler's new memory, given its memory.

        ``drawn_from`` are sets of clients that may be drawn, each for its share, if not all that may train.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == number and ahead[1] is memory and not drawn_from:
            return ahead[2]
        rng = numpy_generator(self.seed, "sampling", number)
        sets = [list(own) for own in drawn_from] or [self._candidates]
        drawn: list[int] = []
        for candidates, count in zip(sets, shares(self.count, [len(own) for own in sets]), strict=True):
            if count:
                answer = self._sampler.sample(candidates, count, self._roster, memory, rng)
                own, memory = self._sound(answer, count)
                drawn += own
        return drawn, memory

    def _sound(self, answer: tuple[Iterable[object], Tensors], count: int) -> tuple[list[int], Tensors]:
        """Return the draw with ids as Python's int; raise SamplingError if it is not a valid one."""
        title = type(self._sampler).__name__
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
            raise SamplingError(
                f"{title} returned {answer!r:.80}. Let sample() end with `return ids, memory`.",
                code="bad-draw",
                sampler=title,
            )
        if not isinstance(answer[0], Iterable):
            raise SamplingError(
                f"{title} drew {answer[0]!r:.80}, not a list of ids. {DRAW}", code="bad-draw", sampler=title
            )
        chosen = list(answer[0])
        drawn = [_whole(client) for client in chosen]
        if None in drawn:
            other = chosen[drawn.index(None)]
            raise SamplingError(
                f"{title} drew {chosen!r:.80}; {other!r:.40} is not a whole number. {DRAW}",
                code="bad-draw",
                sampler=title,
                got=other,
            )
        ids = [client for client in drawn if client is not None]
        if strangers := [client for client in ids if client not in self._known]:
            raise SamplingError(
                f"{title} drew {ids!r:.80}; client {strangers[0]} is held out or unknown. Let sample() return ids of "
                f"its {len(self._known)} candidates only.",
                code="bad-draw",
                sampler=title,
                got=strangers[0],
            )
        if len(ids) != count and not self._sampler.varies:
            raise SamplingError(
                f"{title} drew {ids!r:.80}: {len(ids)} clients, and {count} of {len(self._known)} were asked "
                f"for. {DRAW}",
                code="bad-draw",
                sampler=title,
                got=len(ids),
                wanted=count,
            )
        return ids, answer[1]

    def look_ahead(self, number: int, memory: Tensors) -> list[int] | None:
        """Draw a coming round and return its clients; None if the sampler must see this round's uploads before."""
        if type(self._sampler).observe is not Sampler.observe:
            return None
        with suppress(Exception):  # it is raised when the round has come
            self._ahead = number, memory, self.draw(number, memory)
            return self._ahead[2][0]
        return None


def shares(count: int, sizes: Sequence[int]) -> list[int]:
    """Return how many of a round's clients come from each of several sets: by size, at least one if there are enough.

    >>> shares(5, [12, 6, 2])
    [3, 1, 1]
    """
    count = min(count, sum(sizes))
    least = 1 if count >= len(sizes) else 0
    found = [min(least, size) for size in sizes]
    while sum(found) < count:
        # To the set that is furthest below its share.
        open_sets = [i for i, size in enumerate(sizes) if found[i] < size]
        found[max(open_sets, key=lambda i: (sizes[i] * count / sum(sizes) - found[i], -i))] += 1
    return found


def _whole(client: Any) -> int | None:
    """Return an id as Python's int; None if it is not a whole number, such as a truth value."""
    if isinstance(client, bool) or getattr(client, "dtype", None) in (torch.bool, np.bool_):
        return None
    try:
        return operator.index(client)
    except TypeError:
        return None
