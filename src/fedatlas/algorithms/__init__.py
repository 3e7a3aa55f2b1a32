"""One file a paper: its own parts and its recipe. ``ALGORITHMS`` names the recipes."""

import inspect
from collections.abc import Callable
from typing import Any

from fedatlas.algorithms.afl import afl
from fedatlas.algorithms.clustered import clustered
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.fedavgm import fedavgm
from fedatlas.algorithms.fedbn import fedbn
from fedatlas.algorithms.feddisco import feddisco
from fedatlas.algorithms.feddyn import feddyn
from fedatlas.algorithms.fedgc import fedgc
from fedatlas.algorithms.fedgcr import fedgcr
from fedatlas.algorithms.fedgr import fedgr
from fedatlas.algorithms.fediir import fediir
from fedatlas.algorithms.fedlc import fedlc
from fedatlas.algorithms.fedmix import fedmix
from fedatlas.algorithms.fedpce import fedpce
from fedatlas.algorithms.fedper import fedper
from fedatlas.algorithms.fedprox import fedprox
from fedatlas.algorithms.fedsam import fedsam
from fedatlas.algorithms.harmofl import harmofl
from fedatlas.algorithms.moon import moon
from fedatlas.algorithms.qffl import qffl
from fedatlas.algorithms.scaffold import scaffold
from fedatlas.algorithms.term import term
from fedatlas.algorithms.user_function import find_function, told
from fedatlas.errors import FedatlasError, UsageError, unknown_name
from fedatlas.parts.algorithm import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedprox": fedprox,
    "feddyn": feddyn,
    "moon": moon,
    "fedlc": fedlc,
    "fediir": fediir,
    "feddisco": feddisco,
    "scaffold": scaffold,
    "clustered": clustered,
    "qffl": qffl,
    "afl": afl,
    "term": term,
    "harmofl": harmofl,
    "fedsam": fedsam,
    "fedmix": fedmix,
    "fedper": fedper,
    "fedbn": fedbn,
    "fedpce": fedpce,
    "fedgcr": fedgcr,
    "fedgc": fedgc,
    "fedgr": fedgr,
}


def build_algorithm(name: str, **options: Any) -> Algorithm:
    """Return an algorithm by name; a ``base`` may itself be a name or a table with a name and options.

    The name of a recipe of your own is ``module:function`` or ``path/to/file.py:function``.

    >>> build_algorithm("fedprox", mu=0.1).objective[-1]
    Proximal(mu=0.1)
    """
    if name == "client2vec":
        raise UsageError(
            "client2vec is no algorithm by itself: it uses an atlas over any base. Name the base, e.g. "
            "--algorithm fedavg, and give --atlas FILE --use sample,aggregate ([atlas] file and use in a config); in "
            "Python client2vec(base, atlas)."
        )
    if ":" not in name and name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    recipe = find_function(name, "algorithm") if ":" in name else ALGORITHMS[name]
    known = inspect.signature(recipe).parameters
    for option in options:
        if option not in known:
            if not known:
                raise UsageError(f"{name} takes no options, got {option!r}.")
            raise unknown_name(f"option of {name}", option, known)
    if isinstance(base := options.get("base"), str | dict):
        options["base"] = build_algorithm(base) if isinstance(base, str) else build_algorithm(**base)
    missing = [title for title, option in known.items() if _is_needed(option) and title not in options]
    if missing:
        raise UsageError(f"{name} needs {', '.join(missing)}. Give it a default, or set algorithm.{missing[0]}.")
    try:
        built = recipe(**options)
    except FedatlasError:
        raise
    except Exception as error:
        if ":" not in name:
            raise
        raise UsageError(f"algorithm {name!r} cannot be made: {told(error)}.") from error
    if not isinstance(built, Algorithm):
        raise UsageError(f"algorithm {name!r} must return a fedatlas.Algorithm, got {type(built).__name__}.")
    return built


def _is_needed(option: inspect.Parameter) -> bool:
    return option.default is option.empty and option.kind not in (option.VAR_POSITIONAL, option.VAR_KEYWORD)


__all__ = [
    "ALGORITHMS",
    "afl",
    "build_algorithm",
    "clustered",
    "fedavg",
    "fedavgm",
    "fedbn",
    "feddisco",
    "feddyn",
    "fedgc",
    "fedgcr",
    "fedgr",
    "fediir",
    "fedlc",
    "fedmix",
    "fedpce",
    "fedper",
    "fedprox",
    "fedsam",
    "harmofl",
    "moon",
    "qffl",
    "scaffold",
    "term",
]
