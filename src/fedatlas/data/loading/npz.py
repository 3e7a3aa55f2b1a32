"""An npz file as a Dataset."""

import difflib
import lzma
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.dataset import Dataset, first_few
from fedatlas.data.images import decode_images
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.data.memory import check_fits
from fedatlas.data.task import CLASSIFICATION, find_task
from fedatlas.errors import DataError, UsageError

Array = NDArray[Any]
BESIDE = ("classes", "domain", "is_test", "mean", "owner", "std", "vocabulary")
"""Arrays that may stand beside inputs and labels."""
WHOLE, SPLIT = ("x", "y", "webp", "offset"), ("x_train", "y_train", "x_test", "y_test")


def from_npz(path: str | Path, *, name: str | None = None, task: str = CLASSIFICATION.name) -> Dataset:
    """Return a Dataset from an npz file.

    The arrays are named ``x``, ``y``; or ``x_train``, ``y_train``, ``x_test``, ``y_test``; or ``<domain>_x``,
    ``<domain>_y`` for each domain. ``classes`` names the classes, ``vocabulary`` the tokens, ``mean`` and ``std`` scale
    the images; ``domain``, ``owner`` and ``is_test`` may stand beside (with a test part: training first, then test).
    In place of pixels there may be packed WebP pictures: ``webp`` and ``offset`` for ``x``, ``<part>_webp`` and
    ``<part>_offset`` for a part. ``task`` says what ``y`` holds, as for ``from_arrays``.
    """
    find_task(task)
    file = Path(path)
    arrays = read_npz(file)
    _check_axes(file, arrays)
    parts = _parts(file, arrays)
    _check_names(file, arrays, parts)
    names = list(parts)
    extra: dict[str, Any] = {key: arrays[key] for key in ("domain", "owner", "is_test") if key in arrays}
    counts = [len(y) for _, y in parts.values()]
    if "test" in parts and set(names) <= {"train", "test"}:
        extra["is_test"] = np.repeat([part == "test" for part in names], counts)
    elif names != ["all"]:
        extra["domain"] = np.repeat(names, counts)
    shapes = {part: x.shape[1:] for part, (x, _) in parts.items()}
    if len(set(shapes.values())) > 1:
        raise DataError(
            f"{file}: all parts must be of one shape, got {shapes}. Resize them to one size.",
            code="pictures-differ",
            path=str(file),
            got=shapes,
        )
    return from_arrays(
        np.concatenate([x for x, _ in parts.values()]),
        np.concatenate([y for _, y in parts.values()]),
        name=name or file.stem,
        task=task,
        classes=[str(c) for c in arrays["classes"]] if "classes" in arrays else None,
        vocabulary=[str(token) for token in arrays.get("vocabulary", ())],
        **{key: arrays[key].astype(float).tolist() for key in ("mean", "std") if key in arrays},
        **extra,
    )


def _check_axes(file: Path, arrays: Mapping[str, Array]) -> None:
    """Raise DataError if an array that is a list has no axis, or numbers are texts."""
    for key, array in arrays.items():
        least = 0 if key not in (*BESIDE, *WHOLE, *SPLIT) and not key.endswith(("_x", "_y", "_webp", "_offset")) else 1
        beside = key in BESIDE
        wanted = "one axis" if beside else "an entry for each example"
        if array.ndim < least or (beside and array.ndim != 1):
            raise DataError(
                f"{file}: {key} has the shape {array.shape}; wanted {wanted}.",
                code="wrong-shape",
                path=str(file),
                what=key,
                shape=array.shape,
            )
        if key in ("mean", "std") and array.dtype.kind not in "uif":
            raise DataError(
                f"{file}: {key} must be numbers, one for each channel; got {array.dtype}.",
                code="wrong-type",
                path=str(file),
                what=key,
                got=str(array.dtype),
            )


