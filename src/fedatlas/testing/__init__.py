"""Checks of custom parts, and tiny federations to try them on."""

from fedatlas.registry import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
