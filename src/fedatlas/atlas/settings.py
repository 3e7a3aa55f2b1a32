"""How to make an atlas; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedatlas.atlas.client2vec.settings import IndexSettings, IndexTraining

TABLES: Mapping[str, type] = {"settings": IndexSettings}
"""The fields of ``AtlasSettings`` that a config writes as a table, and the class of each."""


@dataclass(frozen=True, kw_only=True)
class AtlasSettings(IndexTraining):
    """What an atlas is made from; strategy, epochs and settings are Client2Vec's.

    >>> AtlasSettings(encoder="clip").index_settings().feed_forward
    2048
    """

    source: str = "client2vec"
    """One of ``SOURCES``."""
    encoder: str = "builtin"
    """One of ``ENCODERS``."""
    encoder_options: Mapping[str, Any] | None = None

    def index_settings(self) -> IndexSettings:
        """Return the settings of the index network.

        Over the built-in encoder its feed-forward layers are 64 wide by default, not 2048 as in the paper: a CPU then
        needs minutes, not hours.
        """
        narrow = self.settings is None and self.encoder == "builtin"
        return IndexSettings(feed_forward=64) if narrow else super().index_settings()
