"""A node's store of its client's memory, round by round.

A memory is valid once the server has taken the upload of the same round. So a node stores memories by round. With each
assignment the server names the round of the valid memory, and the rounds that it may come back to after a restart.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from flwr.app import ConfigRecord, RecordDict
from safetensors import SafetensorError

from fedatlas.errors import RunFolderError, UsageError
from fedatlas.flower.protocol.messages import arrays, tensors
from fedatlas.parts.types import Memory
from fedatlas.runs.files import atomic_write, memory_from_bytes, memory_to_bytes

PREFIX = "memory"


class MemoryStore(Protocol):
    """A client's memories by the round in which it trained; round 0 is the empty memory."""

    def take(self, round: int) -> Memory:
        """Return the memory of a round."""
        ...

    def put(self, round: int, memory: Memory, keep: Collection[int]) -> None:
        """Store a memory, and delete those of rounds other than this one and ``keep``."""
        ...


class FolderStore:
    """Memories as safetensors files in a folder: they outlive the node's process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, round: int) -> Memory:
        """Return the memory of a round."""
        if round == 0:
            return {}
        try:
            return memory_from_bytes(self._file(round).read_bytes())
        except FileNotFoundError:
            raise _lost(round, f"there is no {self._file(round)}") from None
        except SafetensorError as error:
            raise RunFolderError(
                f"{self._file(round)} cannot be read ({error}); restore it from a copy.",
                code="file-unreadable",
                path=str(self._file(round)),
            ) from error

    def put(self, round: int, memory: Memory, keep: Collection[int]) -> None:
        """Store a memory, and delete those of rounds other than this one and ``keep``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self._file(round), memory_to_bytes(memory))
        wanted = {self._file(number).name for number in (round, *keep)}
        for file in self.folder.glob("round-*.safetensors"):
            if file.name not in wanted:
                file.unlink(missing_ok=True)

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"


class ContextStore:
    """Memories in Flower's context: they last as long as the node's process."""

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def take(self, round: int) -> Memory:
        """Return the memory of a round."""
        if round == 0:
            return {}
        start = f"{PREFIX}/{round}/"
        if start not in self.state.config_records:
            raise _lost(round, "the node was restarted, and it keeps memories in its process only")
        found = ((name, record) for name, record in self.state.array_records.items() if name.startswith(start))
        return {name.removeprefix(start): tensors(record) for name, record in found}

    def put(self, round: int, memory: Memory, keep: Collection[int]) -> None:
        """Store a memory, and delete those of rounds other than this one and ``keep``."""
        wanted = tuple(f"{PREFIX}/{number}/" for number in keep)
        for name in list(self.state):
            if name.startswith(f"{PREFIX}/") and not name.startswith(wanted):
                del self.state[name]
        start = f"{PREFIX}/{round}/"
        for part, own in memory.items():
            self.state[f"{start}{part}"] = arrays(own)
        self.state[start] = ConfigRecord()  # marks the round even if no part remembers anything


class LostMemoryError(UsageError):
    """A client's memory of a round is gone; the field ``round`` says which."""


def _lost(round: int, why: str) -> LostMemoryError:
    return LostMemoryError(
        f"this client's memory of round {round} is gone: {why}. Restore it, or set forget=true in the node's config to "
        "let the client start with an empty memory.",
        code="memory-lost",
        round=round,
    )
