"""TOML configs and what they build."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.config.config import Config
    from fedatlas.config.reopen import run_federation, run_reading
    from fedatlas.config.schema import SETTINGS, NewcomerTuning

__all__ = [
    "SETTINGS",
    "Config",
    "NewcomerTuning",
    "run_federation",
    "run_reading",
]

__getattr__, __dir__ = lazy_exports(__name__)
