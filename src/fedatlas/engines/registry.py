"""The engines by name; nothing here imports torch."""

from typing import Any

from fedatlas.registry import Registry

AUTO = "auto"
"""The name that stands for the engine that suits best."""
ENGINES: Registry[type[Any]] = Registry("engine", "engine", "fedatlas.engines")
"""Classes that are an ``Engine``. The fact ``same_bits`` says whether one gives the bits of the plain loop."""
engine = ENGINES.register
