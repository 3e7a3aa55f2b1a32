"""The client's side: its data, its model, its training."""

from fedatlas.registry import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
