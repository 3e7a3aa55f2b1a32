"""Folders of images as data sets."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.dataset import Dataset, first_few
from fedatlas.data.images import read_image
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.errors import DataError, UsageError

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
SPLIT_NAMES = {"train", "training", "test", "testing", "val", "valid", "validation"}


def from_image_folder(
    path: str | Path, *, size: int | tuple[int, int] | None = None, name: str | None = None
) -> Dataset:
    """Return a Dataset from pictures in ``path/class/`` or ``path/domain/class/``.

    ``size`` (one number, or height and width) resizes them; without it all must be of one size. Grey pictures are read
    as colour. If the outer folders are ``train`` and ``test``, they are the official split and not domains.
    """
    shape = _size(size)
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder. Give a folder of class folders with pictures.",
            code="file-missing",
            path=str(folder),
        )
    files = [("", inner.name, file) for inner in _folders(folder) for file in _pictures(inner)]
    nested = [
        (outer.name, inner.name, file)
        for outer in _folders(folder)
        for inner in _folders(outer)
        for file in _pictures(inner)
    ]
    if files and nested:
        raise DataError(
            f"{folder}: pictures are both in {files[0][2].parent} and in {nested[0][2].parent}. "
            "Use either path/class/picture or path/domain/class/picture.",
            code="content-unfit",
            path=str(folder),
        )
    found = files or nested
    if not found:
        stray = next((file for file in sorted(folder.rglob("*")) if file.suffix.lower() in PICTURE_ENDINGS), None)
        raise DataError(
            f"{folder}: no pictures ({', '.join(PICTURE_ENDINGS)}) in path/class/ or path/domain/class/"
            f"{'' if stray is None else f', but e.g. {stray}'}. Put each into a folder of its class.",
            code="data-empty",
            path=str(folder),
        )
    outer_names = [outer for outer, _, _ in found]
    is_split = _is_split(folder, set(outer_names))
    full = {file.parent for _, _, file in found}
    _warn_empty(folder, full, deep=bool(nested))
    _warn_others(folder, full)
    return from_arrays(
        _read_all([file for _, _, file in found], shape),
        [inner for _, inner, _ in found],
        name=name or folder.resolve().name,
        domain=outer_names if nested and not is_split else None,
        is_test=[outer == "test" for outer in outer_names] if is_split else None,
    )


def _read_all(files: Sequence[Path], shape: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Return pictures of one size as one array."""
    first = read_image(files[0], shape)
    images = np.empty((len(files), *first.shape), np.uint8)
    for i, file in enumerate(files):
        pixels = read_image(file, shape)
        if pixels.shape != first.shape:
            raise DataError(
                f"{file}: this picture is {pixels.shape[1]}x{pixels.shape[0]}, {files[0]} is "
                f"{first.shape[1]}x{first.shape[0]}. Give size= (in a config, data.size) to resize all of them.",
                code="pictures-differ",
                path=str(file),
            )
        images[i] = pixels
    return images


def _size(size: Any) -> tuple[int, int] | None:
    """Return height and width, or refuse what is neither one whole number nor two."""
    if size is None:
        return None
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(type(side) is int and side >= 1 for side in sides):
        raise UsageError(
            f"size must be a whole number of at least 1, or two: height and width; got {size!r}.",
            code="out-of-range",
            got=size,
            setting="size",
        )
    return sides[0], sides[1]


def _is_split(folder: Path, outer: set[str]) -> bool:
    """Return whether the outer folders are the official split; refuse those that only look like one."""
    if outer == {"train", "test"}:
        return True
    if len(outer) > 1 and {name.lower() for name in outer} <= SPLIT_NAMES:
        raise DataError(
            f"{folder}: the folders {', '.join(sorted(outer))} look like a split, not like domains. "
            "Keep two, named train and test.",
            code="split-unfit",
            path=str(folder),
            got=sorted(outer),
        )
    return False


def _warn_empty(folder: Path, full: set[Path], deep: bool) -> None:
    """Warn of class folders without pictures."""
    inner = [inner for outer in _folders(folder) for inner in _folders(outer)] if deep else _folders(folder)
    empty = [str(one.relative_to(folder)) for one in inner if one not in full]
    if empty:
        warnings.warn(
            f"{folder}: {len(empty)} folders hold no pictures ({', '.join(PICTURE_ENDINGS)}) and are left out: "
            f"{first_few(empty)}.",
            stacklevel=3,
        )


def _warn_others(folder: Path, full: set[Path]) -> None:
    """Warn of files that do not have the ending of a picture; hidden files are ignored."""
    others = Counter(
        file.suffix.lower() or "without an ending"
        for inner in full
        for file in inner.iterdir()
        if file.suffix.lower() not in PICTURE_ENDINGS and not file.name.startswith(".") and file.is_file()
    )
    if others:
        counts = sorted(others.items(), key=lambda found: (-found[1], found[0]))
        listed = first_few([f"{count:,} {ending}" for ending, count in counts])
        warnings.warn(
            f"{folder}: left out {others.total():,} {'file' if others.total() == 1 else 'files'} beside the pictures: "
            f"{listed}. Pictures are {', '.join(PICTURE_ENDINGS)}.",
            stacklevel=3,
        )


def _folders(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def _pictures(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.suffix.lower() in PICTURE_ENDINGS and not f.name.startswith("."))
