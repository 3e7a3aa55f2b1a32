"""Where a node keeps what its client remembers, round by round.

A memory counts once the server has taken the answer it came with. So a node keeps it under its round, the server says
with each assignment which round's memory is the valid one, and which it might still come back to after a restart.
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


class Shelf(Protocol):
    """What a client remembers, by the round in which it trained; round 0 is the empty memory."""

    def take(self, round: int) -> Memory:
        """Return the memory of a round."""
        ...

    def put(self, round: int, memory: Memory, keep: Collection[int]) -> None:
        """Keep a memory, and drop those of rounds other than this one and ``keep``."""
        ...


class FolderShelf:
    """Memories as safetensors files in a folder of the node's: they outlive the node's process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, round: int) -> Memory:
        """Return the memory of a round."""
        if round == 0:
            return {}
        try:
            return memory_from_bytes(self._file(round).read_bytes())
        except FileNotFoundError:
            raise LostMemoryError(round, f"there is no {self._file(round)}") from None
        except SafetensorError as error:
            raise RunFolderError(
                f"{self._file(round)} cannot be read ({error}); restore it from a copy.",
                code="file-unreadable",
                path=str(self._file(round)),
            ) from error

    def put(self, round: int, memory: Memory, keep: Collection[int]) -> None:
        """Keep a memory, and drop those of rounds other than this one and ``keep``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self._file(round), memory_to_bytes(memory))
        wanted = {self._file(number).name for number in (round, *keep)}
        for file in self.folder.glob("round-*.safetensors"):
            if file.name not in wanted:
                file.unlink(missing_ok=True)

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"


class ContextShelf:
    """Memories in Flower's context: they last as long as the node's process."""

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def take(self, round: int) -> Memory:
        """Return the memory of a round."""
        if round == 0:
            return {}
        start = f"{PREFIX}/{round}/"
        if start not in self.state.config_records:
            raise LostMemoryError(round, "the node was started anew and keeps memories in its process only")
        found = ((name, record) for name, record in self.state.array_records.items() if name.startswith(start))
        return {name.removeprefix(start): tensors(record) for name, record in found}

    def put(self, round: int, memory: Memory, keep: Collection[int]) -> None:
        """Keep a memory, and drop those of rounds other than this one and ``keep``."""
        wanted = tuple(f"{PREFIX}/{number}/" for number in keep)
        for name in list(self.state):
            if name.startswith(f"{PREFIX}/") and not name.startswith(wanted):
                del self.state[name]
        start = f"{PREFIX}/{round}/"
        for part, own in memory.items():
            self.state[f"{start}{part}"] = arrays(own)
        self.state[start] = ConfigRecord()  # there may be parts that remember nothing


class LostMemoryError(UsageError):
    """What a client remembered of a round is not there any more."""

    def __init__(self, round: int, why: str) -> None:
        super().__init__(
            f"this client's memory of round {round} is gone: {why}. Restore it, or set forget=true in the node's "
            "config to let the client begin anew."
        )
        self.round = round
