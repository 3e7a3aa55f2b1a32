"""Where clients run: on this machine, or as nodes of a network. A client's memory stays there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fedatlas.parts.types import (
    Assignment,
    Branch,
    Candidate,
    ClientInfo,
    ClientLosses,
    ClientScore,
    InitialModel,
    Memory,
    ServerState,
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

    def takes(self, before: ServerState, after: ServerState, uploads: Sequence[Upload]) -> bool:
        """Return whether the result of a round may be kept; if not, the model stays as it was before."""
        ...

    def commit(self) -> None:
        """Make the clients' memory after this round the valid one."""
        ...

    def evaluate(
        self, shared: Tensors, buffers: Tensors, clients: Sequence[int], *, round: int, branch: Branch = ""
    ) -> Sequence[ClientScore]:
        """Return how the shared model, with each client's personal parameters, does on the clients' test parts.

        ``branch`` says in which of the clients' memories the personal parameters are.
        """
        ...


class SavedClients(Clients, Protocol):
    """Clients whose memory a checkpoint can hold."""

    memory: MutableMapping[int, Memory]
    """What a checkpoint keeps of each client."""
    changed: set[int]
    """The clients whose memory changed since the last checkpoint."""

    def test_later(
        self, shared: Tensors, buffers: Tensors, round: int, then: Callable[[list[ClientScore]], None]
    ) -> bool:
        """Test a model with the next training, and call ``then`` with the scores before that changes any memory.

        Return False where tests are as quick at once; nothing happens then.
        """
        ...

    def saved(self) -> None:
        """Take note that a checkpoint holds the memory as it is now."""
        ...

    def place(self, tensor: Tensor) -> Tensor:
        """Return a tensor from a file on the model's device and in the model's memory format."""
        ...

    def remarks(self, round: int) -> Mapping[str, Any]:
        """Return what else the record of a round shows."""
        ...

    def fallbacks(self) -> Mapping[str, int]:
        """Return why clients were left to a slower engine, and how often."""
        ...
