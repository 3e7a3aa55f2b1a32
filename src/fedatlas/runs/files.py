"""Files that are written completely or not at all. Nothing here needs torch, so that a command answers soon."""

import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fedatlas.data.memory import AS_OBJECTS, physical_memory
from fedatlas.errors import RunFolderError

TEXTS = (".json", ".jsonl", ".toml")
"""Endings of files that become objects when they are read."""


@dataclass(frozen=True)
class Entry:
    """A file of tensors with its expected size and checksum."""

    file: str
    bytes: int
    sha256: str


class Disk:
    """The system's calls that change a run's files, in one place: a test lets one of them fail."""

    def write(self, file: IO[bytes], content: bytes) -> None:
        """Hand content to the system."""
        file.write(content)
        file.flush()

    def sync(self, file: IO[bytes]) -> None:
        """Wait until a file is on the disk."""
        os.fsync(file.fileno())

    def replace(self, old: Path, new: Path) -> None:
        """Give a file the name of another, in one step."""
        old.replace(new)


disk = Disk()


def atomic_write(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file completely or not at all; without ``durable``, a crash of the machine may still lose it."""
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            disk.write(file, content)
            if durable:
                disk.sync(file)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> RunFolderError:
    """Return the error for a file that cannot be written."""
    return RunFolderError(
        f"cannot write {path}: {error.strerror or error}. What was there before is intact, the last checkpoint too: "
        "make space or make the folder writable, then resume.",
        code="file-unwritable",
        path=str(path),
    )


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield the name of a file to write, which then takes the place of ``path``; if writing fails, nothing changes.

    With ``shared``, several processes may write the same file at the same time.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial" if shared else f".{path.name}.partial")
    with suppress(OSError):
        partial.unlink()  # it may be a link that was put there, and lead to another file
    try:
        yield partial
        disk.replace(partial, path)
    except BaseException:
        with suppress(OSError):  # on a file system that became read-only it stays
            partial.unlink()
        raise


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file or folder of that name in a folder; raise RunFolderError if the name leads elsewhere.

    Names that come from a file or a message go through here: ``..``, an absolute path or a link may lead anywhere.
    """
    path = folder / name
    if name in ("", ".", "..") or not {"/", "\\", "\0"}.isdisjoint(name) or path.is_symlink():
        raise RunFolderError(
            f"{name!r} is not the name of a file in {folder}: it leads elsewhere. Whoever wrote it may mean harm; use "
            "nothing of it.",
            code="path-outside",
            path=str(folder),
            got=name,
        )
    return path


def check_plain(*folders: Path) -> None:
    """Raise RunFolderError if a run's folder holds a link, a pipe or a device, which lead elsewhere, or a huge file."""
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda one: one.name)
            odd = [one.name for one in found if not _is_plain(one)]
            large = [one.name for one in found if one.name not in odd and _is_huge(one)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise RunFolderError(
                f"cannot read {folder}: {error.strerror}.", code="file-unreadable", path=str(folder)
            ) from error
        if odd:
            raise RunFolderError(
                f"{folder / odd[0]} is a link, a pipe or a device: it leads out of the run's folder. Whoever made the "
                "folder may mean harm. If you made it, put the file itself there.",
                code="path-outside",
                path=str(folder),
                got=odd[0],
            )
        if large:
            raise RunFolderError(
                f"{folder / large[0]} is larger than the memory of this machine can hold. No run makes such a file "
                "here; if this one did, open it on the machine where it was made.",
                code="out-of-memory",
                path=str(folder / large[0]),
            )


def _is_huge(entry: os.DirEntry[str]) -> bool:
    times = AS_OBJECTS if entry.name.endswith(TEXTS) else 1
    return entry.is_file(follow_symlinks=False) and entry.stat().st_size * times > physical_memory()


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


def check_private(path: Path) -> None:
    """Raise RunFolderError if every user of this machine can write a file, or replace it in its folder."""
    for one in (path, path.absolute().parent):
        try:
            mode = one.stat().st_mode
        except OSError:
            continue  # whoever opens it says what is wrong
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise RunFolderError(
                f"{one} can be written by every user of this machine, so {path.name} cannot be trusted. Run "
                f"chmod o-w {one}",
                code="file-unsafe",
                path=str(one),
            )


def private_folder(folder: Path) -> None:
    """Make a folder that only this user can enter; raise RunFolderError if others can write to the one that exists."""
    try:
        for one in reversed([folder, *folder.parents]):
            if not one.exists():
                one.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise unwritable(folder, error) from error
    if sys.platform == "win32":
        return
    if found.st_mode & stat.S_IWOTH or found.st_uid not in (os.getuid(), 0):
        raise RunFolderError(
            f"{folder} can be written by other users of this machine (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):o}), so nothing in it can be trusted. Run chown {os.getuid()} {folder} and "
            f"chmod 700 {folder}, or use another folder.",
            code="file-unsafe",
            path=str(folder),
        )


def damaged(path: Path, why: str) -> RunFolderError:
    """Return the error for a file that cannot be used."""
    return RunFolderError(
        f"checkpoint {path} cannot be used: {why}. Restore it from a copy, or start the run again with --overwrite.",
        code="checkpoint-damaged",
        path=str(path),
    )


def digest(content: bytes) -> str:
    """Return a checksum."""
    return hashlib.sha256(content).hexdigest()
