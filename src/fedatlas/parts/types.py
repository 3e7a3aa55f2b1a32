"""The nouns that flow between the server and its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from torch import Tensor

Tensors = dict[str, Tensor]
"""Named tensors: parameters, a change, a control variate."""
UsualModels = Mapping[str, tuple[str, Mapping[str, Any]]]
"""For a kind of data, the name and the options of a model."""
Memory = dict[str, Tensors]
"""The memory or the messages of each part, by the part's name."""

Branch = Literal["", "branch", "rival"]
"""Which of a client's memories: that for the common model, for its group's, or for the common one in a trial."""
GROUP: Final[Branch] = "branch"
RIVAL: Final[Branch] = "rival"


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientInfo:
    """What the server may know of a client."""

    id: int
    name: str
    num_examples: int
    """Training examples."""
    held_out: bool = False
    introduction: Memory = field(default_factory=dict)
    """What the algorithm's parts asked before training, each part under its own name."""


Roster = Sequence[ClientInfo]
"""All clients, held-out ones too; a client's id is its position."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
    """What the server sends to one client."""

    round: int
    """Rounds count from 1."""
    rounds: int
    client: int
    shared: Tensors
    """The shared parameters."""
    buffers: Tensors
    """The shared buffers (running statistics), where they are averaged."""
    notes: Memory = field(default_factory=dict)
    test_own: bool = False
    """Also test the client's own model when it is trained, before the server averages."""
    holds_back: bool = False
    """Train without the examples that are held back for a comparison of models."""
    turn: int = 0
    """Which of the round's turns, from 0: while groups are tried, a client trains more than one model in a round."""
    branch: Branch = ""
    """Which of the client's memories to use, where it trains more than one model."""
    restarts: bool = False
    """Begin that memory again, as a copy of the first."""
    forgets: bool = False
    """Forget the memory that belongs to a trial."""

    @property
    def version(self) -> str:
        """What the client's memory after this turn is called: the round, and the turn if it is not the first."""
        return f"{self.round}.{self.turn}" if self.turn else str(self.round)


@dataclass(frozen=True, kw_only=True, eq=False)
class Upload:
    """What one client sends back after training."""

    client: int
    num_examples: int
    num_steps: int
    change: Tensors
    """End minus start, shared parameters only."""
    buffers: Tensors
    """The shared buffers at the end."""
    notes: Memory = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    score: ClientScore | None = None
    """How the client's own model does on its test part, where the assignment asked."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cohort:
    """What the server holds when the answers of a round are in."""

    round: int
    rounds: int
    roster: Roster
    uploads: Sequence[Upload]
    """In the order of client ids, whoever answered first."""
    draws: Mapping[int, int]
    """How often each client was drawn; more than once only where the sampler draws with replacement."""
    shared: Tensors
    """The shared parameters that the clients received."""
    lr: float
    """The clients' learning rate in this round."""
    size: int = 0
    """How many clients a round has by the settings, however many were drawn or answered."""
    seed: int = 0
    """Of the server's random numbers in this round."""

    @property
    def num_training_clients(self) -> int:
        """How many clients of the federation may train."""
        return sum(not client.held_out for client in self.roster)


Value = float | list[Any]
"""A metric's value: a number, or a list of numbers or of such lists; NaN where it is undefined."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientScore:
    """How one model does on one client's test part."""

    client: int
    num_examples: int
    values: Mapping[str, Value]
    """The metrics by name: the task's main one first, then the loss, then further ones that a run asks for."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Where a value would be in 95 of 100 such test parts, where asked for."""

    @property
    def main(self) -> float:
        """The value of the task's main metric."""
        return float(next(iter(self.values.values())))  # type: ignore[arg-type]

    @property
    def accuracy(self) -> float:
        """The share of test examples that were right."""
        return float(self.values["accuracy"])  # type: ignore[arg-type]

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.values["loss"])  # type: ignore[arg-type]


class InitialModel(NamedTuple):
    """The model before the first round."""

    shared: Tensors
    buffers: Tensors
    """The shared buffers (running statistics), where they are averaged."""
    personal: frozenset[str]
    """The names of the parameters and buffers that stay with each client."""
    grouped: frozenset[str] = frozenset()
    """The names of the parameters and buffers that each group of clients has for itself."""


class Candidate(NamedTuple):
    """A model whose loss is asked for."""

    shared: Tensors
    buffers: Tensors
    branch: Branch = ""
    """In which of a client's memories its personal parameters for the model are."""


class ClientLosses(NamedTuple):
    """A client's losses under several models, on the same examples."""

    num_examples: int
    means: Tensor
    """float64 (models,): mean cross-entropy."""
    squares: Tensor
    """float64 (models,): the mean square of an example's loss minus its loss under the first model."""


def same_structure(one: Tensors, other: Tensors) -> bool:
    """Return whether two dictionaries hold tensors of the same names and shapes."""
    return one.keys() == other.keys() and all(one[name].shape == other[name].shape for name in one)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupState:
    """What clients share with each other, and what the server remembers for them."""

    shared: Tensors
    buffers: Tensors
    memory: Memory
    """What weightings and server rules remember, keyed ``slot/name``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerState(GroupState):
    """All that the server carries from round to round; ``shared`` and ``buffers`` are what all clients share."""

    round: int
    """The last finished round; 0 before the first."""
    groups: tuple[GroupState, ...] = ()
    """What each group of clients shares beyond that."""
    group_of: Tensor | None = None
    """int64 (clients,): the group of each client, -1 for none; None where there are no groups."""

    @property
    def has_common_model(self) -> bool:
        """Whether what all clients share is a whole model, which needs nothing from a group."""
        return all(
            {**own.shared, **own.buffers}.keys() <= {**self.shared, **self.buffers}.keys() for own in self.groups
        )

    def group(self, client: int) -> int | None:
        """Return the group whose model a client uses; None for what all clients share."""
        found = None if self.group_of is None else int(self.group_of[client])
        return None if found is None or found < 0 else found

    def model(self, group: int | None = None) -> tuple[Tensors, Tensors]:
        """Return the parameters and buffers of a group's model: what all share, and what the group shares."""
        if group is None or group < 0:
            return self.shared, self.buffers
        own = self.groups[group]
        return {**self.shared, **own.shared}, {**self.buffers, **own.buffers}

    def model_of(self, client: int) -> tuple[Tensors, Tensors]:
        """Return the parameters and buffers of a client's model, without what the client keeps for itself."""
        return self.model(self.group(client))


class Batch(NamedTuple):
    """One minibatch, ready for the model."""

    inputs: Tensor
    labels: Tensor
    weights: Tensor | None = None
    """What each example counts, where some are padding; only a term that weighs examples ever sees them."""


class Output(NamedTuple):
    """What a model returns for a batch."""

    features: Tensor
    """(B, width), the input of the classifier."""
    logits: Tensor
