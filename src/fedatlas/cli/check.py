"""``fedatlas check``: how the clients differ, whose data are probably wrong, and what to do."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from fedatlas.atlas.encoders.registry import ENCODERS
from fedatlas.cli.checks import read_config
from fedatlas.cli.options import ConfigOption, DataFolderOption, DataOption, SeedOption, SetOption, sections
from fedatlas.cli.terminal import WIDTH, check_file, friendly, remark, say
from fedatlas.errors import UsageError, unknown_name
from fedatlas.runs.schema import check_run

UNUSABLE = 3
"""The exit status if the data cannot be used; 0, 1 and 2 are the diagnosis."""


def check(
    run: Annotated[
        Path | None, typer.Argument(help="A run's folder, to check the clients that it was trained with.")
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    seed: SeedOption = None,
    encoder: Annotated[
        str,
        typer.Option("--encoder", help="What turns examples into vectors: one of `fedatlas list encoders`."),
    ] = "builtin",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page for people, too.")] = None,
) -> None:
    """Say how the clients differ, whose data are probably wrong, and what to do; before any training.

    Exit status: 0 nothing to do, 1 advice, 2 a suspect, 3 the data cannot be used.
    """
    with friendly(UNUSABLE):
        if encoder not in ENCODERS.entries:
            raise unknown_name(ENCODERS.kind, encoder, ENCODERS)
        if html is not None:
            check_file("--html", html, "check.html")
        given = {"--config": config, "--set": set_, "--data": data, "--data-folder": data_folder, "--seed": seed}
        options = _written(given)
        if run is not None:
            _check_alone(run, [name for name, value in given.items() if value is not None])
            options = f"--config {shlex.quote(str(run / 'config.toml'))}"
        else:
            settings = read_config(config, set_, **sections(data=data, data_folder=data_folder, seed=seed))
            settings.check()

        from fedatlas.atlas.doctor.check import check as examine
        from fedatlas.config.reopen import run_federation
        from fedatlas.runs.run import Run

        federation = settings.federation() if run is None else run_federation(Run(run))
        for line in federation.remarks:
            remark(line)
        named = options or f"--data {shlex.quote(federation.name)}"
        found = examine(federation, encoder=encoder, given=named, progress=False if as_json else None)
        if as_json:
            say(json.dumps(found.to_dict(), indent=1))
        else:
            _print(found.lines())
        if html is not None:
            from fedatlas.report.check_page import write_check

            write_check(found, html)
            remark(f"page: {html}")
    raise typer.Exit(found.status)


def _written(given: Mapping[str, object]) -> str:
    """Return options as they were written, for the commands of the advice."""
    words = []
    for name, value in given.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        words += [f"{name} {shlex.quote(str(one))}" for one in values]
    return " ".join(words)


def _check_alone(run: Path, others: list[str]) -> None:
    if others:
        raise UsageError(
            f"check takes a run's folder or options that name data, not both; leave out {', '.join(others)}, or {run}.",
            code="settings-conflict",
            got=others,
        )
    check_run(run)


def _print(lines: list[str]) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        # A command stays whole, so that it can be copied.
        whole = line.lstrip().startswith("fedatlas ")
        say(line if whole else textwrap.fill(line, width, subsequent_indent=indent))
