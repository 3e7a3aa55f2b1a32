"""Checkpoints: safetensors files and one manifest that names them with their checksums.

The manifest is replaced in one step after all files are on disk, so a run that is killed at any moment finds either
the old checkpoint or the new one, whole. Only clients whose memory changed are written again. A journal maps clients to
files and grows by one line per change; the manifest holds its length and its checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedatlas.errors import RunFolderError
from fedatlas.parts.types import GroupState, Memory, ServerState
from fedatlas.runs.client_memory import ClientMemories
from fedatlas.runs.files import SUFFIX, Entry, Place, TensorFiles, atomic_write, damaged, digest

MANIFEST = "manifest.json"
FORMAT = 2
GROUPS = "groups"
"""Where a state's file holds the group of each client."""
JOURNAL = "clients-{:06d}.jsonl"
SPARE_LINES = 1000
"""A journal is written again when it has this many lines beyond four for each client."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state from which a run continues."""

    state: ServerState
    clients: ClientMemories
    records: dict[str, int]
    """How many bytes of each record file belong to this checkpoint."""


class CheckpointStore:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = TensorFiles(folder)
        self._journal = _Journal(folder)
        self._server: str | None = None

    def exists(self) -> bool:
        """Return whether there is a checkpoint."""
        return (self.folder / MANIFEST).exists()

    def round(self) -> int:
        """Return how many rounds the checkpoint has seen, 0 if there is none."""
        return int(self._manifest()["round"]) if self.exists() else 0

    def memories(self, limit: int | None, place: Place) -> ClientMemories:
        """Return an empty store of client memory that spills into this folder."""
        return ClientMemories(self.files, limit=limit, place=place)

    def save(
        self, state: ServerState, clients: Mapping[int, Memory], changed: set[int], records: Mapping[str, int]
    ) -> None:
        """Write the state, and the memory of the clients that changed."""
        server = self.files.write(f"server-{state.round:06d}", _packed_state(state))
        entries = {
            client: clients.entry(client)
            if isinstance(clients, ClientMemories) and clients.files is self.files
            else self.files.write(f"client-{client:06d}-{state.round:06d}", clients[client])
            for client in sorted(changed)
        }
        replaced = self._journal.add(entries, state.round)
        body = {
            "format": FORMAT,
            "round": state.round,
            **({"groups": len(state.groups)} if state.groups else {}),
            "server": asdict(server),
            "clients": self._journal.claim(),
            "records": dict(records),
        }
        manifest = {"sha256": digest(json.dumps(body, sort_keys=True).encode()), **body}
        atomic_write(self.folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        if isinstance(clients, ClientMemories):
            clients.stamp = state.round + 1
            replaced |= clients.obsolete
            clients.obsolete = set()
        if self._server not in (None, server.file):
            replaced.add(str(self._server))
        self._server = server.file
        for name in replaced:
            self.files.remove(name)

    def load(self, place: Place = lambda tensor: tensor, limit: int | None = None) -> Checkpoint:
        """Read the checkpoint; raise RunFolderError if it was cut short or altered.

        At most ``limit`` bytes of the clients' memory are read now, the rest when it is needed.
        """
        manifest = self._manifest()
        state = self._state(manifest, place)
        entries = self._journal.open(manifest["clients"])
        self._server = manifest["server"]["file"]
        clients = ClientMemories.open(self.files, entries, stamp=state.round + 1, limit=limit, place=place)
        return Checkpoint(state, clients, {name: int(size) for name, size in manifest["records"].items()})

    def load_state(self, place: Place = lambda tensor: tensor) -> ServerState:
        """Read the server's state only."""
        return self._state(self._manifest(), place)

    def clear_leftovers(self) -> None:
        """Remove files that the checkpoint does not name: those of a run that was killed after it."""
        manifest = self._manifest()
        used = {entry.file for entry in self._journal.open(manifest["clients"]).values()}
        used |= {manifest["server"]["file"], manifest["clients"]["file"]}
        for file in self.folder.iterdir():
            if file.suffix in (SUFFIX, ".jsonl", ".partial") and file.name not in used:
                file.unlink(missing_ok=True)

    def _state(self, manifest: Mapping[str, Any], place: Place) -> ServerState:
        packed = self.files.read(Entry(**manifest["server"]), place)
        count = int(manifest.get("groups", 0))
        groups = tuple(_unpacked(packed, f"group/{number}/") for number in range(count))
        common = _unpacked(packed, "")
        return ServerState(
            round=int(manifest["round"]),
            shared=common.shared,
            buffers=common.buffers,
            memory=common.memory,
            groups=groups,
            group_of=packed[GROUPS]["group_of"].cpu() if count else None,
        )

    def _manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            manifest: dict[str, Any] = json.loads(path.read_bytes())
            claimed = manifest.pop("sha256")
        except (ValueError, KeyError, AttributeError) as error:
            raise damaged(path, "it is not a whole manifest") from error
        except FileNotFoundError as error:
            raise RunFolderError(
                f"{self.folder} has no checkpoint: the run ended before its first one. Resume it, or train again.",
                code="checkpoint-missing",
                path=str(self.folder),
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"cannot read {path}: {error.strerror}.", code="file-unreadable", path=str(path)
            ) from error
        if claimed != digest(json.dumps(manifest, sort_keys=True).encode()):
            raise damaged(path, "its checksum differs")
        if manifest.get("format") != FORMAT:
            raise damaged(path, "another version of fedatlas wrote it")
        return manifest


def _packed_state(state: ServerState) -> Memory:
    """Return the tensors of the server's state, by what they are."""
    packed = _packed(state, "")
    for number, group in enumerate(state.groups):
        packed |= _packed(group, f"group/{number}/")
    if state.group_of is not None:
        packed[GROUPS] = {"group_of": state.group_of}
    return packed


def _packed(kept: GroupState, prefix: str) -> Memory:
    parts = {f"{prefix}memory/{key}": tensors for key, tensors in kept.memory.items()}
    return {f"{prefix}shared": kept.shared, f"{prefix}buffers": kept.buffers, **parts}


def _unpacked(packed: Memory, prefix: str) -> GroupState:
    start = f"{prefix}memory/"
    memory = {key.removeprefix(start): value for key, value in packed.items() if key.startswith(start)}
    return GroupState(
        shared=packed.get(f"{prefix}shared", {}), buffers=packed.get(f"{prefix}buffers", {}), memory=memory
    )


class _Journal:
    """Which file holds which client's memory: one line per change, the last one counts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = JOURNAL.format(0)
        self._size = 0
        self._lines = 0
        self._hash = hashlib.sha256()
        self._entries: dict[int, Entry] = {}

    def open(self, claim: Mapping[str, Any]) -> dict[int, Entry]:
        """Read the part of the journal that the manifest covers."""
        path = self._folder / claim["file"]
        try:
            content = path.read_bytes()[: claim["bytes"]] if claim["bytes"] else b""
        except OSError as error:
            raise damaged(path, "it is missing or unreadable") from error
        if digest(content) != claim["sha256"]:
            raise damaged(path, "it was cut short or altered (its checksum differs)")
        lines = [json.loads(line) for line in content.splitlines()]
        self._name, self._size, self._lines = claim["file"], len(content), len(lines)
        self._hash = hashlib.sha256(content)
        self._entries = {line.pop("client"): Entry(**line) for line in lines}
        return self._entries

    def add(self, entries: Mapping[int, Entry], round: int) -> set[str]:
        """Write the lines of clients that changed; return the files that the next manifest will not name."""
        unnamed = {self._entries[c].file for c in entries if c in self._entries} - {e.file for e in entries.values()}
        self._entries |= entries
        if self._size and self._lines + len(entries) > 4 * len(self._entries) + SPARE_LINES:
            unnamed.add(self._name)
            self._name, self._size, self._lines, self._hash = JOURNAL.format(round), 0, 0, hashlib.sha256()
            entries = self._entries
        content = b"".join(json.dumps({"client": c, **asdict(e)}).encode() + b"\n" for c, e in entries.items())
        path = self._folder / self._name
        if self._size and content:
            self._append(path, content)
        elif content:
            atomic_write(path, content)
        self._size, self._lines = self._size + len(content), self._lines + len(entries)
        self._hash.update(content)
        return unnamed

    def claim(self) -> dict[str, Any]:
        """Return the manifest's entry for the journal."""
        return {"file": self._name, "bytes": self._size, "sha256": self._hash.hexdigest()}

    def _append(self, path: Path, content: bytes) -> None:
        try:
            with path.open("r+b") as file:
                file.seek(self._size)  # lines after this are of a killed run, not of the checkpoint
                file.write(content)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunFolderError(
                f"cannot write {path}: {error.strerror or error}. The last checkpoint is intact: "
                "make space or make the folder writable, then resume.",
                code="file-unwritable",
                path=str(path),
            ) from error
