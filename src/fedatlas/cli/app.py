"""The command line: ``fedatlas demo | check | train | compare | adapt | export | map | list | report | flower``.

A command's file is imported with the app, so none of them imports torch before its command has checked names and files.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedatlas.cli.adapt import adapt
from fedatlas.cli.check import check
from fedatlas.cli.compare import compare
from fedatlas.cli.demo import demo
from fedatlas.cli.export import export
from fedatlas.cli.flower import app as flower
from fedatlas.cli.list import list_
from fedatlas.cli.map import map_
from fedatlas.cli.report import report
from fedatlas.cli.terminal import help_alone, say
from fedatlas.cli.train import train

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Federated learning where every client has a vector that says what its data looks like.",
)
for command in (adapt, check, train, compare, demo, export, report):
    app.command()(command)
app.command(name="map")(map_)
app.command(name="list")(list_)
app.add_typer(flower, name="flower")


@app.callback(invoke_without_command=True)
def begin(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
) -> None:
    """Print the version if it is asked for, and the help where no command follows."""
    if version:
        from importlib import metadata  # slow to load, and most commands do not ask

        say(f"fedatlas {metadata.version('fedatlas')}")
        raise typer.Exit
    help_alone(context)


def main() -> None:
    """Run the command line."""
    sys.exit(app())
