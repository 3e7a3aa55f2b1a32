"""How to make an atlas; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedatlas.atlas.client2vec.settings import EPOCHS, IndexSettings


@dataclass(frozen=True, kw_only=True)
class AtlasSettings:
    """What an atlas is made from; ``strategy``, ``epochs`` and ``settings`` are Client2Vec's.

    >>> AtlasSettings(encoder="clip").index_settings().feed_forward
    2048
    """

    source: str = "client2vec"
    """One of ``SOURCES``."""
    encoder: str = "builtin"
    """One of ``ENCODERS``."""
    encoder_options: Mapping[str, Any] | None = None
    strategy: str = "global"
    epochs: int = EPOCHS
    seed: int = 0
    settings: IndexSettings | None = None
    """Of the index network. By default the paper's, except over the built-in encoder: there its feed-forward layers
    are 64 wide and not 2048, so that a CPU needs minutes and not hours."""

    def index_settings(self) -> IndexSettings:
        """Return the settings of the index network."""
        if self.settings is not None:
            return self.settings
        return IndexSettings(feed_forward=64) if self.encoder == "builtin" else IndexSettings()
