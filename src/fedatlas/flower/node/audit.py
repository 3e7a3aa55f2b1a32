"""A node's audit log: one line for every request, with what left the node or why it was refused.

Each line holds the hash of the line before it, so that nobody can change, remove or add a line in the middle without
breaking the chain. A line is on the disk before the reply leaves.

h_n = sha256(h_{n-1} + line n without its hash)        h_0 = 64 zeros
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fedatlas.errors import RunFolderError
from fedatlas.runs.files import private_folder

AUDIT = "audit.jsonl"
"""In the folder of a node's memory."""
FIRST = "0" * 64
HASH, PREVIOUS = "hash", "previous"
MOST_LINE = 1 << 20
"""The most bytes of a line: a longer one was not written here."""
MOST_VALUE = 10_000
"""The most characters of a value in a line that would be too long: a server chooses some of what is logged."""


class AuditLog:
    """A file to which lines are added, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write a line; raise RunFolderError if it cannot be written, so that nothing leaves unseen."""
        private_folder(self.path.parent)
        try:
            with open(self.path, "a+b", opener=_open_own) as file:
                _lock(file)
                number, previous = _last(file)
                body = {"number": number + 1, "time": datetime.now(UTC).isoformat(timespec="seconds"), **entry}
                body[PREVIOUS] = previous
                file.write(_line(body))
                file.flush()
                os.fsync(file.fileno())
        except (OSError, ValueError, KeyError) as error:
            raise RunFolderError(
                f"the audit log {self.path} cannot be written ({error}); nothing leaves this node until it can.",
                code="file-unwritable",
                path=str(self.path),
            ) from error

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the lines; raise RunFolderError at the first that does not follow from the one before it."""
        previous, number = FIRST, 0
        try:
            with self.path.open("rb") as file:
                while line := file.readline(MOST_LINE):
                    number += 1
                    entry = _read(line)
                    if entry is None or entry["number"] != number or entry[PREVIOUS] != previous:
                        raise _broken(self.path, number)
                    previous = entry[HASH]
                    yield entry
        except OSError as error:
            if isinstance(error, RunFolderError):
                raise
            raise RunFolderError(
                f"the audit log {self.path} cannot be read: {error.strerror}.",
                code="file-unreadable",
                path=str(self.path),
            ) from error


def _open_own(path: str, flags: int) -> int:
    """Open a file that only its owner can read, and no link in its place: that would lead to another file."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


def line_hash(entry: Mapping[str, Any]) -> str:
    """Return the hash of a line: over the hash of the line before it, and all else that it says."""
    said = json.dumps({key: value for key, value in entry.items() if key not in (HASH, PREVIOUS)}, sort_keys=True)
    return hashlib.sha256(f"{entry[PREVIOUS]}{said}".encode()).hexdigest()


def _line(body: dict[str, Any]) -> bytes:
    """Return a line that can be read again; of values that are too long it has the beginning and a hash."""
    line = json.dumps({**body, HASH: line_hash(body)}).encode() + b"\n"
    if len(line) < MOST_LINE:
        return line
    short = {key: _shortened(value) for key, value in body.items()}
    return json.dumps({**short, HASH: line_hash(short)}).encode() + b"\n"


def _shortened(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) <= MOST_VALUE:
        return value
    return {"begins": text[:200], "characters": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _read(line: bytes) -> dict[str, Any] | None:
    """Return a whole line whose hash is right, else None."""
    try:
        entry = json.loads(line) if line.endswith(b"\n") else None
        sound = isinstance(entry, dict) and "number" in entry and entry[HASH] == line_hash(entry)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return entry if sound else None


def _last(file: IO[bytes]) -> tuple[int, str]:
    """Return the number and the hash of the last line."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return 0, FIRST
    file.seek(max(0, size - MOST_LINE))
    entry = _read(file.read().splitlines(keepends=True)[-1])
    if entry is None:
        raise ValueError("its last line is broken; move the file away, and keep it")
    file.seek(0, os.SEEK_END)
    return int(entry["number"]), str(entry[HASH])


def _lock(file: IO[bytes]) -> None:
    """Let one process write at a time; the lock goes with the file."""
    if sys.platform == "win32":
        return
    import fcntl  # missing on Windows

    fcntl.flock(file, fcntl.LOCK_EX)


def _broken(path: Path, number: int) -> RunFolderError:
    return RunFolderError(
        f"the audit log {path} was altered: line {number} does not follow from the line before it.",
        code="audit-altered",
        path=str(path),
        line=number,
    )
