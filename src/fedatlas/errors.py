"""The exceptions of fedatlas.

    FedatlasError
    ├── UsageError            a setting, name or argument is wrong (also a ValueError)
    ├── DataError             the data cannot be used as it is (also a ValueError)
    ├── TrainingError         a client's training broke: names client, round and stage
    ├── RunFolderError        a run's folder cannot be written, read or trusted (also an OSError)
    └── AlgorithmCheckError   an algorithm breaks a promise that every algorithm must keep

Every message says what is wrong, where, what was got, and what to do.
"""

import difflib
import inspect
import numbers
import re
from collections.abc import Iterable
from typing import Any

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What steers a terminal, turns the direction of a text, or cannot be written; tabs and ends of lines may stay."""


class FedatlasError(Exception):
    """Base of every error that fedatlas raises on purpose.

    ``code`` names the kind of fault, in words with hyphens, and does not change with the wording. ``fields`` holds the
    values that the message shows, such as ``got`` and ``known``, for programs that react to an error.
    """

    def __init__(self, message: str, *, code: str, **fields: Any) -> None:
        super().__init__(message)
        self.code, self.fields = code, fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args[0], self.code, self.fields)


def _restored(kind: type[FedatlasError], message: str, code: str, fields: dict[str, Any]) -> FedatlasError:
    return kind(message, code=code, **fields)


class UsageError(FedatlasError, ValueError):
    """A setting, a name or an argument is wrong."""


class DataError(FedatlasError, ValueError):
    """The data cannot be used as it is."""


class TrainingError(FedatlasError):
    """A client's training broke."""

    def __init__(self, message: str, *, client: str, round: int, stage: str, code: str, **fields: Any) -> None:
        super().__init__(f"client {client}, round {round}, {stage}: {message}", code=code, **fields)
        self.message, self.client, self.round, self.stage = message, client, round, stage

    def __reduce__(self) -> tuple[Any, ...]:
        where = {"client": self.client, "round": self.round, "stage": self.stage}
        return _restored, (type(self), self.message, self.code, {**self.fields, **where})


class RunFolderError(FedatlasError, OSError):
    """A run's folder cannot be written, read or trusted."""


class AlgorithmCheckError(FedatlasError):
    """An algorithm breaks a promise that every algorithm must keep."""


def printable(text: str) -> str:
    r"""Return a text for a terminal: a name in it, which comes from a file or a message, must not steer that.

    >>> printable("Lyon\x1b[2J")
    'Lyon\\x1b[2J'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def expect(value: object, kind: type | tuple[type, ...], what: str, do: str) -> None:
    """Refuse an argument of another kind than it must be: ``what`` it must be, and what to ``do``."""
    if not isinstance(value, kind):
        raise UsageError(f"{what}, got {_shown(value)}. {do}", code="wrong-type", got=value)


def expect_number(value: Any, what: str, *, whole: bool = False) -> Any:
    """Return a number, one of numpy's as Python's own; refuse what is none, such as a text of one."""
    kind = "a whole number" if whole else "a number"
    do = "Write it without quotes." if isinstance(value, str) else "Give one."
    expect(value, numbers.Integral if whole else numbers.Real, f"{what} must be {kind}", do)
    return (
        value if isinstance(value, int | float) else int(value) if isinstance(value, numbers.Integral) else float(value)
    )


def _shown(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else f"one of type {type(value).__name__}"


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """Return the error for a name that is not known, with the nearest known one."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(
        f"unknown {kind} {str(name)!r}.{hint} Known: {', '.join(names)}.",
        code="unknown-name",
        kind=kind,
        got=name,
        known=names,
    )
