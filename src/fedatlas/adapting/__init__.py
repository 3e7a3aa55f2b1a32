"""Bringing a new client into a finished run."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.adapting.adapter import Adapter, adapt
    from fedatlas.adapting.export import load_personalised, read_about
    from fedatlas.adapting.result import Adapted
    from fedatlas.adapting.run_files import export_run
    from fedatlas.adapting.settings import TUNES
    from fedatlas.adapting.tuning import Tuning

__all__ = [
    "TUNES",
    "Adapted",
    "Adapter",
    "Tuning",
    "adapt",
    "export_run",
    "load_personalised",
    "read_about",
]

__getattr__, __dir__ = lazy_exports(__name__)
