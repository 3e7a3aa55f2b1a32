"""The parts of an algorithm: what users write, and what flows between server and clients."""

from fedatlas.registry import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
