"""Numbers of many clients as short text, and the one place where a page's data are escaped."""

import base64
import json
from typing import Any

import numpy as np

NO_SHARE = 65535
"""A share that is not known, where shares are in ten-thousandths."""
_TYPES = {"u8": "<u1", "i8": "<i1", "u16": "<u2", "i16": "<i2", "u32": "<u4"}
_LARGEST = float(np.finfo(np.float32).max)


def pack(values: Any, kind: str) -> dict[str, str]:
    """Return integers as base64 of little-endian numbers: ``u8``, ``i8``, ``u16``, ``i16`` or ``u32``.

    >>> pack([1, 258], "u16")
    {'t': 'u16', 'd': 'AQACAQ=='}
    """
    limits = np.iinfo(np.dtype(_TYPES[kind]))
    numbers = np.rint(np.asarray(values, dtype=np.float64)).clip(limits.min, limits.max)
    return {"t": kind, "d": base64.b64encode(numbers.astype(_TYPES[kind]).tobytes()).decode("ascii")}


def pack_shares(values: Any) -> dict[str, str]:
    """Return shares in [0, 1] in ten-thousandths; NaN becomes 65535.

    >>> pack_shares([0.5, float("nan")]) == pack([5000, 65535], "u16")
    True
    """
    shares = np.asarray(values, dtype=np.float64)
    return pack(np.where(np.isnan(shares), NO_SHARE, np.nan_to_num(shares).clip(0, 1) * 10_000), "u16")


def pack_figures(values: Any, *, shares: bool) -> dict[str, str]:
    """Return a metric's values: shares as ``pack_shares`` does, amounts as ``f32``, float32 with NaN for none.

    >>> pack_figures([1.5], shares=False)
    {'t': 'f32', 'd': 'AADAPw=='}
    """
    if shares:
        return pack_shares(values)
    numbers = np.asarray(values, dtype=np.float64).clip(-_LARGEST, _LARGEST)
    return {"t": "f32", "d": base64.b64encode(numbers.astype("<f4").tobytes()).decode("ascii")}


def embed(block: Any) -> str:
    """Return a value as JSON that may stand inside an element of HTML, whatever texts it holds.

    >>> embed({"name": "</script><b>&"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e\\\\u0026"}'
    """
    text = json.dumps(block, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text
