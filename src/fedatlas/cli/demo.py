"""``fedatlas demo``: all algorithms on the embedded digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedatlas.cli.options import WorkersOption
from fedatlas.cli.report import print_results
from fedatlas.cli.terminal import friendly, say


def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--folder", "-f", help="Where the runs are kept, in place of earlier ones; default runs/demo."),
    ] = None,
    workers: WorkersOption = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", help="How many rounds of training.")] = 10,
) -> None:
    """Train all algorithms on the embedded digits in two comparisons, each with a table and a report."""
    from fedatlas.cli.demo_runs import run_demo

    with friendly():
        for part in run_demo(folder or Path("runs") / "demo", workers=workers, rounds=rounds):
            say(f"\n{part.title}", bold=True)
            print_results(part.runs)
            records = [(run.name, record) for run in part.runs for record in run.adapted if record["embedding"]]
            for name, record in records:
                accuracy = f"{100 * record['accuracy_before']:.1f} -> {100 * record['accuracy_after']:.1f}"
                took = f"{record['num_tuned']} numbers tuned in {record['seconds']:.1f} s"
                say(f"{name} brings in {record['client']}: {accuracy}, {took}")
            say(f"\nOpen {part.report} in a browser.")
