"""Writing a run's folder, and the checks before that."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fedatlas.engines.engine import gives_same_bits
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.runs.files import check_plain, disk, unwritable
from fedatlas.runs.lock import LOCK, lock_folder
from fedatlas.runs.manifest import CHECKPOINTS, MANIFEST, Claim, Manifest, altered, announce, claim_of, read_manifest
from fedatlas.runs.older_settings import as_written_today
from fedatlas.runs.run import ADAPTED, ATLAS, CHECK, CONFIG, NEW_ATLAS, RECORDS
from fedatlas.runs.schema import RESOLVED, read_settings
from fedatlas.runs.settings_diff import describe, differences

MOST_SPREAD = 10_000
"""Clients up to which settings are written over several lines, for people to read."""
STALE = (*RECORDS, "portraits.npz", "introductions.safetensors", "before.json", ADAPTED, CHECK, "report.html")
"""What a run leaves beside its settings, and a run in its place does not need."""
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


class _Record:
    """A file that only grows, with the checksum of what it holds so far."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Cut off lines after the checkpoint: they will be written again."""
        self._running = manifest.check_record(path.name, path)
        self._size = manifest.records.get(path.name, Claim(0, None)).bytes
        self.path = path
        try:
            self.file = path.open("ab")
            self.file.truncate(self._size)
        except OSError as error:
            raise unwritable(path, error) from error

    def write(self, content: bytes) -> None:
        """Add to the record."""
        try:
            disk.write(self.file, content)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self._running.update(content)
        self._size += len(content)

    def claim(self) -> Claim:
        """Return the claim of all that was written."""
        return Claim(self._size, self._running.hexdigest())

    def sync(self) -> None:
        """Wait until the record is on the disk."""
        try:
            disk.sync(self.file)
        except OSError as error:
            raise unwritable(self.path, error) from error


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
        self.checkpoints = CheckpointStore(folder / CHECKPOINTS)
        taken = check_folder(folder, resume=resume, overwrite=overwrite)
        try:
            self.checkpoints.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"cannot make {folder}: {error.strerror}. Choose a folder you may write to.",
                code="file-unwritable",
                path=str(folder),
            ) from error
        self._lock = lock_folder(folder)
        self._resumed = taken and resume
        self._manifest = Manifest()
        self._records: dict[str, _Record] = {}
        self._resolved, self._config, self._begun = resolved, config, False
        if self._resumed:
            try:
                self._check()
            except BaseException:
                self.close()
                raise

    def _check(self) -> None:
        """Raise RunFolderError if the run cannot go on, or if a file of it was deleted or altered."""
        self._manifest = read_manifest(self.checkpoints.folder)
        check_same(read_settings(self.folder / RESOLVED, self._manifest), self._resolved, self.folder)
        check_rounds(self._manifest.round, self._resolved["training"]["rounds"], self.folder)
        self._manifest.check_files(self.folder)
        for name in RECORDS:
            self._manifest.check_record(name, self.folder / name)

    def begin(self) -> None:
        """Write the settings of the run; a run that it replaces is removed only now."""
        if self._begun:
            return
        self._begun = True
        if self._resumed and self._manifest.round == self._resolved["training"]["rounds"]:
            return  # nothing is left to do
        if not self._resumed:
            self._clear()
            if (self.folder / NEW_ATLAS).exists():
                (self.folder / NEW_ATLAS).replace(self.folder / ATLAS)
        own = {} if self._config is None else {CONFIG: self._config.encode()}
        many = len(self._resolved.get("federation", {}).get("clients", ())) > MOST_SPREAD
        text = json.dumps(self._resolved, separators=(",", ":")) if many else json.dumps(self._resolved, indent=1)
        self._announce({**own, RESOLVED: text.encode()})
        if (self.folder / ATLAS).exists():
            self.keep(ATLAS)

    def add(self, name: str, content: bytes) -> None:
        """Write a file of the run, before the first checkpoint of this process."""
        if self._manifest.files.get(name) != claim_of(content):
            self._announce({name: content})

    def keep(self, name: str) -> None:
        """Take a file that is in the folder as one of the run's."""
        files = {**self._manifest.files, name: claim_of((self.folder / name).read_bytes())}
        self._manifest = replace(self._manifest, files=files)

    def _announce(self, contents: Mapping[str, bytes]) -> None:
        self._manifest = announce(self.folder, self._manifest, contents)

    def open(self) -> None:
        """Open the records, and cut off lines after the checkpoint: they will be written again."""
        self._records = {name: _Record(self.folder / name, self._manifest) for name in RECORDS}

    def write(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add lines to one of the records; readers of a running run see them, a checkpoint makes them durable."""
        self._records[name].write("".join([f"{_encode(line)}\n" for line in lines]).encode())

    def save(self, state: Any, clients: Mapping[int, Any], changed: set[int]) -> None:
        """Write a checkpoint that covers the records written so far."""
        self.begin_save(state, clients, changed)()

    def begin_save(self, state: Any, clients: Mapping[int, Any], changed: set[int]) -> Callable[[], None]:
        """Begin a checkpoint that covers the records written so far; return the rest, which waits for the disk."""
        records = {name: record.claim() for name, record in self._records.items()}
        rest = self.checkpoints.begin(state, clients, changed, records, self._manifest.files)

        def finish() -> None:
            for record in self._records.values():
                record.sync()
            rest()

        return finish

    def close(self) -> None:
        """Close the records; a full disk was reported when a line was written."""
        for record in self._records.values():
            with suppress(OSError):
                record.file.close()
        self._records = {}
        if self._lock is not None:
            self._lock.close()

    def _clear(self) -> None:
        for path in [*(self.folder / name for name in STALE), *self.checkpoints.folder.iterdir()]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise unwritable(path, error) from error


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Return whether a folder holds a run, and raise an error if a run may not be written there."""
    if resume and overwrite:
        raise UsageError(
            "--resume goes on with the run in the folder, --overwrite replaces it: give one of the two.",
            code="resume-and-overwrite",
        )
    checkpoints = folder / CHECKPOINTS
    check_plain(folder, checkpoints)
    taken = (folder / RESOLVED).exists()
    if not taken and not overwrite and (checkpoints / MANIFEST).exists() and read_manifest(checkpoints).round:
        raise altered(folder / RESOLVED, "it is missing, and the folder holds checkpoints of a run")
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
    return name in (*STALE, CONFIG, ATLAS, LOCK, CHECKPOINTS) or name.endswith(".partial")


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
    before = as_written_today(before)
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
