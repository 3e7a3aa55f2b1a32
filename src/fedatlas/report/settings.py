"""The settings of runs, and how to make them again."""

import shlex
from collections.abc import Sequence
from typing import Any

from fedatlas.report.charts.markup import element, escape
from fedatlas.report.charts.symbols import mark
from fedatlas.report.groups import Group, flatten, plain
from fedatlas.runs.run import Run

_SECTIONS = ("federation", "model", "algorithm", "training", "seeds", "machine", "versions")


def settings(groups: Sequence[Group]) -> str:
    """Return the settings of each algorithm's first run, folded away, and where each run is stored."""
    return "".join(_group(group) for group in groups) + _reproduce(groups)


def _group(group: Group) -> str:
    run = group.runs[0]
    summary = element("summary", mark(group.color) + escape(group.label))
    tables = ""
    for section in _SECTIONS:
        content = _without_clients(run.resolved) if section == "federation" else run.resolved.get(section, {})
        rows = "".join(
            element("dt", escape(".".join(path) or section)) + element("dd", escape(plain(value)))
            for path, value in flatten(content)
        )
        if rows:
            tables += element("div", element("h3", section) + element("dl", rows), class_="settings")
    seeds = "; ".join(_seeds(other) for other in group.runs)
    said = f"Run {len(group.runs)} times, with seeds {seeds}; the settings are the first run's."
    repeated = element("p", escape(said)) if len(group.runs) > 1 else ""
    return element("details", summary + repeated + element("div", tables, class_="columns"))


def _without_clients(resolved: dict[str, Any]) -> dict[str, Any]:
    federation = {key: value for key, value in resolved["federation"].items() if key != "clients"}
    return federation | {"num_clients": len(resolved["federation"]["clients"])}


def _reproduce(groups: Sequence[Group]) -> str:
    rows = ""
    for run in [run for group in groups for run in group.runs]:
        rows += element("dt", escape(run.folder)) + element("dd", _command(run))
    said = "Where each run is stored, and the command that makes it again."
    content = element("summary", "How to reproduce") + element("p", said) + element("dl", rows, class_="commands")
    return element("details", content, open_="")


def _command(run: Run) -> str:
    config = run.folder / "config.toml"
    if not config.exists():
        return "made from Python: the settings above are the arguments of <code>fedatlas.train</code>"
    again = run.folder.with_name(f"{run.folder.name}-again")
    command = f"fedatlas train --config {shlex.quote(str(config))} --folder {shlex.quote(str(again))}"
    return element("code", escape(command))


def _seeds(run: Run) -> str:
    seeds = run.resolved.get("seeds", {})
    if len(set(seeds.values())) == 1:
        return str(next(iter(seeds.values())))
    return ", ".join(f"{key} {value}" for key, value in seeds.items())
