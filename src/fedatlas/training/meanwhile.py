"""What the server does while clients train: it adds up the changes that are in, and does what it had put off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.errors import TrainingError
from fedatlas.parts.tensor_math import weighted_sum
from fedatlas.parts.types import Memory, Tensors, Upload


class Foreseen(NamedTuple):
    """What can be told of a round's answers before they are there."""

    sizes: dict[int, int]
    """The training examples of each client, in the order in which changes are added."""
    weights: Tensor
    memory: Memory
    """What the weightings remember then."""


class Meanwhile:
    """Work for a transport that finds time for it in a round; what it leaves is done when the answers are in.

    The changes are added up under weights that can be told before the answers are there. When they are, the sum is
    taken if it is the one that is wanted, to the same bits; else it is made anew.
    """

    def __init__(
        self, foresee: Callable[[], Foreseen] | None = None, put_off: Callable[[], object] | None = None
    ) -> None:
        self._foresee, self._put_off = foresee, put_off
        self.upcoming: tuple[int, tuple[int, ...]] | None = None
        """The next round and its clients, once what was put off is done, where they can be told."""
        self._foreseen: Foreseen | None = None
        self._clients: Sequence[int] = ()
        self._taken: dict[int, Tensors] = {}
        self._added = 0
        self._total: Tensors = {}

    def catch_up(self) -> None:
        """Do what was put off, unless that is done."""
        put_off, self._put_off = self._put_off, None
        if put_off is not None:
            put_off()

    def take(self, client: int, change: Tensors) -> None:
        """Take a client's change; it is added when those before it are there, on a GPU when all are."""
        if self._foresee is None or not change:
            return
        if self._foreseen is None:
            try:
                self._foreseen = self._foresee()
            except TrainingError:  # which is told when the answers are in
                self._foresee = None
                return
            self._clients = list(self._foreseen.sizes)
        weights = self._foreseen.weights
        self._taken[client] = change
        if next(iter(change.values())).is_cuda:
            if len(self._taken) == len(self._clients):
                self._total = weighted_sum([self._taken[one] for one in self._clients], weights)
                self._added = len(self._clients)
            return
        while self._added < len(self._clients) and (found := self._taken.get(self._clients[self._added])) is not None:
            if not self._total:
                self._total = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
            weight = float(weights[self._added])
            torch._foreach_add_(list(self._total.values()), [found[name] for name in self._total], alpha=weight)
            self._added += 1

    def weighed(self, uploads: Sequence[Upload]) -> tuple[Tensor, Memory] | None:
        """Return the foreseen weights and what is remembered then, if the answers are those that were expected."""
        found = self._foreseen
        if found is None or found.sizes != {upload.client: upload.num_examples for upload in uploads}:
            return None
        return found.weights, found.memory

    def mean(self, uploads: Sequence[Upload], weights: Tensor) -> Tensors | None:
        """Return the weighted sum of these very changes if it was made, else None."""
        if self._foreseen is None or not self._added == len(self._clients) == len(uploads):
            return None
        same = all(self._taken.get(upload.client) is upload.change for upload in uploads)
        return self._total if same and torch.equal(self._foreseen.weights, weights) else None

    def let_go(self) -> None:
        """Hold the changes no longer."""
        self._taken, self._total = {}, {}
