"""Commands on a page: what to try, and what the texts of actions are made of."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedatlas.config.schema import SETTINGS
from fedatlas.report.findings import Findings
from fedatlas.report.groups import Group
from fedatlas.report.members import Members
from fedatlas.runs.run import CONFIG, Run
from fedatlas.runs.schema import read_config_file

SPOTS = {"held_out": "@held_out@", "leave_out": "@leave_out@", "members": "@members@", "use": "@use@"}
"""Texts in a config in whose place the page writes lists."""


def run_options(runs: Sequence[Run]) -> str | None:
    """Return the option that names the data of runs: the config of the first, if it has one."""
    path = runs[0].folder / CONFIG if runs else None
    return None if path is None or not path.exists() else f"--config {shlex.quote(str(path))}"


def advice_block(
    runs: Sequence[Run], groups: Sequence[Group], findings: Findings | None, members: Members, given: str | None
) -> list[dict[str, str]]:
    """Return commands to try, the most urgent first, each with what it is for and the algorithm that has done it."""
    said: list[tuple[str, str]] = []
    folder = shlex.quote(str(runs[0].folder)) if runs else None
    if findings is not None:
        said += findings.advice
    elif folder is not None and given is not None:
        page = shlex.quote(str(runs[0].folder / "page.html"))
        said.append((f"fedatlas check {folder} --html {page}", "whose data may be wrong, and how the clients differ"))
    elif given is not None:
        said.append(
            (f"fedatlas check {given} --html check.html", "whose data may be wrong, and how the clients differ")
        )
    if folder is None and given is not None and findings is None:
        said.append((f"fedatlas train {given}", "one model for all, and how it serves each client"))
    if folder is not None and given is not None:
        grouped = f"fedatlas train {given} --use group"
        if findings is None and not any("grouped" in run.name for run in runs):
            said.append((grouped, "a model for each group of clients, where a trial shows that the group gains"))
        if members.held_out.any():
            said.append((f"fedatlas adapt {folder}", "bring in the clients that were held out"))
    told = [{"command": command, "why": why, "done": _done(command, groups)} for command, why in dict(said).items()]
    by_group = {own["done"] for own in told if own["done"] and _is_by_group(own["command"])}
    for group in groups:
        if group.label in by_group:
            export = shlex.join(["fedatlas", "export", str(group.runs[0].folder), "--client", members.names[0]])
            told.append({"command": export, "why": "write the model that a client uses to a file", "done": ""})
    return told


def _is_by_group(command: str) -> bool:
    """Return whether a command of the check trains a model for each group: here, over a network, or in Python."""
    return any(own in command for own in ("--use group", 'atlas.use=["group"]', "algorithms.grouped("))


def _done(command: str, groups: Sequence[Group]) -> str:
    """Return the algorithm on the page that has done what a command does: train by groups, or compare; else nothing."""
    labels = {group.runs[0].name: group.label for group in groups}
    words = command.split()
    if words[:2] == ["fedatlas", "compare"]:
        return labels[words[3]] if set(words[2:4]) <= labels.keys() else ""
    return next((labels[name] for name in labels if "grouped" in name and _is_by_group(command)), "")


def act_block(runs: Sequence[Run], members: Members, given: str | None, config: str | None) -> dict[str, Any] | None:
    """Return what the page makes commands and configs of; None where the data cannot be named."""
    folder = runs[0].folder if runs else None
    if config is None and folder is not None and (folder / CONFIG).exists():
        read_config_file(folder / CONFIG)
        config = (folder / CONFIG).read_text(encoding="utf-8")
    if given is None:
        return None
    values = tomllib.loads(config) if config else {}
    return {
        "given": given,
        "run": None if folder is None else str(folder),
        "folder": str(folder) if folder is not None else str(Path("runs") / "page"),
        "config": with_spots(config) if config else None,
        "held_out": [name for name, out in zip(members.names, members.held_out, strict=True) if out],
        "leave_out": _listed(values.get("data", {}).get("leave_out", [])),
        "use": values.get("atlas", {}).get("use", list(SETTINGS["atlas.use"].default)),
    }


def with_spots(config: str) -> str:
    """Return a config with texts in place of the lists that the page writes."""
    values = tomllib.loads(config)
    values.setdefault("data", {}).update(held_out=SPOTS["held_out"], leave_out=SPOTS["leave_out"])
    values.setdefault("sharing", {})["members"] = SPOTS["members"]
    values.setdefault("atlas", {})["use"] = SPOTS["use"]
    return tomli_w.dumps(values)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []
