"""What the parts of an algorithm may see of a client: its data, and its training while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from fedatlas.data.federation import Client, Federation, Transform
from fedatlas.data.task import Task
from fedatlas.parts.types import Batch, Memory, Output, Tensors


class ClientData(Protocol):
    """One client's examples."""

    federation: Federation
    client: Client
    inputs: Tensor
    """The examples of all clients; ``client.train`` lists this client's."""
    labels: Tensor

    @property
    def name(self) -> str:
        """The client's name."""
        ...

    @property
    def num_examples(self) -> int:
        """How many training examples the client has."""
        ...

    @property
    def label_counts(self) -> Tensor:
        """How many training examples of each class the client has, float32."""
        ...

    def batch(self, indices: Tensor, rng: torch.Generator | None, augment: Transform | None = None) -> Batch:
        """Return examples ready for the model."""
        ...


class ClientContext(Protocol):
    """One client in one round, as the terms of the objective see it."""

    model: nn.Module
    parameters: Tensors
    """All trainable parameters, with their current values."""
    buffers: Tensors
    start: Tensors
    """The parameters as the client received them."""
    notes: Memory
    """The notes of the server's rules to this client, by the rule's name."""
    memory: Memory
    """The client's memory, by part; a term writes under its own name only."""
    scratch: Memory
    """Values for this round only, by part; a term writes under its own name only."""
    round: int
    lr: float
    task: Task
    """What is to be predicted; it knows the loss."""
    seed: int
    """The seed of this client's batches in this round."""
    steps: int
    """How many steps the client has taken in this round."""
    relative_rates: Mapping[str, float]
    """Factors of ``lr`` by parameter, where a factor is not 1."""

    @property
    def data(self) -> ClientData:
        """The client's examples."""
        ...

    def forward(self, parameters: Tensors, inputs: Tensor) -> Output:
        """Return the model's output with other parameters; running statistics stay as they are."""
        ...

    def compute(self, inputs: Tensor) -> Output:
        """Return the model's output with its current parameters; in training mode running statistics move."""
        ...

    def received_loss(self) -> Tensor:
        """Return the mean cross-entropy of the current model on the client's training data, in evaluation mode."""
        ...

    def passes(self) -> Iterator[Batch]:
        """Yield the client's training data once, in order and unaugmented, in batches."""
        ...
