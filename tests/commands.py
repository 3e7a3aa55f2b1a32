"""How tests call the command line."""

from typer.testing import CliRunner, Result

from fedatlas.cli.app import app

SMALL = ["--model", "mlp", "--set", "training.rounds=2", "--set", "model.hidden=[8]", "--workers", "1"]
"""Options of a training that takes a moment."""


def invoke(*arguments: object) -> Result:
    """Run a command of fedatlas in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
