"""TOML configs and what they build."""

from fedatlas.registry import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
