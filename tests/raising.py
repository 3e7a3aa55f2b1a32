"""What a test says of an error: its kind, its code and the fields that matter. The wording is in docs/errors.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fedatlas.errors import FedatlasError


@contextmanager
def raises(kind: type[FedatlasError], code: str, /, **fields: Any) -> Iterator[pytest.ExceptionInfo[FedatlasError]]:
    """Expect an error of a kind with a code; fields that are given must have these values."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert error.code == code, f"code is {error.code!r}: {error}"
    for name, value in fields.items():
        assert name in error.fields, f"no field {name!r} in {error.fields}: {error}"
        assert error.fields[name] == value, f"{name} is {error.fields[name]!r}: {error}"
