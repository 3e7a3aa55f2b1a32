"""The settings of runs: what differs between them, what they share, and how to make each again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from fedatlas.report.groups import Group, flatten, plain
from fedatlas.runs.run import CONFIG, Run

_SECTIONS = ("federation", "model", "algorithm", "training", "machine", "versions")
LONGEST = 200
"""Characters of a value."""
FOUND = ("provenance", "groups", "reason", "members")
"""Parts of keys with many values, such as who is in which group: the page folds them away."""


def settings_block(groups: Sequence[Group]) -> dict[str, Any]:
    """Return rows of settings for the page: those that differ between algorithms with a value for each, then others."""
    tables = [_rows(group.runs[0]) for group in groups]
    keys = dict.fromkeys(key for table in tables for key in table)
    differ: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    shared = []
    for key in keys:
        values = [table.get(key, "") for table in tables]
        if len(set(values)) > 1:
            (details if set(key.split(".")) & set(FOUND) else differ).append({"key": key, "values": values})
        else:
            shared.append({"key": key, "value": values[0]})
    runs = [
        {"label": group.label, "folder": str(run.folder), "seeds": _seeds(run), "command": _command(run)}
        for group in groups
        for run in group.runs
    ]
    labels = [group.label for group in groups]
    return {"labels": labels, "differ": differ, "details": details, "shared": shared, "runs": runs}


def _rows(run: Run) -> dict[str, str]:
    found = {}
    for section in _SECTIONS:
        content = run.resolved.get(section, {})
        if section == "federation":
            kept = ("data", "kind", "partition", "fingerprint")
            content = {key: content[key] for key in kept} | {"num_clients": len(content["clients"])}
        for path, value in flatten(content):
            text = plain(value)
            found[".".join((section, *path))] = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return found


def _command(run: Run) -> str | None:
    config = run.folder / CONFIG
    if not config.exists():
        return None
    again = run.folder.with_name(f"{run.folder.name}-again")
    return f"fedatlas train --config {shlex.quote(str(config))} --folder {shlex.quote(str(again))}"


def _seeds(run: Run) -> str:
    seeds = run.resolved.get("seeds", {})
    if len(set(seeds.values())) == 1:
        return str(next(iter(seeds.values())))
    return ", ".join(f"{key} {value}" for key, value in seeds.items())
