"""Who shares a model with whom: one model for all clients, or one for each group of them.

A parameter belongs to all clients, to a group or to one client. ``level`` says which parameters each group has for
itself: all of them, the head, or the normalisation layers. The others are common to all. What the algorithm's split
keeps with a client belongs to that client, whatever the level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.models.head import head_parameters
from fedatlas.models.norms import NORM_LAYERS
from fedatlas.parts.part import ServerPart, plain
from fedatlas.parts.split import floating_buffers
from fedatlas.parts.types import GROUP, RIVAL, Branch, ClientLosses, Cohort, Roster, Tensors

Level = Literal["all", "head", "norms"]
COMMON = -1
"""The group of a client that is in none: it uses what is common to all."""


class Plan(NamedTuple):
    """What one turn of a round trains; all rounds but those of a trial have one turn."""

    common: bool = False
    """Whether the common model is trained, although there are groups: by all clients, or by those in no group."""
    group_of: Tensor | None = None
    """Where each client trains, if not in the group that serves it: int64 (clients,)."""
    branch: Branch = ""
    """Which of their memories clients use."""
    begins: Sequence[int] = ()
    """The groups that start again from the common model in this turn."""
    restarts: Sequence[int] = ()
    """The clients that begin this memory again in this turn."""
    beside: bool = False
    """Whether the common model, which has its turn in the same round, stays as it is; who is in no group pauses."""
    forgets: bool = False
    """Whether clients forget the memory that belongs to a trial."""
    holds_back: bool = False
    """Whether clients train without the examples that they hold back."""
    compares: bool = False
    """Whether the sharing's rival model and the groups' are compared on these examples after the round."""
    drawn_from: Sequence[Sequence[int]] = ()
    """Sets of clients that may be drawn, each for its share of the round; by default one set of all that may train."""

    def has(self, client: int) -> bool:
        """Return whether a client takes this turn."""
        if self.group_of is None or not (self.common or self.beside):
            return True
        return (int(self.group_of[client]) == COMMON) == self.common

    @property
    def model(self) -> str:
        """What is trained, in words."""
        return {"": "common", GROUP: "groups", RIVAL: "rival"}[self.branch]


PLAIN = Plan()


class Regrouped(NamedTuple):
    """The groups after a round."""

    group_of: Tensor
    """int64 (clients,): the group of each client, or ``COMMON``."""
    memory: Tensors
    """The part's new memory."""
    parents: Sequence[int] | None = None
    """For each group after the round, the group before it whose model and memory it takes over; None: as before."""


class Sharing(ServerPart):
    """Divides the clients into groups, each with its model. Subclasses are frozen dataclasses.

    A server rule and a weighting work for each group by itself, on the uploads of its clients, with a memory for each
    group. In their roster the clients of other groups are marked as held out.
    """

    level: Level = "all"
    keeps_common: ClassVar[bool] = False
    """Whether there is a common model of all parameters, beside those of the groups."""
    needs_everyone: ClassVar[bool] = False
    """Whether all clients must take part in every round."""
    asks: ClassVar[bool] = False
    """Whether each client is asked for its loss under the model of every group before it trains."""

    def grouped_names(self, model: nn.Module) -> set[str]:
        """Return the names of the parameters and floating buffers that each group has for itself."""
        match self.level:
            case "all":
                return {name for name, _ in model.named_parameters()} | floating_buffers(model)
            case "head":
                return set(head_parameters(model))
        return norm_names(model)

    def place(self, roster: Roster) -> Tensor:
        """Return int64 (clients,): the group of each client before the first round, or ``COMMON``."""
        raise TypeError(f"{type(self).__name__} must define place()")

    def num_groups(self, group_of: Tensor) -> int:
        """Return how many groups there are before the first round."""
        return int(group_of.max()) + 1

    def serving(self, roster: Roster) -> Tensor | None:
        """Return the group that serves each client before the first round; None: the common model serves all.

        Only where there is a common model.
        """
        return None

    def initial(self, shared: Tensors, group: int) -> Tensors:
        """Return the parameters that a group starts with, given those of the model."""
        return shared

    def plan(self, memory: Tensors, roster: Roster, round: int, rounds: int) -> Sequence[Plan]:
        """Return what a round trains, turn by turn; by default a client trains with the group that serves it."""
        return (PLAIN,)

    def decide(
        self,
        memory: Tensors,
        roster: Roster,
        losses: Mapping[int, Mapping[int, ClientLosses]],
        round: int,
        rounds: int,
    ) -> tuple[Tensor | None, Tensors]:
        """Return which group serves each client, and the memory, after a comparison; only where a plan compares.

        None in place of the groups says that nothing is decided yet.
        ``losses`` are those of each group's clients, under the rival, which is the last group, and under the group's
        model.
        """
        raise TypeError(f"{type(self).__name__} must define decide()")

    def remarks(self, memory: Tensors) -> dict[str, Any]:
        """Return what the record of a round shows of the memory, as plain values."""
        return {}

    def choose(self, losses: Tensor) -> int:
        """Return a client's group for this round, given its loss under each group's model; only where it asks."""
        return int(losses.argmin())

    def observe(self, memory: Tensors, group_of: Tensor, cohorts: Mapping[int, Cohort]) -> Regrouped:
        """Return the groups after a round, given the uploads of each group that had any."""
        return Regrouped(group_of, memory)


