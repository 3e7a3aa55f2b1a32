"""Files that are written completely or not at all, and tensors in them that are checked when read."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from fedatlas.errors import RunFolderError
from fedatlas.parts.types import Memory, Tensors

Place = Callable[[torch.Tensor], torch.Tensor]
"""Puts a tensor that was read where, and in the form in which, it is used."""
SUFFIX = ".safetensors"
_SEPARATOR = "|"


@dataclass(frozen=True)
class Entry:
    """A file of tensors with its expected size and checksum."""

    file: str
    bytes: int
    sha256: str


def atomic_write(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file completely or not at all; without ``durable``, a crash of the machine may still lose it."""
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}. The file that was there before is intact: "
            "make space or make the folder writable, then resume.",
            code="file-unwritable",
            path=str(path),
        ) from error


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield the name of a file to write, which then takes the place of ``path``; if writing fails, nothing changes.

    With ``shared``, several processes may write the same file at the same time.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial" if shared else f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


class TensorFiles:
    """Named tensors in files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, stem: str, memory: Memory, *, durable: bool = True) -> Entry:
        """Write a file and return its entry, which ``read`` checks."""
        content = memory_to_bytes(memory)
        name = f"{stem}{SUFFIX}"
        atomic_write(self.folder / name, content, durable=durable)
        return Entry(name, len(content), digest(content))

    def read(self, entry: Entry, place: Place) -> Memory:
        """Read a file; raise RunFolderError if it was cut short or altered."""
        path = self.folder / entry.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise damaged(path, "it is missing or unreadable") from error
        if digest(content) != entry.sha256:
            raise damaged(path, "it was cut short or altered (its checksum differs)")
        return memory_from_bytes(content, place)

    def check(self, entry: Entry) -> None:
        """Raise RunFolderError if a file is missing or has another size, without reading it."""
        path = self.folder / entry.file
        try:
            size = path.stat().st_size
        except OSError as error:
            raise damaged(path, "it is missing or unreadable") from error
        if size != entry.bytes:
            raise damaged(path, f"it was cut short or altered ({size} bytes in place of {entry.bytes})")

    def settle(self, entry: Entry) -> None:
        """Wait until a file that was not written durably is on the disk."""
        with (self.folder / entry.file).open("rb") as file:
            os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        """Remove a file that nothing needs any more."""
        (self.folder / name).unlink(missing_ok=True)


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


def memory_to_bytes(memory: Memory) -> bytes:
    """Return named tensors as the content of one file."""
    # Cloned: a part may keep one tensor under two names, which the format cannot store.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in _flat(memory).items()}
    content: bytes = save_tensors(tensors)
    return content


def memory_from_bytes(content: bytes, place: Place = lambda tensor: tensor) -> Memory:
    """Return the tensors that ``memory_to_bytes`` packed, in the same order."""
    return _deep(load_tensors(content), place)


def _flat(memory: Memory) -> Tensors:
    """Number the tensors: a file sorts its names, and sums must run in the same order after a resume."""
    pairs = [(part, name, tensor) for part, tensors in memory.items() for name, tensor in tensors.items()]
    return {f"{i:06d}{_SEPARATOR}{part}{_SEPARATOR}{name}": tensor for i, (part, name, tensor) in enumerate(pairs)}


def _deep(tensors: Tensors, place: Place) -> Memory:
    memory: Memory = {}
    for key in sorted(tensors):
        _, part, name = key.split(_SEPARATOR, 2)
        memory.setdefault(part, {})[name] = place(tensors[key])
    return memory
