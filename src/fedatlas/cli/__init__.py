"""The command line."""

import typer.core

# Help without frames is printed in half the time: rich is loaded only where a table of results is printed.
typer.core.HAS_RICH = False
