"""The encoders by name; nothing here imports torch until one is made."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from fedatlas.errors import UsageError, unknown_name
from fedatlas.registry import Registry

if TYPE_CHECKING:
    from fedatlas.atlas.encoders.base import Encoder

ENCODERS: Registry[type[Any]] = Registry("encoder", "encoder", "fedatlas.atlas.encoders")
"""The encoders by name; the first line of its docstring describes each."""
encoder = ENCODERS.register


def encoder_options(name: str) -> dict[str, Any]:
    """Return the options of an encoder and their defaults; one without a default must be given.

    >>> sorted(encoder_options("clip"))
    ['cache', 'device', 'model', 'normalize']
    """
    if name not in ENCODERS:
        raise unknown_name("encoder", name, ENCODERS)
    return {option.name: option.default for option in fields(ENCODERS[name])}


def make_encoder(name: str, **options: Any) -> Encoder:
    """Return an encoder by name.

    >>> make_encoder("builtin").name
    'builtin'
    """
    known = encoder_options(name)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of encoder {name!r}", option, known)
    for option, default in known.items():
        if default is MISSING and option not in options:
            raise UsageError(f"encoder {name!r} needs the option {option!r}.", code="missing-option", option=option)
    made: Encoder = ENCODERS[name](**options)
    return made
