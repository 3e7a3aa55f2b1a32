"""Bringing a new client into a finished run."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.adapting.adapter import Adapter, adapt
    from fedatlas.adapting.export import load_personalised, read_about
    from fedatlas.adapting.result import Adapted

__all__ = ["Adapted", "Adapter", "adapt", "load_personalised", "read_about"]

__getattr__ = lazy_exports(__name__)
