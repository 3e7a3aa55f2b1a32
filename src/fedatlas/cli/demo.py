"""``fedatlas demo``: clients that differ, what the check says about them, and what its advice gains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedatlas.cli.options import WorkersOption
from fedatlas.cli.terminal import friendly, say


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", "-f", help="Where everything is kept; an earlier demo there is replaced; default runs/demo."
        ),
    ] = None,
    workers: WorkersOption = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", help="How many rounds of training.")] = 20,
) -> None:
    """Check clients that differ, follow the advice, and see what it gains; on embedded data, in a minute or two."""
    with friendly():
        from fedatlas.cli.demo_story import Stage, tell_of_digits, tell_of_heart

        stage = Stage(folder or Path("runs") / "demo", rounds=rounds, workers=workers)
        pages = [tell_of_digits(stage), tell_of_heart(stage)]
        say("\nNow look at the clients", bold=True)
        say("Open these pages in a browser; they need no network.")
        for page in pages:
            say(f"  {page}")
        say("Compare all algorithms with: fedatlas compare all")
