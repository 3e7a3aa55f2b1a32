"""The pictures of a folder as one array on the disk, so that they are decoded once.

The array is found by the folder, the settings of reading, and every file's name, size and time of change. More than
``IN_MEMORY`` bytes stay on the disk, and are read where they are needed. The bits are the same either way.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.cache import CACHE_VARIABLE, cache_folder
from fedatlas.data.loading.npz import npy_header
from fedatlas.data.loading.watching import watched
from fedatlas.errors import DataError

Array = NDArray[Any]
IN_MEMORY = 1 << 30
"""The most bytes of pictures that are held in memory: 1 GiB."""


class Reader(Protocol):
    """Makes an array of a file."""

    def settings(self) -> Sequence[Any]:
        """Return plain values: all that the arrays depend on beside the files."""
        ...

    def form(self, file: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and type of the array that the first file gives."""
        ...

    def check(self, files: Sequence[Path]) -> None:
        """Raise an error if files do not go together, before any is read whole."""
        ...

    def read(self, file: Path) -> Array:
        """Return the array of a file."""
        ...


def cached_pictures(folder: Path, files: Sequence[Path], reader: Reader) -> Array:
    """Return the pictures as one array: from the cache, or read now and put there."""
    form, settings = reader.form(files[0]), reader.settings()
    shape, dtype = (len(files), *form[0]), form[1]
    cache = _cache_file(folder, files, [*settings, list(shape), dtype.str])
    found = _open(cache, shape, dtype)
    if found is not None:
        return found
    reader.check(files)
    decoded = (reader.read(file) for file in watched(files, f"reading {folder.name}"))
    if math.prod(shape) * dtype.itemsize > IN_MEMORY:
        _keep_all(cache, decoded, shape, dtype)
        found = _open(cache, shape, dtype)
        assert found is not None
        return found
    pictures = np.empty(shape, dtype)
    for i, picture in enumerate(decoded):
        pictures[i] = picture
    try:
        _write(cache, iter([pictures]), shape, dtype)
    except OSError as reason:
        warnings.warn(
            f"{folder}: the pictures could not be kept in {cache.parent} ({reason.strerror or reason}), and will be "
            f"read again next time. Set {CACHE_VARIABLE} to a folder that can be written.",
            stacklevel=4,
        )
    return pictures


def _cache_file(folder: Path, files: Sequence[Path], settings: Sequence[Any]) -> Path:
    """Return the file of an array: named by its folder and settings, then by the state of the files."""
    place = _hash([str(folder.resolve()), *settings[:-2]])
    states = ((file, file.stat()) for file in files)
    state = _hash([settings, [(str(f.relative_to(folder)), s.st_size, s.st_mtime_ns) for f, s in states]])
    return cache_folder() / "pictures" / f"{place}-{state}.npy"


def _hash(words: Sequence[Any]) -> str:
    return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


def _open(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """Return the array of a file, beyond ``IN_MEMORY`` as a map of it; None if it is not what it should be."""
    try:
        with file.open("rb") as content:
            stated = npy_header(content)
            begins = content.tell()
        size = math.prod(shape) * dtype.itemsize
        if stated != (shape, dtype) or file.stat().st_size != begins + size:
            return None
        # Copied on write: whoever changes the array changes no file.
        mapped: Array = np.memmap(file, dtype, "c", begins, shape)
        return mapped if size > IN_MEMORY else np.array(mapped)
    except (OSError, ValueError, EOFError, SyntaxError, TypeError):
        return None


def _keep_all(file: Path, pictures: Iterator[Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    try:
        _write(file, pictures, shape, dtype)
    except OSError as reason:
        size = math.prod(shape) * dtype.itemsize
        raise DataError(
            f"{shape[0]:,} pictures take {size:,} bytes. More than {IN_MEMORY:,} stay on the disk, and {file.parent} "
            f"cannot hold them ({reason.strerror or reason}). Set {CACHE_VARIABLE} to a folder with that much room, or "
            "size= (in a config, data.size) for smaller pictures.",
            code="out-of-memory",
            path=str(file.parent),
            got=size,
            most=IN_MEMORY,
        ) from reason


def _write(file: Path, pictures: Iterator[Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write an npy file whole or not at all, and remove those of earlier states of the same folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(".partial", dir=file.parent)
    try:
        # Written, not mapped: on a full disk a write is an error, where a map would end the process.
        with os.fdopen(descriptor, "wb") as content:
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(content, header)
            for picture in pictures:
                content.write(np.ascontiguousarray(picture, dtype).data)
        os.replace(partial, file)
    except BaseException:
        os.unlink(partial)
        raise
    place = file.name.partition("-")[0]
    for earlier in file.parent.glob(f"{place}-*.npy"):
        if earlier != file:
            earlier.unlink(missing_ok=True)