def read_npz(file: Path) -> dict[str, Array]:
    """Return the arrays of an npz file, never unpickling anything."""
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file. Check the path.", code="file-missing", path=str(file))
    # Asked first: numpy would take another kind of file for a pickle, and say how to load it unsafely.
    if not zipfile.is_zipfile(file):
        raise DataError(
            f"{file}: is not an npz file, or only a part of one. Write it whole with numpy.savez, or rename it.",
            code="file-unreadable",
            path=str(file),
        )
    try:
        _check_sizes(file)
        with np.load(file, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except _BROKEN as reason:
        if isinstance(reason, DataError):
            raise
        raise DataError(
            f"{file}: cannot be read as an npz file ({reason}). Write it with numpy.savez, without objects.",
            code="file-unreadable",
            path=str(file),
        ) from reason


_BROKEN = (
    *(OSError, ValueError, EOFError, AttributeError, KeyError, MemoryError, OverflowError, RuntimeError),
    *(SyntaxError, TypeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
"""What zipfile, zlib and numpy raise where a file is broken, or made to break them."""


_COPIES = 3
"""Arrays that are read, joined and brought into their form."""


def _check_sizes(file: Path) -> None:
    """Raise an error if arrays are not as large as their headers state, or larger than the memory; none is read."""
    total = 0
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                raise ValueError(f"{member.filename!r} is not an array")
            with archive.open(member) as content:
                shape, dtype = npy_header(content)
                held = member.file_size - content.tell()
            stated = math.prod(shape) * dtype.itemsize
            if dtype.hasobject or stated != held:
                raise ValueError(f"{member.filename} states {stated:,} bytes in its header and holds {held:,}")
            # A table of small numbers becomes one of floats.
            total += math.prod(shape) * max(dtype.itemsize, np.dtype(np.float32).itemsize if len(shape) == 2 else 1)
    check_fits(file, total, times=_COPIES)


def npy_header(content: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and type that an array in a file states; what follows is not read."""
    version = np.lib.format.read_magic(content)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(content)
    return shape, dtype


def _parts(file: Path, arrays: dict[str, Array]) -> dict[str, tuple[Array, Array]]:
    """Return (x, y) of each part of an npz file: ``all``, or ``train`` and ``test``, or one for each domain."""
    keys = {"all": ("x", "webp", "offset", "y")}
    for key in arrays:
        if key in ("x_train", "x_test"):
            part = key.removeprefix("x_")
            keys[part] = (key, "", "", f"y_{part}")
        elif key.endswith(("_x", "_webp")):
            part = key.rpartition("_")[0]
            keys[part] = (f"{part}_x", f"{part}_webp", f"{part}_offset", f"{part}_y")
    parts = {}
    for part, (x, webp, offset, y) in keys.items():
        if x not in arrays and webp not in arrays:
            continue
        missing = [key for key in ((y,) if x in arrays else (y, offset)) if key not in arrays]
        if missing:
            raise DataError(
                f"{file}: holds {x if x in arrays else webp} but not {missing[0]}. Add it.",
                code="content-unfit",
                path=str(file),
                missing=missing[0],
            )
        images = arrays[x] if x in arrays else decode_images(arrays[webp], arrays[offset], f"{file}: {webp}")
        parts[part] = (images, arrays[y])
    if not parts:
        raise DataError(
            f"{file}: found {sorted(arrays)}; wanted x and y, or x_train, y_train, x_test, y_test, or <domain>_x and "
            "<domain>_y for each domain.",
            code="content-unfit",
            path=str(file),
            got=sorted(arrays),
        )
    if "all" in parts and len(parts) > 1:
        raise DataError(
            f"{file}: holds both x and {sorted(set(parts) - {'all'})}; keep one of the two forms.",
            code="content-unfit",
            path=str(file),
            got=sorted(parts),
        )
    return parts


def _check_names(file: Path, arrays: Iterable[str], parts: Iterable[str]) -> None:
    """Raise DataError if an array's name is nearly a known one, and warn of other arrays that are not read."""
    known = {*BESIDE, *WHOLE, *SPLIT, *(f"{part}_{kind}" for part in parts for kind in WHOLE)}
    missing = [name for name in (*BESIDE, *SPLIT) if name not in arrays]
    strange = [name for name in arrays if name not in known]
    for name in strange:
        # Where the right name stands there too, this one is something else, such as the domains' names.
        if near := difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.8):
            raise DataError(
                f"{file}: unknown array {name!r}. Did you mean {near[0]!r}? Rename it, or leave it out if it is "
                "something else.",
                code="content-unfit",
                path=str(file),
                got=name,
                nearest=near[0],
            )
    if strange:
        warnings.warn(
            f"{file}: left out {'an array' if len(strange) == 1 else 'arrays'} of unknown name: {first_few(strange)}. "
            f"Beside inputs and labels are read: {', '.join(BESIDE)}; owner is the client of each example.",
            stacklevel=3,
        )
