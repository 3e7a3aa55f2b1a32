"""``fedatlas report``: one page about runs; and the table that other commands print too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedatlas.cli.pages import OpenOption, ShareOption, publish
from fedatlas.cli.terminal import check_file, friendly, print_rows, say
from fedatlas.runs.schema import RESOLVED, check_run

if TYPE_CHECKING:
    from fedatlas.runs.run import Run


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs that `train` made, or of several that `compare` made.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="The HTML file; default report.html in the first folder.")
    ] = None,
    open_: OpenOption = False,
    share: ShareOption = False,
) -> None:
    """Write one HTML page about a run, or one that compares several."""
    with friendly():
        for folder in runs:
            if not any(folder.glob(f"*/{RESOLVED}")):
                check_run(folder)
        page = to or runs[0] / "report.html"

        from fedatlas.runs.run import find_runs

        found = [run for folder in runs for run in find_runs(folder)]
        check_file("--to", page, "report.html")
        print_results(found)
        publish(page, open_=open_, share=share, title="report", runs=found)


def print_results(runs: list[Run]) -> None:
    """Print one table of runs, one row for each algorithm, and a note where rows are over different clients."""
    from fedatlas.report import results_table, split_note, table_note

    print_rows(results_table(runs), table_note(runs))
    if note := split_note(runs):
        say(note)
