"""Checkpoints: safetensors files and one manifest that names them with their checksums.

The manifest is replaced in one step after all files are on disk, so a run that is killed at any moment finds either
the old checkpoint or the new one, whole. Only clients whose memory changed are written again. A journal maps clients to
files and grows by one line per change; the manifest holds its length and its checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fedatlas.errors import RunFolderError
from fedatlas.parts.types import GroupState, Memory, ServerState
from fedatlas.runs.client_memory import ClientMemories
from fedatlas.runs.files import Entry, atomic_write, damaged, digest, disk, unwritable
from fedatlas.runs.manifest import MANIFEST, Claim, Manifest, parsed_entry, read_manifest
from fedatlas.runs.tensor_files import SUFFIX, Place, TensorFiles

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
    records: Mapping[str, Claim]
    """The beginning of each record file that belongs to this checkpoint."""


class CheckpointStore:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = TensorFiles(folder)
        self._journal = _Journal(folder)
        self._server: str | None = None

    def exists(self) -> bool:
        """Return whether there is a checkpoint."""
        return (self.folder / MANIFEST).exists() and read_manifest(self.folder).server is not None

    def round(self) -> int:
        """Return how many rounds the checkpoint has seen; raise RunFolderError if the manifest is missing."""
        return read_manifest(self.folder).round

    def memories(self, limit: int | None, place: Place) -> ClientMemories:
        """Return an empty store of client memory that spills into this folder."""
        return ClientMemories(self.files, limit=limit, place=place)

    def save(
        self, state: ServerState, clients: Mapping[int, Memory], changed: set[int], records: Mapping[str, Claim]
    ) -> None:
        """Write the state, and the memory of the clients that changed."""
        self.begin(state, clients, changed, records, {})()

    def begin(
        self,
        state: ServerState,
        clients: Mapping[int, Memory],
        changed: set[int],
        records: Mapping[str, Claim],
        files: Mapping[str, Claim],
    ) -> Callable[[], None]:
        """Write the state, and the memory of the clients that changed; return the rest, which waits for the disk.

        The rest may be done beside the training, before the next checkpoint begins. It makes the checkpoint count.
        """
        server = self.files.write(f"server-{state.round:06d}", _packed_state(state), durable=False)
        entries, unsettled, obsolete = {}, [server], set[str]()
        if isinstance(clients, ClientMemories) and clients.files is self.files:
            entries = {client: clients.entry(client) for client in sorted(changed)}
            unsettled += clients.take_unsettled()
            obsolete, clients.obsolete = clients.obsolete, set()
            clients.stamp = state.round + 1
        else:
            for client in sorted(changed):
                name = f"client-{client:06d}-{state.round:06d}"
                entries[client] = self.files.write(name, clients[client], durable=False)
            unsettled += entries.values()

        def rest() -> None:
            for entry in unsettled:
                self.files.settle(entry)
            replaced = self._journal.add(entries, state.round) | obsolete
            Manifest(
                round=state.round,
                groups=len(state.groups),
                server=server,
                clients=self._journal.claim(),
                records=records,
                files=files,
            ).write(self.folder)
            if self._server not in (None, server.file):
                replaced.add(str(self._server))
            self._server = server.file
            for name in replaced:
                self.files.remove(name)

        return rest

    def load(self, place: Place = lambda tensor: tensor, limit: int | None = None) -> Checkpoint:
        """Read the checkpoint; raise RunFolderError if it was cut short or altered.

        At most ``limit`` bytes of the clients' memory are read now, the rest when it is needed.
        """
        manifest = read_manifest(self.folder)
        state = self._state(manifest, place)
        entries = self._journal.open(manifest.clients)
        self._server = None if manifest.server is None else manifest.server.file
        clients = ClientMemories.open(self.files, entries, stamp=state.round + 1, limit=limit, place=place)
        return Checkpoint(state, clients, manifest.records)

    def load_state(self, place: Place = lambda tensor: tensor) -> ServerState:
        """Read the server's state only."""
        return self._state(read_manifest(self.folder), place)

    def clear_leftovers(self) -> None:
        """Remove files that the checkpoint does not name: those of a run that was killed after it."""
        manifest = read_manifest(self.folder)
        used = {entry.file for entry in self._journal.open(manifest.clients).values()}
        used |= {entry.file for entry in (manifest.server, manifest.clients) if entry is not None}
        for file in self.folder.iterdir():
            if file.suffix in (SUFFIX, ".jsonl", ".partial") and file.name not in used:
                self.files.remove(file.name)

    def _state(self, manifest: Manifest, place: Place) -> ServerState:
        if manifest.server is None:
            raise RunFolderError(
                f"{self.folder} has no checkpoint: the run ended before its first one. Resume it, or train again.",
                code="checkpoint-missing",
                path=str(self.folder),
            )
        packed = self.files.read(manifest.server, place)
        group_of = packed.get(GROUPS, {}).get("group_of")
        if manifest.groups > len(packed) + (0 if group_of is None else group_of.numel()):
            raise damaged(self.folder / MANIFEST, f"it names {manifest.groups:,} groups, which are not in the state")
        groups = tuple(_unpacked(packed, f"group/{number}/") for number in range(manifest.groups))
        common = _unpacked(packed, "")
        return ServerState(
            round=manifest.round,
            shared=common.shared,
            buffers=common.buffers,
            memory=common.memory,
            groups=groups,
            group_of=group_of.cpu() if groups and group_of is not None else None,
        )


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

    def open(self, claim: Entry | None) -> dict[int, Entry]:
        """Read the part of the journal that the manifest covers."""
        if claim is None:
            return {}
        path = self._folder / claim.file
        try:
            content = path.read_bytes()[: claim.bytes] if claim.bytes else b""
        except OSError as error:
            raise damaged(path, "it is missing or unreadable") from error
        if digest(content) != claim.sha256:
            raise damaged(path, "it was cut short or altered (its checksum differs)")
        try:
            lines = [json.loads(line) for line in content.splitlines()]
            self._entries = {int(line["client"]): parsed_entry(line) for line in lines}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged(path, f"a line is wrong ({error})") from error
        self._name, self._size, self._lines = claim.file, len(content), len(lines)
        self._hash = hashlib.sha256(content)
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

    def claim(self) -> Entry:
        """Return the manifest's entry for the journal."""
        return Entry(self._name, self._size, self._hash.hexdigest())

    def _append(self, path: Path, content: bytes) -> None:
        try:
            with path.open("r+b") as file:
                file.seek(self._size)  # lines after this are of a killed run, not of the checkpoint
                file.truncate()
                disk.write(file, content)
                disk.sync(file)
        except OSError as error:
            raise unwritable(path, error) from error
