"""The weighted sum of clients' changes, which grows while the clients still train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.errors import TrainingError
from fedatlas.parts.tensor_math import weighted_sum
from fedatlas.parts.types import Memory, Tensors, Upload


class Foreseen(NamedTuple):
    """The weights of a round's uploads, computed before the uploads arrive."""

    sizes: dict[int, int]
    """The training examples of each client, in the order in which changes are added."""
    weights: Tensor
    memory: Memory
    """The weightings' memory after this round."""


class RunningSum:
    """Adds up changes as they arrive, under weights that can be computed before.

    When all uploads have arrived, the sum is used if it is the one that is wanted, to the same bits; otherwise the
    caller computes it again. ``foresee`` is None where weights depend on the uploads themselves.
    """

    def __init__(self, foresee: Callable[[], Foreseen] | None = None) -> None:
        self._foresee = foresee
        self._foreseen: Foreseen | None = None
        self._clients: Sequence[int] = ()
        self._taken: dict[int, Tensors] = {}
        self._total: Tensors = {}
        self.added = 0
        """How many changes the sum holds so far."""

    def add(self, client: int, change: Tensors) -> None:
        """Take a client's change; it is added when all before it have arrived, on a GPU when all have."""
        if self._foresee is None or not change:
            return
        if self._foreseen is None:
            try:
                self._foreseen = self._foresee()
            except TrainingError:  # the round raises it when all uploads are in
                self._foresee = None
                return
            self._clients = list(self._foreseen.sizes)
        weights = self._foreseen.weights
        self._taken[client] = change
        if next(iter(change.values())).is_cuda:
            if len(self._taken) == len(self._clients):
                self._total = weighted_sum([self._taken[one] for one in self._clients], weights)
                self.added = len(self._clients)
            return
        while self.added < len(self._clients) and (found := self._taken.get(self._clients[self.added])) is not None:
            if not self._total:
                self._total = {name: torch.zeros_like(tensor) for name, tensor in found.items()}
            weight = float(weights[self.added])
            torch._foreach_add_(list(self._total.values()), [found[name] for name in self._total], alpha=weight)
            self.added += 1

    def weights(self, uploads: Sequence[Upload]) -> tuple[Tensor, Memory] | None:
        """Return the foreseen weights and the weightings' memory if the uploads are the expected ones, else None."""
        found = self._foreseen
        if found is None or found.sizes != {upload.client: upload.num_examples for upload in uploads}:
            return None
        return found.weights, found.memory

    def total(self, uploads: Sequence[Upload], weights: Tensor) -> Tensors | None:
        """Return the sum of exactly these changes under exactly these weights if it is complete, else None."""
        if self._foreseen is None or not self.added == len(self._clients) == len(uploads):
            return None
        same = all(self._taken.get(upload.client) is upload.change for upload in uploads)
        return self._total if same and torch.equal(self._foreseen.weights, weights) else None
