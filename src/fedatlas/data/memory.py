"""The memory of this machine, and files that would not fit it."""

import os
from pathlib import Path

from fedatlas.errors import DataError

AS_OBJECTS = 8
"""A text takes about so many times its size when its cells or lines are objects."""


def physical_memory() -> int:
    """Return how many bytes of RAM the machine has; eight gigabytes if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 10**9


def check_fits(path: Path, size: int | None = None, *, times: int = 1) -> None:
    """Raise DataError if a file, or what it unpacks to, would not fit the memory; nothing is read.

    ``times`` is how many times its size it takes in memory.
    """
    needed = (path.stat().st_size if size is None else size) * times
    if needed > (most := physical_memory()):
        raise DataError(
            f"{path}: needs about {needed:,} bytes of memory, and this machine has {most:,}. Make it smaller.",
            code="out-of-memory",
            path=str(path),
            got=needed,
            most=most,
        )
