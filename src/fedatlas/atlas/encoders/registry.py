"""The encoders by name."""

from dataclasses import MISSING, fields
from typing import Any

from fedatlas.atlas.encoders.base import Encoder
from fedatlas.atlas.encoders.builtin import Builtin
from fedatlas.atlas.encoders.clip import Clip
from fedatlas.atlas.encoders.conse import Conse
from fedatlas.atlas.encoders.precomputed import Precomputed
from fedatlas.errors import UsageError, unknown_name

ENCODERS: dict[str, Any] = {"builtin": Builtin, "clip": Clip, "conse": Conse, "precomputed": Precomputed}
"""The encoders by name; the first line of each one's docstring says what it does."""


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
            raise UsageError(f"encoder {name!r} needs the option {option!r}.")
    encoder: Encoder = ENCODERS[name](**options)
    return encoder
