"""Which group's model a client of a run uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedatlas.data.dataset import first_few
from fedatlas.data.federation import find_client
from fedatlas.errors import UsageError
from fedatlas.parts.types import ServerState


def serving_group(
    folder: Path, names: Sequence[str], state: ServerState, client: str | int | None, group: int | None = None
) -> int | None:
    """Return the group whose model is asked for, by its number or by a client of it; None for what all clients share.

    Raise UsageError if groups have a model each and neither says which.
    """
    position = None if client is None else find_client(names, client)
    if group is not None:
        return _checked(folder, state, group)
    found = None if position is None else state.group(position)
    if found is not None or state.has_common_model:
        return found
    if position is not None:
        raise UsageError(
            f"{folder}: client {names[position]!r} is in no group, so no model is its own. Place it with "
            f"run.adapt({names[position]!r}, start='group') (--start group), or name a group: "
            f"{describe_groups(names, state)}.",
            code="client-missing",
            client=names[position],
            known=list(range(len(state.groups))),
        )
    raise UsageError(
        f"{folder} has a model for each of {len(state.groups)} groups of clients. Name a client, or a group (group=): "
        f"{describe_groups(names, state)}.",
        code="missing-option",
        option="group",
        known=list(range(len(state.groups))),
    )


def describe_groups(names: Sequence[str], state: ServerState) -> str:
    """Return the groups and some of the clients in each, in words."""
    said = []
    for group in range(len(state.groups)):
        members = [name for client, name in enumerate(names) if state.group(client) == group]
        said.append(f"{group} ({first_few(members) if members else 'no client'})")
    return ", ".join(said)


def _checked(folder: Path, state: ServerState, group: int) -> int:
    if not state.groups:
        raise UsageError(
            f"{folder} has one model for all clients; leave group out.", code="settings-conflict", setting="group"
        )
    if not 0 <= group < len(state.groups):
        raise UsageError(
            f"{folder} has the groups 0 to {len(state.groups) - 1}; got group {group}.",
            code="out-of-range",
            setting="group",
            got=group,
            known=list(range(len(state.groups))),
        )
    return group
