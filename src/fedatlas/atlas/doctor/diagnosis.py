"""The diagnosis of a federation: how clients differ, whose data are probably wrong, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedatlas.atlas.doctor.advice import Advice
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.summary import Summary
from fedatlas.atlas.verdict import Finding
from fedatlas.data.html import facts_table, rows_table

NOTHING, ADVICE, SUSPECT = 0, 1, 4
"""Exit statuses of ``fedatlas check``: one model for all, something to do, a suspect; 2 is a wrong option's."""
MOST_SHOWN = {"groups": 5, "suspects": 6, "different": 4}
"""Lines of each part of the text, so that all fits on a screen."""
MOST_NAMED = 6


@dataclass(frozen=True, kw_only=True)
class Member:
    """One client."""

    name: str
    examples: int
    """For training."""
    classes: int
    """How many of them it has."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """How the clients of a federation differ, whose data are probably wrong, and what to do."""

    data: str
    """The data set's name."""
    clients: tuple[Member, ...]
    num_classes: int
    inputs: Finding
    label_shares: Finding
    labelling: Finding
    groups: tuple[int, ...]
    """The number of each client's group; clients of one group do not differ beyond noise."""
    suspects: tuple[Suspect, ...]
    """Clients whose data are probably wrong."""
    different: tuple[Suspect, ...]
    """Clients that are rare but right, as far as can be told."""
    remarks: tuple[str, ...]
    """What cannot be told apart."""
    advice: tuple[Advice, ...]
    """Commands to run, the most urgent first."""
    seconds: float
    """How long it took, after encoding."""
    notes: tuple[tuple[str, str], ...] = ()
    """What a client's card says of its data beside what is said of it here: the client, and a sentence."""
    summary: Summary | None = field(default=None, repr=False, compare=False)
    """What was compared, for maps; None if no example said anything about noise."""

    @property
    def status(self) -> int:
        """0 if one model for all is right, 1 if there is something to do, 4 if there is a suspect."""
        if self.suspects:
            return SUSPECT
        found = any(finding.found for finding in (self.inputs, self.label_shares, self.labelling))
        return ADVICE if found or self.different else NOTHING

    @property
    def shift(self) -> dict[str, Finding]:
        """The ways in which clients may differ, by name."""
        return {"inputs": self.inputs, "label_shares": self.label_shares, "labelling": self.labelling}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "data": self.data,
            "clients": [vars(member) for member in self.clients],
            "shift": {way: vars(finding) for way, finding in self.shift.items()},
            "groups": {member.name: group for member, group in zip(self.clients, self.groups, strict=True)},
            "suspects": [_plain(own) for own in self.suspects],
            "different": [_plain(own) for own in self.different],
            "remarks": list(self.remarks),
            "advice": [own.command for own in self.advice],
            "status": self.status,
            "seconds": self.seconds,
        }

    def lines(self) -> list[str]:
        """Return the diagnosis as text, less than a screen."""
        said = [_clients(self.data, self.clients, self.num_classes)]
        for way, finding in self.shift.items():
            answer = "yes" if finding.found else "no"
            said.append(f"{way.replace('_', ' ')} differ{'s' * (way == 'labelling')}: {answer}. {finding.evidence}")
        said += [*self._group_lines(), *_people("suspects", self.suspects, MOST_SHOWN["suspects"])]
        if self.different:
            said += _people("different, not wrong", _joined(self.different), MOST_SHOWN["different"])
        said += [f"cannot be told: {remark}" for remark in self.remarks]
        return [*said, "what to do", *(f"  {own.command}  ({own.why})" for own in self.advice)]

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"clients": len(self.clients), "groups": max(self.groups) + 1}
        for way, finding in self.shift.items():
            facts[f"{way.replace('_', ' ')} differ{'s' * (way == 'labelling')}"] = "yes" if finding.found else "no"
        suspects = [(own.client, own.kind, own.reason, own.look) for own in self.suspects]
        shown = facts_table(f"Check of {self.data}", facts)
        if suspects:
            shown += rows_table(("suspect", "kind", "reason", "look at"), suspects)
        return shown + rows_table(("what to do", "why"), self.advice)

    def card(self, client: str) -> str:
        """Return what one client may be told: about its own data alone."""
        position = [member.name for member in self.clients].index(client)
        member = self.clients[position]
        said = [f"{client}: {member.examples:,} examples of {member.classes} of {self.num_classes} classes"]
        mates = self.groups.count(self.groups[position]) - 1
        said.append(f"{mates:,} of {len(self.clients) - 1:,} other clients have data like yours")
        said += [own.card for own in (*self.suspects, *self.different) if own.client == client]
        said += [note for name, note in self.notes if name == client]
        if not any(own.client == client for own in self.suspects):
            said.append("nothing was found that is wrong with your data")
        return "\n".join(said)

    def _group_lines(self) -> list[str]:
        count = max(self.groups) + 1
        if count == 1:
            return ["groups: 1, all clients"]
        members: list[list[str]] = [[] for _ in range(count)]
        for member, group in zip(self.clients, self.groups, strict=True):
            members[group].append(member.name)
        if max(map(len, members)) == 1:
            return [f"groups: {count}, each client its own"]
        order = sorted(range(count), key=lambda group: -len(members[group]))[: MOST_SHOWN["groups"]]
        said = [f"  group {group} ({len(members[group])}): {_few(members[group])}" for group in order]
        left = count - len(order)
        return [f"groups: {count}", *said, *([f"  and {left} smaller ones"] if left else [])]


def _plain(own: Suspect) -> dict[str, Any]:
    told: dict[str, Any] = {"client": own.client, "kind": own.kind, "reason": own.reason, "look": own.look}
    if own.figure:
        told["figure"] = own.figure
    if own.cells:
        rows = [list(row) for row in own.cells.rows]
        told["cells"] = {"how": own.cells.how, "columns": list(own.cells.columns), "rows": rows}
    return told


def _clients(data: str, clients: Sequence[Member], num_classes: int) -> str:
    sizes = [member.examples for member in clients]
    span = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    names = _few([member.name for member in clients])
    count = f"{len(clients):,} client{'s' * (len(clients) != 1)}"
    return f"{data}: {count} ({names}) of {span} training examples, {num_classes} classes"


def _people(title: str, people: Sequence[Suspect], most: int) -> list[str]:
    if not people:
        return [f"{title}: none"]
    said = []
    for i, own in enumerate(people[:most]):
        said.append(f"  {own.client}: {own.reason}")
        # Of most wrong columns the reason says as much.
        if own.cells and own.cells.rows:
            said.append(f"    to see it, {own.cells.how}")
        elif own.cells and own.kind == "other-scale":
            said.append(f"    {own.cells.how}")
        # Once for all of whom the same is to be looked at.
        last = i + 1 == min(len(people), most) or people[i + 1].look != own.look
        said += [f"    look at {own.look}"] if own.look and last else []
    left = len(people) - most
    return [title, *said, *([f"  and {left} more; --json has all"] if left > 0 else [])]


def _joined(people: Sequence[Suspect]) -> list[Suspect]:
    """Return people of whom the same is said as one, with all their names."""
    names: dict[tuple[str, str], list[str]] = {}
    for own in people:
        names.setdefault((own.reason, own.look), []).append(own.client)
    return [Suspect(_few(own), "", reason, look, "") for (reason, look), own in names.items()]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
