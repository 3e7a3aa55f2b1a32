"""Custom functions, named on a command line or in a config.

A name in a file is data, and data run no code: a function is called only if a user of this machine allowed it by
name, with ``--allow-code NAME`` or ``fedatlas.allow_code(NAME)``. The names are kept in the environment, so that the
processes that are started from here know them too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fedatlas.errors import FedatlasError, UsageError

_NOT_THEIRS = (str(Path(__file__).parents[1]), importlib.__file__, "<frozen ")
"""How the names of files begin that are not the user's."""


ALLOWED = "FEDATLAS_ALLOW_CODE"
"""The variable that holds the allowed names, with semicolons between them."""


def allow_code(name: str) -> None:
    """Let configs, runs and apps name your function ``module:function`` or ``path/to/file.py:function``.

    It holds for this process and those that it starts. Allow only code that you would run yourself.
    """
    _parts(name, "allow_code")
    os.environ[ALLOWED] = ";".join(dict.fromkeys([*_allowed(), _in_full(name)]))


def check_allowed(text: str, what: str) -> None:
    """Raise UsageError if the function was not allowed on this machine; errors begin with ``what``."""
    _parts(text, what)
    if _in_full(text) not in _allowed():
        raise UsageError(
            f"{what} {text!r} is code, and a config or a run may not start code by itself. If you trust it, add "
            f"--allow-code {text} to the command; in Python call fedatlas.allow_code({text!r}) first.",
            code="code-not-allowed",
            got=text,
        )


def _allowed() -> list[str]:
    names = [name.strip() for name in os.environ.get(ALLOWED, "").split(";")]
    return [_in_full(name) for name in names if name]


def _in_full(text: str) -> str:
    """Return a function's name with the whole path of its file."""
    place, _, name = text.rpartition(":")
    return f"{Path(place).expanduser().resolve()}:{name}" if place.endswith(".py") else text


def _parts(text: str, what: str) -> tuple[str, str]:
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UsageError(
            f"{what} must be module:function or path/to/file.py:function, got {text!r}.", code="wrong-value", got=text
        )
    return place, name


def find_function(text: str, what: str) -> Callable[..., Any]:
    """Return the function ``module:function`` or ``path/to/file.py:function``; errors begin with ``what``.

    Whoever calls this has asked ``check_allowed`` first, or knows that the user of this machine named the function.
    """
    place, name = _parts(text, what)
    try:
        own = Path(place).expanduser().resolve() if place.endswith(".py") else None
        function: Callable[..., Any] = getattr(importlib.import_module(place) if own is None else _module(own), name)
    except (ImportError, OSError, AttributeError) as error:
        raise UsageError(f"{what} {text!r} cannot be found: {error}.", code="user-function", got=text) from error
    except SyntaxError as error:
        raise UsageError(f"{what} {text!r} cannot be read: {error}.", code="user-function", got=text) from error
    except FedatlasError:
        raise
    except Exception as error:  # whatever the user's file raises
        raise UsageError(
            f"{what} {text!r} cannot be loaded: {describe_error(error)}.", code="user-function", got=text
        ) from error
    if not callable(function):
        raise UsageError(
            f"{what} {text!r} is not a function but of type {type(function).__name__}.", code="wrong-type", got=text
        )
    return function


def describe_error(error: Exception) -> str:
    """Return the message of an error in custom code, with the file and line of that code.

    >>> describe_error(ValueError("too small"))
    'ValueError: too small'
    """
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS)
    ]
    # The last line in the file where the user's code was entered; deeper down it may be a library's.
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}".removesuffix(".") + where


@cache
def _module(file: Path) -> ModuleType:
    """Return a file's module, the same each time: a class that is made twice is two classes."""
    spec = importlib.util.spec_from_file_location(f"own file {file}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for what their annotations name
    loaded = False
    try:
        spec.loader.exec_module(module)
        loaded = True
    finally:
        if not loaded:
            del sys.modules[spec.name]
    return module
