"""Folders of images as data sets."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.data.dataset import Dataset, first_few
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.data.loading.picture_cache import cached_pictures
from fedatlas.data.loading.pictures import MASKS_TASK, Masks, Pictures, paired
from fedatlas.data.task import CLASSIFICATION, find_task
from fedatlas.errors import DataError, UsageError

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
SPLIT_NAMES = {"train", "training", "test", "testing", "val", "valid", "validation"}


def from_image_folder(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    name: str | None = None,
    task: str = CLASSIFICATION.name,
) -> Dataset:
    """Return a Dataset from pictures in ``path/class/`` or ``path/domain/class/``.

    ``size`` (one number, or height and width) resizes them; without it all must be of one size. Grey pictures of 8 bits
    are read as colour; those of 16 bits or of fractions become float32 arrays of one channel. If the outer folders are
    ``train`` and ``test``, they are the official split and not domains.

    With ``task="segmentation"`` the inner folders are ``images`` and ``masks``: for each picture a mask of the same
    name, whose pixels are the numbers of classes.

    Pictures are read once, into a cache. Those of more than 1 GiB stay there, and are read as they are needed.
    """
    shape, aim = _size(size), find_task(task)
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder. Give a folder of class folders with pictures.",
            code="file-missing",
            path=str(folder),
        )
    if not (aim.has_classes or aim.name == MASKS_TASK):
        raise UsageError(
            f"{folder}: a folder of pictures says the class of each, or has masks; the targets of {aim.name} need "
            "from_arrays, or an npz file.",
            code="task-unfit",
            got=aim.name,
        )
    found = _find_pictures(folder)
    nested = any(outer for outer, _, _ in found)
    is_split = _is_split(folder, {outer for outer, _, _ in found})
    full = {file.parent for _, _, file in found}
    _warn_empty(folder, full, deep=nested)
    _warn_others(folder, full)
    masks = None
    if not aim.has_classes:
        found, masks = paired(folder, found)
    outer_names = [outer for outer, _, _ in found]
    pictures = cached_pictures(folder, [file for _, _, file in found], Pictures(shape))
    targets: Any = [inner for _, inner, _ in found]
    if masks is not None:
        targets = cached_pictures(folder, masks, Masks(shape))
    return from_arrays(
        pictures,
        targets,
        name=name or folder.resolve().name,
        kind="image" if pictures.dtype == np.uint8 else "array",
        task=task,
        domain=outer_names if nested and not is_split else None,
        is_test=[outer == "test" for outer in outer_names] if is_split else None,
    )


def picture_files(path: str | Path, *, task: str = CLASSIFICATION.name) -> list[Path]:
    """Return the file of each example of a folder, in the order of the examples."""
    folder = Path(path).expanduser()
    found = _find_pictures(folder)
    return [file for _, _, file in (found if find_task(task).has_classes else paired(folder, found)[0])]


def _find_pictures(folder: Path) -> list[tuple[str, str, Path]]:
    """Return outer folder, inner folder and file of each picture; where there are no outer folders, that is empty."""
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
    if not files and not nested:
        stray = next((file for file in sorted(folder.rglob("*")) if file.suffix.lower() in PICTURE_ENDINGS), None)
        raise DataError(
            f"{folder}: no pictures ({', '.join(PICTURE_ENDINGS)}) in path/class/ or path/domain/class/"
            f"{'' if stray is None else f', but e.g. {stray}'}. Put each into a folder of its class.",
            code="data-empty",
            path=str(folder),
        )
    return files or nested


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
