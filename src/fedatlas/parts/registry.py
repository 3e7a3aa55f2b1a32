"""Local optimizers and metrics by name; nothing here imports torch."""

from collections.abc import Callable
from typing import Any

from fedatlas.registry import Registry

OPTIMIZERS: Registry[Callable[..., Any]] = Registry("optimizer", "optimizer", "fedatlas.parts")
"""Classes of local optimizers."""
optimizer = OPTIMIZERS.register
METRICS: Registry[Callable[..., Any]] = Registry("metric", "metric", "fedatlas.parts")
"""Classes of metrics."""
metric = METRICS.register
