"""``fedatlas check``: how the clients differ, whose data are probably wrong, and what to do."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedatlas.atlas.encoders.registry import ENCODERS
from fedatlas.cli.checks import read_config
from fedatlas.cli.options import ConfigOption, DataFolderOption, DataOption, SeedOption, SetOption, sections
from fedatlas.cli.pages import OpenOption, ShareOption, publish, written_options
from fedatlas.cli.terminal import check_file, friendly, output_width, remark, say
from fedatlas.errors import UsageError, unknown_name
from fedatlas.runs.schema import check_run

if TYPE_CHECKING:
    from fedatlas.atlas.doctor.diagnosis import Diagnosis

UNUSABLE = 3
"""The exit status if the data cannot be used; 0, 1 and 4 are the diagnosis, and 2 is a mistyped option's."""


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
    open_: OpenOption = False,
    share: ShareOption = False,
) -> None:
    """Say how the clients differ, whose data are probably wrong, and what to do; before any training.

    Exit status: 0 nothing to do, 1 advice, 4 a suspect, 3 the data cannot be used, 2 a mistyped option.
    """
    with friendly(UNUSABLE):
        if encoder not in ENCODERS.entries:
            raise unknown_name(ENCODERS.kind, encoder, ENCODERS)
        if html is not None:
            check_file("--html", html, "check.html")
        elif open_ or share:
            raise UsageError(
                "--open and --share are about the page; name its file with --html FILE.", code="settings-conflict"
            )
        given = {"--config": config, "--set": set_, "--data": data, "--data-folder": data_folder, "--seed": seed}
        options = written_options(given)
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
        # How cells become inputs matters for training, which says it.
        for line in federation.data.remarks:
            remark(line)
        if federation.data.table is not None and not federation.data.owners:
            remark(
                f"no column says whose a row is, so these clients are made up ({federation.partition}). Name the "
                "column with --set data.client=COLUMN"
            )
        named = options or f"--data {shlex.quote(federation.name)}"
        found = examine(federation, encoder=encoder, given=named, progress=False if as_json else None)
        if run is not None:
            from fedatlas.report.findings import keep_findings

            keep_findings(found, run)
        if as_json:
            say(json.dumps(found.to_dict(), indent=1))
        else:
            print_diagnosis(found)
        if html is not None:
            publish(
                html,
                open_=open_,
                share=share,
                quiet=as_json,
                runs=() if run is None else (Run(run),),
                federation=federation,
                diagnosis=found,
                given=named,
                config=None if run is not None else settings.to_toml(),
            )
    raise typer.Exit(found.status)


def _check_alone(run: Path, others: list[str]) -> None:
    if others:
        raise UsageError(
            f"check takes a run's folder or options that name data, not both; leave out {', '.join(others)}, or {run}.",
            code="settings-conflict",
            got=others,
        )
    check_run(run)


def print_diagnosis(found: Diagnosis) -> None:
    """Print a diagnosis as text, as wide as the terminal."""
    for line in fit(found.lines(), output_width()):
        say(line)


def fit(lines: Sequence[str], width: int) -> list[str]:
    """Return lines that are not longer than a terminal is wide; a command stays whole, so that it can be copied."""
    fitted = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        whole = line.lstrip().startswith("fedatlas ")
        fitted += [line] if whole else textwrap.wrap(line, width, subsequent_indent=indent)
    return fitted
