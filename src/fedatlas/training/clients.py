"""Where clients run: on this machine, or as nodes of a network. A client's memory stays there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fedatlas.parts.types import (
    Assignment,
    Candidate,
    ClientInfo,
    ClientLosses,
    ClientScore,
    InitialModel,
    Memory,
    Tensors,
    Upload,
)


class Clients(Protocol):
    """The clients of a federation, as the rounds see them."""

    roster: list[ClientInfo]

    def initial(self) -> InitialModel:
        """Return the model before the first round."""
        ...

    def survey(self, assignments: Sequence[Assignment]) -> Mapping[int, Memory]:
        """Return the clients' replies before training, by client id."""
        ...

    def losses(
        self, candidates: Sequence[Candidate], clients: Sequence[int], *, round: int, held_back: bool = False
    ) -> Mapping[int, ClientLosses]:
        """Return the clients' losses under some models on their training examples, or on those that they hold back."""
        ...

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        """Start training, and return an iterator over the uploads as they arrive.

        The metrics of an upload are complete when the iterator has ended.
        """
        ...

    def prepare(self, round: int, clients: Sequence[int]) -> None:
        """Get ready for the next round while this one's clients train. It may do nothing."""
        ...

    def commit(self) -> None:
        """Make the clients' memory after this round the valid one."""
        ...

    def evaluate(
        self, shared: Tensors, buffers: Tensors, clients: Sequence[int], *, round: int, branch: bool = False
    ) -> Sequence[ClientScore]:
        """Return how the shared model, with each client's personal parameters, does on the clients' test parts.

        With ``branch`` the personal parameters are those of the clients' second memory.
        """
        ...


class SavedClients(Clients, Protocol):
    """Clients whose memory a checkpoint can hold."""

    memory: MutableMapping[int, Memory]
    """What a checkpoint keeps of each client."""
    changed: set[int]
    """The clients whose memory changed since the last checkpoint."""

    def place(self, tensor: Tensor) -> Tensor:
        """Return a tensor from a file on the model's device and in the model's memory format."""
        ...

    def remarks(self, round: int) -> Mapping[str, Any]:
        """Return what else the record of a round shows."""
        ...

    def fallbacks(self) -> Mapping[str, int]:
        """Return why clients were left to a slower engine, and how often."""
        ...
