"""Who shared a model with whom in a run: the groups by round, what was decided and why, and what trials cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedatlas.data.dataset import first_few
from fedatlas.parts.sharing import COMMON

MOST_TOLD = 6
"""Groups whose clients are named in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial: whether groups gain by leaving the common model."""

    round: int
    """The last one of the trial, after which it was decided."""
    scores: tuple[float, ...]
    """t of each group: how clearly its clients gain by their group's model."""
    left: tuple[int, ...]
    """The groups that left."""


@dataclass(frozen=True, kw_only=True)
class GroupHistory:
    """The groups of a run."""

    part: str
    """The part that divides the clients: ``One``, ``ByGroup``, ``AtlasGroups``, ``TriedGroups``, ``ByLoss``, ..."""
    level: str
    """What each group has for itself: all parameters, the head or the norms."""
    reason: str
    """Why, where an atlas was asked."""
    members: tuple[tuple[str, ...], ...]
    """The clients of each group that were known before training; empty where groups are found in training."""
    served: tuple[Mapping[str, int | None], ...]
    """After each round, the group whose model each client uses, by name; None for the model of all clients."""
    trials: tuple[Trial, ...]
    apart: tuple[int, ...]
    """The groups that never shared the common model, as they label otherwise than the rest."""
    trained: Mapping[str, int]
    """How often a client trained the ``common`` model, a ``rival`` of it in a trial, or that of its ``groups``."""
    extra_work: float
    """By how much clients trained more often than once in each of their rounds: 0.2 is a fifth more."""

    @property
    def count(self) -> int:
        """How many models are in use after the last round."""
        return len({*self.served[-1].values()}) if self.served else 1

    def describe(self) -> str:
        """Return how many models are in use and by whom, and what trials cost, in words."""
        using: dict[int, list[str]] = {}
        for name, group in self.served[-1].items() if self.served else ():
            if group is not None:
                using.setdefault(group, []).append(name)
        who = "; ".join(first_few(using[group]) for group in sorted(using)[:MOST_TOLD])
        who = f" ({who}{f' and {len(using) - MOST_TOLD} more' if len(using) > MOST_TOLD else ''})" if using else ""
        if not self.trials:
            return f"{self.count} models are in use{who}" if self.count > 1 else "all clients use one model"
        cost = f"clients trained {self.extra_work:.0%} more often than once a round"
        tried, left = len(self.trials[-1].scores) - len(self.apart), len(using.keys() - set(self.apart))
        said = f"{left or 'none'} of {tried} left the common model"
        said += f", {len(self.apart)} never shared it" if self.apart else ""
        return f"{said}{who}; {cost}"


def read_groups(
    resolved: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]]
) -> GroupHistory | None:
    """Return the groups of a run from its records; None if nobody was asked who shares a model."""
    sharing: Mapping[str, Any] | None = resolved["algorithm"].get("sharing")
    if sharing is None:
        return None
    members: list[list[str]] = sharing.get("groups") or []
    placed = {name: group for group, names in enumerate(members) for name in names}
    named = [str(client["name"]) for client in resolved["federation"]["clients"]]
    chosen: dict[int, dict[str, int]] = {}
    for entry in clients:
        if "group" in entry:
            chosen.setdefault(int(entry["round"]), {})[str(entry["client"])] = int(entry["group"])
    served: list[dict[str, int | None]] = []
    trials: list[Trial] = []
    trained: Counter[str] = Counter()
    known: dict[str, int] = dict(placed)
    for line in rounds:
        number, said = int(line["round"]), line.get("groups", {})
        if not placed:
            known |= chosen.get(number, {})
        left = said.get("left")
        own = {name: known.get(name, COMMON) for name in named}
        served.append({name: _served(group, left) for name, group in own.items()})
        usual = "groups" if number in chosen else "common"
        trained.update(said.get("trained") or {usual: len(line["answered"])})
        if "rival" in said.get("trained", {}):
            # The rounds of a trial follow each other; the last one has its result.
            if trials and trials[-1].round == number - 1:
                trials.pop()
            trials.append(Trial(round=number, scores=tuple(said["t"]), left=tuple(said["left"])))
    once = sum(len(line["answered"]) for line in rounds)
    return GroupHistory(
        part=str(sharing["part"]),
        level=str(sharing.get("level", "all")),
        reason=str(sharing.get("reason", "")),
        members=tuple(tuple(names) for names in members),
        served=tuple(served),
        trials=tuple(trials),
        apart=tuple(sharing.get("apart") or ()),
        trained=dict(trained),
        extra_work=sum(trained.values()) / once - 1 if once else 0.0,
    )


def _served(group: int, left: Sequence[int] | None) -> int | None:
    """Return the group whose model a client of a group uses; ``left`` are those that left a common one, if any is."""
    return None if group == COMMON or (left is not None and group not in left) else group
