"""What recipes share that build on any other algorithm."""

from __future__ import annotations

from dataclasses import replace

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.errors import expect
from fedatlas.parts.algorithm import Algorithm


def over(base: Algorithm | None, name: str) -> Algorithm:
    """Return the base (FedAvg if none is given) under the name of the recipe that builds on it."""
    base = base if base is not None else fedavg()
    expect(base, Algorithm, f"{name}(base) must be an algorithm", f"Write {name}(fedatlas.algorithms.fedavg()).")
    return replace(base, name=name if base.name == "fedavg" else f"{name}+{base.name}")
