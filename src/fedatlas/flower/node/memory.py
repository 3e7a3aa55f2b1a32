"""A node's store of its client's memory, round by round.

A memory is valid once the server has taken the upload of the same round. So a node stores memories by round, and by
turn where a round has several: 12 is the memory after the first turn of round 12, 12.1 that after the second. With each
assignment the server names the valid memory, and those that it may come back to after a restart.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, RecordDict

from fedatlas.errors import RunFolderError, UsageError
from fedatlas.flower.protocol.messages import arrays, tensors
from fedatlas.parts.types import Memory
from fedatlas.runs.files import atomic_write, private_folder
from fedatlas.runs.tensor_files import memory_from_bytes, memory_to_bytes

PREFIX = "memory"
NOTHING = "0"
"""The version of the empty memory, before any round."""


class MemoryStore(Protocol):
    """A client's memories by their versions."""

    def take(self, version: str) -> Memory:
        """Return a memory."""
        ...

    def put(self, version: str, memory: Memory, keep: Collection[str]) -> None:
        """Store a memory, and delete the others but those to ``keep``."""
        ...


class FolderStore:
    """Memories as safetensors files in a folder: they outlive the node's process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, version: str) -> Memory:
        """Return a memory."""
        if version == NOTHING:
            return {}
        file = self._file(version)
        try:
            return memory_from_bytes(file.read_bytes())
        except FileNotFoundError:
            raise _lost(version, f"there is no {file}") from None
        except ValueError as error:
            raise RunFolderError(
                f"{file} cannot be read ({error}); restore it from a copy.", code="file-unreadable", path=str(file)
            ) from error

    def put(self, version: str, memory: Memory, keep: Collection[str]) -> None:
        """Store a memory, and delete the others but those to ``keep``."""
        private_folder(self.folder)
        atomic_write(self._file(version), memory_to_bytes(memory))
        wanted = {self._file(other).name for other in (version, *keep)}
        for file in self.folder.glob("round-*.safetensors"):
            if file.name not in wanted:
                file.unlink(missing_ok=True)

    def _file(self, version: str) -> Path:
        # Numbers only: a version comes with a message, and must not lead out of the folder.
        round, _, turn = version.partition(".")
        return self.folder / f"round-{int(round):06d}{f'.{int(turn)}' if turn else ''}.safetensors"


class ContextStore:
    """Memories in Flower's context: they last as long as the node's process."""

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def take(self, version: str) -> Memory:
        """Return a memory."""
        if version == NOTHING:
            return {}
        start = f"{PREFIX}/{version}/"
        if start not in self.state.config_records:
            raise _lost(version, "the node was restarted, and it keeps memories in its process only")
        found = ((name, record) for name, record in self.state.array_records.items() if name.startswith(start))
        return {name.removeprefix(start): tensors(record) for name, record in found}

    def put(self, version: str, memory: Memory, keep: Collection[str]) -> None:
        """Store a memory, and delete the others but those to ``keep``."""
        wanted = tuple(f"{PREFIX}/{other}/" for other in keep)
        for name in list(self.state):
            if name.startswith(f"{PREFIX}/") and not name.startswith(wanted):
                del self.state[name]
        start = f"{PREFIX}/{version}/"
        for part, own in memory.items():
            self.state[f"{start}{part}"] = arrays(own)
        self.state[start] = ConfigRecord()  # marks the round even if no part remembers anything


class LostMemoryError(UsageError):
    """A client's memory of a round is gone; the field ``round`` says which."""


def _lost(version: str, why: str) -> LostMemoryError:
    round = int(version.partition(".")[0])
    return LostMemoryError(
        f"this client's memory of round {round} is gone: {why}. Restore it, or set forget=true in the node's config to "
        "let the client start with an empty memory.",
        code="memory-lost",
        round=round,
    )
