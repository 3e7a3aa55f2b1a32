"""The check of values against annotations: of settings, options of parts, and records in files.

A setting is a field of a frozen dataclass. ``setting(default, help)`` gives it its default, a help text and a least
value; the config, the command line and the docs read all of that from the field.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Any,
    ForwardRef,
    Literal,
    NamedTuple,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fedatlas.errors import UsageError

WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true, false",
    str: "a text",
    Path: "a path",
    type(None): "nothing",
}
_SCALARS = (int, float, bool, type(None))


def setting(default: Any, help: str, *, least: float | None = None) -> Any:
    """Return a dataclass field with a default, a help text and the least value that it may have."""
    facts = {"help": help, "least": least}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


class Misfit(NamedTuple):
    """A value that is not of the kind that it must be, and where it is; a key that is missing has the kind None."""

    where: str
    value: Any
    kind: Any


def find_misfit(value: Any, kind: Any, where: str) -> Misfit | None:
    """Return the first part of a value that does not fit an annotation; None if all of it fits.

    >>> find_misfit({"shape": [3, "x"]}, dict[str, list[int]], "form")
    Misfit(where='form.shape[1]', value='x', kind=<class 'int'>)
    """
    if kind is Any or type(value) is kind:  # nearly always, so it comes first
        return None
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind) or (origin is dict and isinstance(value, dict)):
        return _find_in_table(value, kind, where)
    if origin is list and isinstance(value, list):
        found = (find_misfit(item, inner[0], f"{where}[{i}]") for i, item in enumerate(value))
        return next((wrong for wrong in found if wrong is not None), None)
    return None if fits(value, kind) else Misfit(where, value, kind)


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a kind, which is an annotation."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            return False
        if origin is tuple and inner[-1] is not Ellipsis:
            return len(value) == len(inner) and all(map(fits, value, inner))
        return all(fits(item, inner[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, str | Path)
    if kind in WORDS:
        return isinstance(value, kind)
    # Objects are built from a name or a table; which ones there are, their builders know.
    return not isinstance(kind, type) or isinstance(value, str | Mapping) or _is_instance(value, kind)


LARGEST = 1 << 63
"""Whole numbers from here on fit no tensor."""


def check_value(where: str, value: Any, kind: Any, least: float | None = None) -> None:
    """Raise an error if a value is not of a kind or is below the least.

    >>> check_value("training.cohort", 0.5, int | float | None)
    """
    if not fits(value, kind):
        several = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        hint = f" Write {json.dumps(several)}." if isinstance(value, str) and fits(several, kind) else ""
        if value is None and fits("none", kind):
            hint = ' To set a text, write it in quotes: "none".'
        raise _wrong_type(where, value, kind, hint)
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise UsageError(
            f"{where} is too large, got {value:.3g}. Give a number below {LARGEST:.3g}.",
            code="out-of-range",
            setting=where,
            got=value,
        )
    if least is not None and value is not None and not value >= least:
        words = "must not be negative" if least == 0 else f"must be at least {least}"
        raise UsageError(f"{where} {words}, got {value}.", code="out-of-range", setting=where, got=value, least=least)


def check_options(where: str, options: Mapping[str, Any], make: Callable[..., Any]) -> None:
    """Raise an error if an option is not of its parameter's kind; names that ``make`` lacks are not checked here."""
    hints = get_type_hints(make)
    for name, value in options.items():
        if name in hints:
            check_value(f"{where}.{name}", value, hints[name])


def check_fields(part: Any, *, plain: bool = False) -> None:
    """Check the numbers and choices among a dataclass's fields, and turn numpy's numbers into Python's.

    Errors name ``Class(field)``, or only the field where it is ``plain`` whose it is.
    """
    cls: Any = type(part)
    for own, kind in _scalar_fields(cls):
        value = getattr(part, own.name)
        where = own.name if plain else f"{cls.__name__}({own.name})"
        if isinstance(value, str) and _members(kind) & {int, float}:
            raise _wrong_type(where, value, kind, " Write it without quotes.")
        check_value(where, value, kind, own.metadata.get("least"))
        if isinstance(value, Real) and not isinstance(value, int | float):
            object.__setattr__(part, own.name, int(value) if isinstance(value, Integral) else float(value))


def describe_kind(kind: Any) -> str:
    """Return the values that an annotation allows in words, e.g. ``a whole number, a fraction or nothing``."""
    parts = list(dict.fromkeys(_parts(kind)))
    if {WORDS[int], WORDS[float]} <= set(parts):
        parts[parts.index(WORDS[float])] = "a fraction"
    return " or ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


@cache
def field_kinds(cls: type) -> Mapping[str, Any]:
    """Return the annotation of each field of a dataclass; Any for one with a name that only type checkers see."""
    kinds: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        # code that was run by exec has no module
        names = getattr(sys.modules.get(base.__module__), "__dict__", {})
        for title, kind in vars(base).get("__annotations__", {}).items():
            kinds[title] = _resolved(kind, names)
    return {own.name: kinds[own.name] for own in dataclasses.fields(cls)}


def _resolved(kind: Any, names: Mapping[str, Any]) -> Any:
    if not isinstance(kind, str | ForwardRef):
        return kind
    try:
        return eval(kind if isinstance(kind, str) else kind.__forward_code__, dict(names))
    except NameError:
        return Any


@cache
def _scalar_fields(cls: type) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    kinds = field_kinds(cls)
    return tuple((own, kinds[own.name]) for own in dataclasses.fields(cls) if own.init and _is_scalar(kinds[own.name]))


def _is_scalar(kind: Any) -> bool:
    return kind is not type(None) and all(one in _SCALARS or get_origin(one) is Literal for one in _members(kind))


def _members(kind: Any) -> set[Any]:
    return set(get_args(kind)) if get_origin(kind) in (Union, types.UnionType) else {kind}


def _find_in_table(value: Any, kind: Any, where: str) -> Misfit | None:
    if not isinstance(value, dict):
        return Misfit(where, value, dict[str, Any])
    keys = _keys(kind) if is_typeddict(kind) else ((key, get_args(kind)[1], True) for key in value)
    for key, inner, needed in keys:
        place = f"{where}.{key}" if where else str(key)
        if key not in value:
            if needed:
                return Misfit(place, None, None)
        elif wrong := find_misfit(value[key], inner, place):
            return wrong
    return None


@cache
def _keys(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return the keys of a typed table, their kinds, and whether they must be there."""
    found = []
    for key, inner in get_type_hints(kind, include_extras=True).items():
        # Where annotations are texts, __required_keys__ does not know of NotRequired.
        optional = get_origin(inner) is NotRequired
        found.append((key, get_args(inner)[0] if optional else inner, not optional))
    return tuple(found)


def _is_instance(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be asked for at run time
        return not isinstance(value, bool | int | float | list | tuple | None)


def _wrong_type(where: str, value: Any, kind: Any, hint: str) -> UsageError:
    text = f"{where} must be {describe_kind(kind)}, got {value!r}.{hint}"
    return UsageError(text, code="wrong-type", setting=where, got=value)


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
