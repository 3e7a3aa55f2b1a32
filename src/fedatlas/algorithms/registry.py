"""The recipes by name. Each registers itself, in the file of its paper."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fedatlas.algorithms.user_function import check_allowed, describe_error, find_function
from fedatlas.errors import FedatlasError, UsageError, unknown_name
from fedatlas.registry import Registry

if TYPE_CHECKING:
    from fedatlas.parts.algorithm import Algorithm

Recipe = Callable[..., "Algorithm"]
ALGORITHMS: Registry[Recipe] = Registry("algorithm", "recipe", "fedatlas.algorithms")
"""The recipes by name, by file.

The facts of a recipe are ``changes``, the slots that it fills other than FedAvg; ``paper``; ``over``, the option that
takes another algorithm to build on; ``needs``, the options without which it cannot be built; ``model``, the model that
it is built around where not any model will do; ``uses``, what it uses an atlas for; and ``section``, the section of a
config that holds its options where that is not ``[algorithm]``.
"""
recipe = ALGORITHMS.register
BASE = "fedavg"
"""The recipe that the others change and are compared with."""


def standalone() -> list[str]:
    """Return the recipes that need nothing but data and a model, the base first. Nothing is imported."""
    able = [name for name, entry in ALGORITHMS.entries.items() if not entry.facts.get("needs")]
    return sorted(able, key=lambda name: name != BASE)


def build_algorithm(name: str, **options: Any) -> Algorithm:
    """Return an algorithm by name; a ``base`` may itself be a name or a table with a name and options.

    The name of your own recipe is ``module:function`` or ``path/to/file.py:function``, and ``fedatlas.allow_code`` must
    have allowed it.

    >>> build_algorithm("fedprox", mu=0.1).objective[-1]
    Proximal(mu=0.1)
    """
    # Here and not above: a question about names shall be answered before torch is loaded.
    from fedatlas.parts.algorithm import Algorithm

    if ":" in name:
        check_allowed(name, "algorithm")
    make = find_function(name, "algorithm") if ":" in name else ALGORITHMS[name]
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            if not known:
                raise UsageError(f"{name} takes no options, got {option!r}.", code="unknown-name", got=option, known=[])
            raise unknown_name(f"option of {name}", option, known)
    _check_needs(name, options, known)
    if isinstance(base := options.get("base"), str | dict):
        options["base"] = build_algorithm(base) if isinstance(base, str) else build_algorithm(**base)
    try:
        built = make(**options)
    except FedatlasError:
        raise
    except Exception as error:  # whatever a user's function raises
        if ":" not in name:
            raise
        raise UsageError(
            f"algorithm {name!r} cannot be made: {describe_error(error)}.", code="user-function", got=name
        ) from error
    if not isinstance(built, Algorithm):
        raise UsageError(
            f"algorithm {name!r} must return a fedatlas.Algorithm, got {type(built).__name__}.",
            code="wrong-type",
            got=type(built).__name__,
        )
    return built


def _check_needs(name: str, options: dict[str, Any], known: Mapping[str, inspect.Parameter]) -> None:
    """Raise UsageError if an option is missing that the recipe cannot do without."""
    declared = ALGORITHMS.facts(name).get("needs", ()) if ":" not in name else ()
    if "atlas" in declared and options.get("atlas") is None:
        uses = ALGORITHMS.facts(name).get("uses", ())
        how = "--use group" if "group" in uses else "--atlas FILE --use sample,aggregate"
        raise UsageError(
            f"{name} uses an atlas over any base, and none is given. Name the base, e.g. --algorithm {BASE}, "
            f"and give {how} ([atlas] file and use in a config); in Python {name}(base, atlas).",
            code="missing-option",
            option="atlas",
        )
    missing = [title for title, option in known.items() if _is_needed(option) and title not in options]
    if missing:
        raise UsageError(
            f"{name} needs {', '.join(missing)}. Give it a default, or set algorithm.{missing[0]}.",
            code="missing-option",
            option=missing[0],
        )


def _is_needed(option: inspect.Parameter) -> bool:
    return option.default is option.empty and option.kind not in (option.VAR_POSITIONAL, option.VAR_KEYWORD)
