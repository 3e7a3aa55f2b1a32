"""The partitions by name; nothing here imports torch."""

from collections.abc import Callable
from typing import Any

from fedatlas.registry import Registry

PARTITIONS: Registry[Callable[..., Any]] = Registry("partition", "partition", "fedatlas.data.partitions")
"""The partitions by name; the first line of its docstring describes each."""
partition = PARTITIONS.register
