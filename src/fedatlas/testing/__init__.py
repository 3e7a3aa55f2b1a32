"""Checks of custom parts, and tiny federations to try them on."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.testing.flower_grid import InProcessGrid, Tamper, travelled
    from fedatlas.testing.tiny import Kind, flat, state_tensors, tiny_clients, tiny_federation, tiny_model

__all__ = [
    "InProcessGrid",
    "Kind",
    "Tamper",
    "flat",
    "state_tensors",
    "tiny_clients",
    "tiny_federation",
    "tiny_model",
    "travelled",
]

__getattr__, __dir__ = lazy_exports(__name__)
