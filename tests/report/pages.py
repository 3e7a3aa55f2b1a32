"""The data block of a page that was written, for tests."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"u8": "<u1", "i8": "<i1", "u16": "<u2", "f32": "<f4"}


def read_block(path: Path) -> dict[str, Any]:
    """Return the data of a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    block: dict[str, Any] = json.loads(text)
    return block


def unpack(packed: dict[str, str]) -> np.ndarray:
    """Return packed numbers."""
    return np.frombuffer(base64.b64decode(packed["d"]), TYPES[packed["t"]])


def accuracies(algorithm: dict[str, Any], key: str = "value") -> list[float | None]:
    """Return the clients' accuracies under an algorithm."""
    return [None if value == 65535 else value / 10_000 for value in unpack(algorithm["clients"][key]).tolist()]
