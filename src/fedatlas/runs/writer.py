"""Writing a run's folder, and the checks before that."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import torch

from fedatlas.engines.engine import gives_same_bits
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.runs.checkpoint import Checkpoint, CheckpointStore
from fedatlas.runs.files import atomic_write
from fedatlas.runs.lock import LOCK, lock_folder
from fedatlas.runs.run import ADAPTED, ATLAS, CONFIG, NEW_ATLAS, RECORDS
from fedatlas.runs.schema import RESOLVED, read_settings
from fedatlas.runs.settings_diff import describe, differences

_encode = json.JSONEncoder(check_circular=False).encode
"""As ``json.dumps``, which looks for circles that plain records cannot have."""


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Where a run is kept, and what happens to a run that is already there."""

    folder: Path
    resume: bool = False
    """Go on with it."""
    overwrite: bool = False
    """Replace it."""
    config: str | None = None
    """The TOML that the run's settings came from."""


class RunWriter:
    """Writes a run's folder while it runs."""

    def __init__(
        self,
        folder: Path,
        resolved: Mapping[str, Any],
        *,
        config: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.folder = folder
        self.checkpoints = CheckpointStore(folder / "checkpoints")
        taken = check_folder(folder, resume=resume, overwrite=overwrite)
        try:
            self.checkpoints.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"cannot make {folder}: {error.strerror}. Choose a folder you may write to.",
                code="file-unwritable",
                path=str(folder),
            ) from error
        self._resumed = taken and resume
        if self._resumed:
            check_same(read_settings(folder / RESOLVED), resolved, folder)
            check_rounds(self.checkpoints.round(), resolved["training"]["rounds"], folder)
        self._lock = lock_folder(folder)
        self._resolved, self._config, self._begun = resolved, config, False
        self._files: dict[str, IO[bytes]] = {}

    def begin(self) -> None:
        """Write the settings of the run; a run that it replaces is removed only now."""
        if self._begun:
            return
        self._begun = True
        if self._resumed and self.checkpoints.round() == self._resolved["training"]["rounds"]:
            return  # nothing is left to do
        if not self._resumed:
            self._clear()
            if (self.folder / NEW_ATLAS).exists():
                (self.folder / NEW_ATLAS).replace(self.folder / ATLAS)
        if self._config is not None:
            atomic_write(self.folder / CONFIG, self._config.encode())
        atomic_write(self.folder / RESOLVED, json.dumps(self._resolved, indent=1).encode())

    def open(self, checkpoint: Checkpoint | None) -> None:
        """Open the records, and cut off lines after the checkpoint: they will be written again."""
        for name in RECORDS:
            path = self.folder / name
            size = checkpoint.records.get(name, 0) if checkpoint else 0
            try:
                if path.exists() and path.stat().st_size < size:
                    raise RunFolderError(
                        f"{path} is shorter than its checkpoint records, so it was altered. Start the run again.",
                        code="file-altered",
                        path=str(path),
                    )
                file = path.open("ab")
                file.truncate(size)
                file.seek(size)
            except OSError as error:
                if isinstance(error, RunFolderError):
                    raise
                raise RunFolderError(
                    f"cannot write {path}: {error.strerror}.", code="file-unwritable", path=str(path)
                ) from error
            self._files[name] = file

    def write(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines to one of the records."""
        text = "".join([f"{_encode(line)}\n" for line in lines])
        try:
            self._files[name].write(text.encode())
            self._files[name].flush()  # for readers of a running run; only a checkpoint makes lines durable
        except OSError as error:
            raise self._write_failed(name, error) from error

    def save(self, state: Any, clients: Mapping[int, Any], changed: set[int]) -> None:
        """Write a checkpoint that covers the records written so far."""
        self.flush()
        sizes = {name: file.tell() for name, file in self._files.items()}
        self.checkpoints.save(state, clients, changed, sizes)

    def flush(self) -> None:
        """Hand the records to the system."""
        for name, file in self._files.items():
            try:
                file.flush()
                os.fsync(file.fileno())
            except OSError as error:
                raise self._write_failed(name, error) from error

    def close(self) -> None:
        """Close the records; a full disk was reported when a line was written."""
        for file in self._files.values():
            try:
                file.close()
            except OSError:
                continue
        self._files = {}
        if self._lock is not None:
            self._lock.close()

    def _clear(self) -> None:
        stale = (*RECORDS, "portraits.npz", ADAPTED, "report.html")
        for path in [*(self.folder / name for name in stale), *self.checkpoints.folder.iterdir()]:
            path.unlink(missing_ok=True)

    def _write_failed(self, name: str, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"cannot write {self.folder / name}: {error.strerror}. The last checkpoint is intact: "
            "make space, then resume.",
            code="file-unwritable",
            path=str(self.folder / name),
        )


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Return whether a folder holds a run, and raise an error if a run may not be written there."""
    if resume and overwrite:
        raise UsageError(
            "--resume goes on with the run in the folder, --overwrite replaces it: give one of the two.",
            code="resume-and-overwrite",
        )
    taken = (folder / RESOLVED).exists()
    if taken and not resume and not overwrite:
        raise RunFolderError(
            f"{folder} already holds a run. Resume it (--resume), replace it (--overwrite) or use another folder.",
            code="folder-taken",
            path=str(folder),
        )
    if folder.is_dir() and not taken and any(not _is_ours(path.name) for path in folder.iterdir()):
        raise RunFolderError(
            f"{folder} is not empty and holds no run; choose another folder.", code="folder-not-empty", path=str(folder)
        )
    return taken


def check_rounds(played: int, asked: int, folder: Path) -> None:
    """Raise RunFolderError if a run would be resumed to fewer rounds than it has."""
    if asked < played:
        raise RunFolderError(
            f"{folder} already has {played} rounds, and {asked} were asked for. Ask for more to go on, or use another "
            "folder for fewer.",
            code="rounds-played",
            path=str(folder),
            played=played,
            asked=asked,
        )


def _is_ours(name: str) -> bool:
    """Return whether a run that was killed at its start could have left this file."""
    return name in (*RECORDS, CONFIG, ATLAS, LOCK, "checkpoints") or name.endswith(".partial")


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    names = ("fedatlas", "torch", "numpy", "scipy", "scikit-learn", "safetensors")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names if _installed(name)}}


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Raise RunFolderError if the settings differ; those of the machine and the number of rounds may."""
    free: set[tuple[str, ...]] = {
        ("machine",),
        ("versions",),
        ("training", "memory_limit"),
        ("federation", "origin"),  # older versions do not write it, or less of it; the partition's line says the same
    }
    optimizer = now["algorithm"]["optimizer"]
    while "base" in optimizer:
        optimizer = optimizer["base"]
    if optimizer.get("schedule", "constant") == "constant":
        free.add(("training", "rounds"))
    differing = [path for path in differences(before, now) if not any(path[: len(own)] == own for own in free)]
    engines = {tree.get("machine", {}).get("engine", "loop") for tree in (before, now)}
    if len(engines) > 1 and not all(map(gives_same_bits, engines)):
        differing.append(("machine", "engine"))
    if differing:
        shown = "; ".join(describe(before, now, differing)[:3])
        raise RunFolderError(
            f"{folder} was made with other settings ({shown}). Resume with the same ones, or choose another folder.",
            code="settings-differ",
            path=str(folder),
        )


def machine(device: torch.device, workers: int, engine: str) -> dict[str, Any]:
    """Return a description of the machine."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {"device": str(device), "name": name, "workers": workers, "engine": engine, "cores": os.cpu_count()}
