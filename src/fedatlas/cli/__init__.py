"""The command line."""

import typer.core

from fedatlas.registry import lazy_exports

# Help without frames is printed in half the time: rich is loaded only where a table of results is printed.
typer.core.HAS_RICH = False

__getattr__, __dir__ = lazy_exports(__name__)
