"""How a cohort of clients runs on this machine."""

from fedatlas.registry import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
