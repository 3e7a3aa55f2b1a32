"""The files of a run's folder."""

from fedatlas.registry import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