@dataclass(frozen=True, kw_only=True)
class One(Sharing):
    """All clients share one model."""

    name: ClassVar[str] = "one"
    level: Level = "all"
    reason: str = ""
    """Why, where an atlas was asked."""

    def grouped_names(self, model: nn.Module) -> set[str]:
        """Return none: all is common."""
        return set()

    def place(self, roster: Roster) -> Tensor:
        """Return that no client is in a group."""
        return torch.full((len(roster),), COMMON)

    def num_groups(self, group_of: Tensor) -> int:
        """Return 0."""
        return 0


@dataclass(frozen=True, kw_only=True, eq=False)
class ByGroup(Sharing):
    """Each group of clients has a model; the groups are known before training, from an atlas or otherwise.

    >>> from fedatlas.parts.types import ClientInfo
    >>> roster = [ClientInfo(id=i, name=name, num_examples=9) for i, name in enumerate("abc")]
    >>> ByGroup(groups={"a": 0, "b": 1, "c": 0}).place(roster).tolist()
    [0, 1, 0]
    """

    name: ClassVar[str] = "by_group"
    groups: Mapping[str, int] = field(default_factory=dict)
    """The group of each client, by the client's name; groups are 0, 1, ... without a gap."""
    level: Level = "all"
    from_each: bool = False
    """Draw each group's share of a round's clients from that group, at least one if there are enough."""
    reason: str = ""
    """Why, where an atlas was asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        found = sorted(set(self.groups.values()))
        if not found or found != list(range(len(found))):
            raise UsageError(
                f"ByGroup(groups) must give clients the groups 0, 1, ... without a gap; got the groups {found}.",
                code="wrong-value",
                setting="groups",
                got=found,
            )

    def place(self, roster: Roster) -> Tensor:
        """Return the group of each client; a held-out client that has none is left without a model."""
        for client in roster:
            if client.name not in self.groups and not client.held_out:
                raise _without_group(client.name)
        return torch.tensor([self.groups.get(client.name, COMMON) for client in roster])

    def num_groups(self, group_of: Tensor) -> int:
        """Return how many groups are given, with those whose clients are all held out."""
        return len(set(self.groups.values()))

    def plan(self, memory: Tensors, roster: Roster, round: int, rounds: int) -> Sequence[Plan]:
        """Return that each group trains its model."""
        if not self.from_each:
            return (PLAIN,)
        members: dict[int, list[int]] = {}
        for client, group in zip(roster, self.place(roster).tolist(), strict=True):
            if not client.held_out:
                members.setdefault(group, []).append(client.id)
        return (Plan(drawn_from=[members[group] for group in sorted(members)]),)

    def check_clients(self, federation: Federation) -> list[str]:
        """Return a remark about held-out clients without a group; raise UsageError if one that trains has none."""
        missing = [client for client in federation if client.name not in self.groups]
        training = next((client.name for client in missing if not client.held_out), None)
        if training is not None:
            raise _without_group(training)
        if not missing or self.keeps_common:
            return []
        return [
            f"{len(missing)} held-out clients have no group ({missing[0].name}, ...) and are not tested: no model is "
            "theirs. Give them a group, or bring them in later with `fedatlas adapt`."
        ]

    def describe(self) -> dict[str, Any]:
        """Return the level and the members of each group, as plain values."""
        members: dict[int, list[str]] = {}
        for client, group in sorted(self.groups.items()):
            members.setdefault(group, []).append(client)
        others = {own.name: plain(getattr(self, own.name)) for own in fields(self) if own.name != "groups"}
        return {"part": type(self).__name__, **others, "groups": [members[group] for group in sorted(members)]}


def norm_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters and running statistics of a model's normalisation layers."""
    norms = [(path, module) for path, module in model.named_modules() if isinstance(module, NORM_LAYERS)]
    if not norms:
        raise UsageError(
            f"level='norms' needs normalisation layers, and {type(model).__name__} has none. Choose a model with norms "
            "(--set model.norm=batch, with --model cnn or mlp), or level='all' or 'head'.",
            code="model-unfit",
            got=type(model).__name__,
            reason="no-norm",
        )
    parameters = {name for path, norm in norms for name, _ in norm.named_parameters(prefix=path)}
    buffers = {name for path, norm in norms for name, _ in norm.named_buffers(prefix=path)}
    return parameters | (buffers & floating_buffers(model))


def _without_group(client: str) -> UsageError:
    return UsageError(
        f"client {client!r} trains but has no group. Name all clients that train in ByGroup(groups), or hold it out.",
        code="client-missing",
        client=client,
    )
