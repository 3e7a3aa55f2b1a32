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
    runs: Sequence[Run], findings: Findings | None, members: Members, given: str | None
) -> list[dict[str, str]]:
    """Return commands to try, the most urgent first, each with what it is for."""
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
    done = {run.name for run in runs}
    told = [(command, why) for command, why in dict(said).items() if not _compared(command, done)]
    return [{"command": command, "why": why} for command, why in told]


def _compared(command: str, done: set[str]) -> bool:
    """Return whether a command compares algorithms that the page has already."""
    words = command.split()
    return words[:2] == ["fedatlas", "compare"] and set(words[2:4]) <= done


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
