"""Named tensors in files that are checked when they are read."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from fedatlas.parts.types import Memory, Tensors
from fedatlas.runs.files import Entry, atomic_write, damaged, digest, disk, unwritable

Place = Callable[[torch.Tensor], torch.Tensor]
"""Puts a tensor that was read where, and in the form in which, it is used."""
SUFFIX = ".safetensors"
_SEPARATOR = "|"


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
        self.check(entry)
        path = self.folder / entry.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise damaged(path, "it is missing or unreadable") from error
        if digest(content) != entry.sha256:
            raise damaged(path, "it was cut short or altered (its checksum differs)")
        try:
            return memory_from_bytes(content, place)
        except ValueError as error:
            raise damaged(path, f"it holds no memory of a run ({error})") from error

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
        path = self.folder / entry.file
        try:
            with path.open("rb") as file:
                disk.sync(file)
        except OSError as error:
            raise unwritable(path, error) from error

    def remove(self, name: str) -> None:
        """Remove a file that nothing needs any more; one that cannot be removed goes when the run is resumed."""
        with suppress(OSError):
            (self.folder / name).unlink()


def memory_to_bytes(memory: Memory) -> bytes:
    """Return named tensors as the content of one file."""
    # Cloned: a part may keep one tensor under two names, which the format cannot store.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in _flat(memory).items()}
    content: bytes = save_tensors(tensors)
    return content


def memory_from_bytes(content: bytes, place: Place = lambda tensor: tensor) -> Memory:
    """Return the tensors that ``memory_to_bytes`` packed, in the same order; raise ValueError for anything else."""
    try:
        return _deep(load_tensors(content), place)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


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
