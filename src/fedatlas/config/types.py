"""Whether a setting's value is of the type of the field or parameter that it goes to, told in a user's words."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fedatlas.errors import UsageError

WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true, false",
    str: "a text",
    Path: "a path",
    type(None): "nothing",
}


def check_options(where: str, options: Mapping[str, Any], make: Callable[..., Any]) -> None:
    """Refuse options of another type than the parameters of what they go to; unknown names are left to it."""
    hints = get_type_hints(make)
    for name, value in options.items():
        if name in hints:
            check_value(f"{where}.{name}", value, hints[name])


def check_value(where: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not of a kind, which is an annotation.

    >>> check_value("training.cohort", 0.5, int | float | None)
    """
    if not _fits(value, kind):
        several = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        hint = f" Write {json.dumps(several)}." if isinstance(value, str) and _fits(several, kind) else ""
        if value is None and _fits("none", kind):
            hint = ' To set a text, write it in quotes: "none".'
        raise UsageError(f"{where} must be {_words(kind)}, got {value!r}.{hint}")


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and inner[-1] is not Ellipsis:
            return len(value) == len(inner) and all(map(_fits, value, inner))
        return all(_fits(item, inner[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, str | Path)
    if kind in WORDS:
        return isinstance(value, kind)
    # Objects are built from a name or a table; which ones there are, their builders know.
    return not isinstance(kind, type) or isinstance(value, str | Mapping) or _is_instance(value, kind)


def _is_instance(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be asked for at run time
        return not isinstance(value, bool | int | float | list | tuple | None)


def _words(kind: Any) -> str:
    """Return what a value may be, e.g. ``a whole number, a fraction or nothing``."""
    parts = list(dict.fromkeys(_parts(kind)))
    if {WORDS[int], WORDS[float]} <= set(parts):
        parts[parts.index(WORDS[float])] = "a fraction"
    return " or ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def _parts(kind: Any) -> list[str]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        kinds = sorted((Path, type(None)) if Path in inner else inner, key=lambda one: one is type(None))
        return [part for one in kinds for part in _parts(one) if one in inner]
    if origin is Literal:
        return [repr(one) for one in inner]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return ["a table"]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        count = f"{len(inner)} " if origin is tuple and inner[-1] is not Ellipsis else ""
        return [f"a list of {count}{' or '.join(_plural(part) for part in _parts(inner[0]))}"]
    return WORDS[kind].split(", ") if kind in WORDS else ["a name", "a table"]


def _plural(part: str) -> str:
    return f"{part.removeprefix('a ')}s" if part.startswith("a ") else part
