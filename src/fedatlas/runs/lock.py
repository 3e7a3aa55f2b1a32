"""A run's folder is written by one process at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

from fedatlas.errors import RunFolderError

LOCK = ".lock"
"""Held by the process that writes the run; a process that is killed lets go of it."""


def lock_folder(folder: Path) -> IO[bytes] | None:
    """Keep other processes from writing the same run, if the system supports locks; two writers would damage it."""
    if sys.platform == "win32":
        return None
    import fcntl  # missing on Windows

    try:
        file = (folder / LOCK).open("ab")
    except OSError:
        return None  # opening a record reports a folder that cannot be written
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if not isinstance(error, BlockingIOError):
            return None  # a file system without locks
        raise RunFolderError(
            f"{folder} is being written by another process. Wait until it ends, or use another folder.",
            code="folder-locked",
            path=str(folder),
        ) from None
    return file
