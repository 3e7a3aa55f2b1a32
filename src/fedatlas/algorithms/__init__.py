"""One file a paper: its own parts and its recipe. ``ALGORITHMS`` names the recipes."""

import inspect
from collections.abc import Callable
from typing import Any

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.fedprox import fedprox
from fedatlas.errors import UsageError, unknown_name

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
}


def build_algorithm(name: str, **options: Any) -> Algorithm:
    """Return an algorithm by name; a ``base`` may itself be a name or a table with a name and options.

    >>> build_algorithm("fedprox", mu=0.1).objective[-1]
    Proximal(mu=0.1)
    """
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    recipe = ALGORITHMS[name]
    known = inspect.signature(recipe).parameters
    for option in options:
        if option not in known:
            if not known:
                raise UsageError(f"{name} takes no options, got {option!r}.")
            raise unknown_name(f"option of {name}", option, known)
    if isinstance(base := options.get("base"), str | dict):
        options["base"] = build_algorithm(base) if isinstance(base, str) else build_algorithm(**base)
    return recipe(**options)


__all__ = ["ALGORITHMS", "build_algorithm", "fedavg", "fedprox"]
