"""How a cohort of clients runs on this machine."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.engines.capture import Captured
    from fedatlas.engines.simulator import Simulator

__all__ = [
    "Captured",
    "Simulator",
]

__getattr__, __dir__ = lazy_exports(__name__)
