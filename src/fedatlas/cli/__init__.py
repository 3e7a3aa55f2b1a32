"""The command line."""

from typing import TYPE_CHECKING

import typer.core

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.cli.catalogue import disclosures_by_algorithm
    from fedatlas.cli.checks import default_folder
    from fedatlas.cli.demo_story import Stage, tell_of_heart
    from fedatlas.cli.report import print_results
    from fedatlas.cli.terminal import fitted, print_error, print_rows, say
    from fedatlas.cli.train_config import unfit_algorithms

# Help without frames is printed in half the time: rich is loaded only where a table of results is printed.
typer.core.HAS_RICH = False

__all__ = [
    "Stage",
    "default_folder",
    "disclosures_by_algorithm",
    "fitted",
    "print_error",
    "print_results",
    "print_rows",
    "say",
    "tell_of_heart",
    "unfit_algorithms",
]

__getattr__, __dir__ = lazy_exports(__name__)
