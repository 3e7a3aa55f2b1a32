"""The rounds of a run, from its settings to its records."""

from fedatlas.registry import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
