"""Checkpoints: safetensors files and one manifest that names them with their checksums.

The manifest is replaced in one step after all files are on disk, so a run that is killed at any moment finds either
the old checkpoint or the new one, whole. Only clients whose memory changed are written anew.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from fedatlas.errors import RunFolderError
from fedatlas.rounds import ServerState
from fedatlas.types import Memory, Tensors

MANIFEST = "manifest.json"
_SEPARATOR = "|"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a run needs to go on."""

    state: ServerState
    clients: dict[int, Memory]
    records: dict[str, int]
    """How many bytes of each record file belong to this checkpoint."""


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}. What was there before is intact: "
            "make space or make the folder writable, then resume."
        ) from error


class CheckpointStore:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clients: dict[str, dict[str, str]] = {}

    def exists(self) -> bool:
        """Tell whether there is a checkpoint."""
        return (self.folder / MANIFEST).exists()

    def save(
        self, state: ServerState, clients: Mapping[int, Memory], changed: set[int], records: Mapping[str, int]
    ) -> None:
        """Write the state, and the memory of the clients that changed."""
        server = self._write(f"server-{state.round:06d}", _flat_state(state))
        entries = dict(self._clients)
        for client in sorted(changed):
            entries[str(client)] = self._write(f"client-{client:06d}-{state.round:06d}", _flat(clients[client]))
        body = {"round": state.round, "server": server, "clients": entries, "records": dict(records)}
        manifest = {"sha256": _digest(json.dumps(body, sort_keys=True).encode()), **body}
        atomic_write(self.folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        self._clients = entries
        used = {server["file"], *(entry["file"] for entry in entries.values())}
        for file in self.folder.glob("*.safetensors"):
            if file.name not in used:
                file.unlink(missing_ok=True)

    def load(self, place: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> Checkpoint:
        """Read the checkpoint, refusing one that was cut short or altered."""
        manifest = self._manifest()
        state = _deep_state(self._read(manifest["server"]), int(manifest["round"]), place)
        self._clients = dict(manifest["clients"])
        clients = {int(c): _deep(self._read(entry), place) for c, entry in self._clients.items()}
        return Checkpoint(state, clients, {name: int(size) for name, size in manifest["records"].items()})

    def _manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            manifest: dict[str, Any] = json.loads(path.read_bytes())
            claimed = manifest.pop("sha256")
        except (ValueError, KeyError, AttributeError) as error:
            raise _damaged(path, "it is not a whole manifest") from error
        except OSError as error:
            raise RunFolderError(f"cannot read {path}: {error.strerror}.") from error
        if claimed != _digest(json.dumps(manifest, sort_keys=True).encode()):
            raise _damaged(path, "its checksum differs")
        return manifest

    def _write(self, stem: str, tensors: Tensors) -> dict[str, str]:
        # Cloned: a part may remember one tensor under two names, which the format does not know.
        content = save_tensors({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
        name = f"{stem}.safetensors"
        atomic_write(self.folder / name, content)
        return {"file": name, "sha256": _digest(content)}

    def _read(self, entry: Mapping[str, str]) -> Tensors:
        path = self.folder / entry["file"]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _damaged(path, "it is missing or unreadable") from error
        if _digest(content) != entry["sha256"]:
            raise _damaged(path, "it was cut short or altered (its checksum differs)")
        tensors: Tensors = load_tensors(content)
        return tensors


def _damaged(path: Path, why: str) -> RunFolderError:
    return RunFolderError(
        f"checkpoint {path} cannot be used: {why}. Restore it from a copy, or start the run anew with --overwrite."
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _flat(memory: Memory) -> Tensors:
    """Number the tensors: a file sorts its names, and sums must run in the same order after a resume."""
    pairs = [(part, name, tensor) for part, tensors in memory.items() for name, tensor in tensors.items()]
    return {f"{i:06d}{_SEPARATOR}{part}{_SEPARATOR}{name}": tensor for i, (part, name, tensor) in enumerate(pairs)}


def _deep(tensors: Tensors, place: Callable[[torch.Tensor], torch.Tensor]) -> Memory:
    memory: Memory = {}
    for key in sorted(tensors):
        _, part, name = key.split(_SEPARATOR, 2)
        memory.setdefault(part, {})[name] = place(tensors[key])
    return memory


def _flat_state(state: ServerState) -> Tensors:
    return _flat(
        {"shared": state.shared, "buffers": state.buffers} | {f"memory/{k}": v for k, v in state.memory.items()}
    )


def _deep_state(tensors: Tensors, round: int, place: Callable[[torch.Tensor], torch.Tensor]) -> ServerState:
    memory = _deep(tensors, place)
    return ServerState(
        round=round,
        shared=memory.pop("shared", {}),
        buffers=memory.pop("buffers", {}),
        memory={key.removeprefix("memory/"): value for key, value in memory.items()},
    )
