"""Random numbers come from (seed, purpose, round, client), never from a global generator.

So a result does not depend on the number of workers, the order of arrival, or where a client runs.

    partition   who holds which example
    model       the first parameters
    sampling    who takes part in a round
    batches     the order of a client's examples, its augmentation and its dropout
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:  # the command line reads the seeds' names before it loads either
    import numpy as np
    import torch


def derive(seed: int, *path: int | str) -> int:
    """Return a 63-bit seed for one place, e.g. ``derive(0, "batches", round, client)``."""
    text = "/".join([str(int(seed)), *(str(part) for part in path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator for one place."""
    import torch

    return torch.Generator(device=device).manual_seed(derive(seed, *path))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Give torch's global generators a seed, for layers that draw from them, and their old states afterwards."""
    import torch

    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    # By hand, as torch.manual_seed looks after every kind of device there might be, which takes a millisecond.
    states = [one.get_state() for one in generators]
    try:
        for one in generators:
            one.manual_seed(seed)
        yield
    finally:
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)


def numpy_generator(seed: int, *path: int | str) -> np.random.Generator:
    """Return a numpy generator for one place."""
    import numpy as np

    return np.random.default_rng(derive(seed, *path))


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """The four seeds of a run; ``Seeds.of(0)`` sets all of them to the same number."""

    partition: int = 0
    model: int = 0
    sampling: int = 0
    batches: int = 0

    @classmethod
    def of(cls, seed: int) -> Seeds:
        """Return the same seed for all four purposes."""
        return cls(partition=seed, model=seed, sampling=seed, batches=seed)


T = TypeVar("T")
_repeating: set[str] = set()
"""The types of devices for which ``repeatable`` is in effect."""


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Compute so that the bits repeat.

    On a CPU with one thread: sums then have one order, and processes do not fight for cores. On a GPU with those of
    cuDNN's algorithms that add in a fixed order. Inside another such context nothing is set again.
    """
    import torch

    if device.type in _repeating:
        yield
        return
    _repeating.add(device.type)
    before = torch.get_num_threads()
    try:
        if device.type == "cuda":
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
                yield
        else:
            torch.set_num_threads(1)
            yield
    finally:
        _repeating.discard(device.type)
        if device.type != "cuda":
            torch.set_num_threads(before)


def repeatably(items: Iterator[T], device: torch.device) -> Iterator[T]:
    """Return an iterator whose items are computed inside ``repeatable``; between them it is not in effect."""
    return items if device.type in _repeating else _each_repeatable(items, device)


def _each_repeatable(items: Iterator[T], device: torch.device) -> Iterator[T]:
    end = object()
    while True:
        with repeatable(device):
            item = next(items, end)
        if item is end:
            return
        yield cast(T, item)
