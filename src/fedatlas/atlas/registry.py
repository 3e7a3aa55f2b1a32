"""The sources of an atlas by name; nothing here imports torch."""

from collections.abc import Callable
from typing import Any

from fedatlas.registry import Registry

SOURCES: Registry[Callable[..., Any]] = Registry("source of an atlas", "source", "fedatlas.atlas")
"""Functions ``(federation, ...) -> Atlas``.

Beside the federation a source gets what its parameters name: ``embeddings``, ``how`` (the ``AtlasSettings``),
``device``, ``workers``, ``progress``. ``discloses`` lists the data that leave a client.
"""
source = SOURCES.register
