"""One client's view of the examples."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedatlas.data.federation import Federation, Transform
from fedatlas.models.frozen_outputs import KeptPasses
from fedatlas.parts.types import Batch


class ResidentData:
    """One client's view of the resident examples."""

    def __init__(
        self, federation: Federation, client: int, *, channels_last: bool = False, train: Tensor | None = None
    ) -> None:
        """Take the client's position, and the examples that count as its training part if they are not all of it."""
        self.federation, self.id, self.channels_last = federation, client, channels_last
        self.client = federation.clients[client]
        if train is not None:
            self.client = replace(self.client, train=train)
        self.inputs, self.labels = federation.data.inputs, federation.data.labels
        self.task = federation.data.task

    @property
    def name(self) -> str:
        """The client's name."""
        return self.client.name

    @cached_property
    def num_examples(self) -> int:
        """How many training examples the client has."""
        return len(self.client.train)

    @cached_property
    def train_on_host(self) -> Tensor:
        """Which examples the client trains on, in the host's memory."""
        return self.client.train.cpu()

    @cached_property
    def place(self) -> int:
        """The client's position among those that train, or among the held-out ones if it is held out."""
        return sum(other.held_out == self.client.held_out for other in self.federation.clients[: self.id])

    @cached_property
    def label_counts(self) -> Tensor:
        """How many training examples of each class the client has, float32."""
        counts = self.task.counts(self.labels[self.client.train].cpu(), self.federation.num_classes)
        return counts.to(self.labels.device)

    def batch(self, indices: Tensor, rng: torch.Generator | None, augment: Transform | None = None) -> Batch:
        """Return examples ready for the model: images scaled, changed by the client's transform and normalised."""
        # On a CPU this copies whole examples, where an index would go through their numbers; a GPU has one way.
        inputs = self.inputs[indices] if self.inputs.is_cuda else self.inputs.index_select(0, indices)
        if inputs.dtype == torch.uint8:
            inputs = inputs.float().div_(255)
            if augment is not None and rng is not None:
                inputs = augment(inputs, rng)
            if self.client.transform is not None and rng is not None:
                inputs = self.client.transform(inputs, rng)
            if self.federation.data.mean:
                mean, std = self._statistics
                # A transform may return a tensor that others use; a tensor made here is changed in place.
                own = augment is None and self.client.transform is None
                inputs = (inputs.sub_(mean) if own else inputs.sub(mean)).div_(std)
        if self.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return Batch(inputs, self.labels[indices])

    def show(self, inputs: Tensor, indices: Tensor) -> None:
        """Note which training examples a batch shows, if it shows them as they are: frozen networks pass them once."""
        if self.client.transform is None:
            self._kept.show(inputs, indices)

    @cached_property
    def _kept(self) -> KeptPasses:
        return KeptPasses(self.client.train, lambda indices: self.batch(indices, None).inputs)

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        data = self.federation.data
        mean, std = (torch.tensor(v, device=self.inputs.device).view(1, -1, 1, 1) for v in (data.mean, data.std))
        return mean, std
