"""Reading the pictures and masks of a folder: what each file gives, and whether files go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.images import depth, opened, read_image
from fedatlas.errors import DataError

MASKS_TASK = "segmentation"
IMAGES, MASKS = "images", "masks"
"""The folders of pictures and of their masks."""
NEAREST = 0
"""Pillow's number of it."""
Found = list[tuple[str, str, Path]]
"""Pictures: outer folder, inner folder, file."""


@dataclass(frozen=True)
class Pictures:
    """Reads pictures as ``read_image`` does."""

    size: tuple[int, int] | None
    """Height and width; None is that of the first picture."""

    def settings(self) -> Sequence[Any]:
        """Return the kind of array, and the size that is asked for."""
        return ["pictures", self.size]

    def form(self, file: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return (3, height, width) of bytes, or (1, height, width) of float32 for deep pictures."""
        with opened(file) as picture:
            sides, deep = self.size or (picture.height, picture.width), depth(picture)
        return ((3, *sides), np.dtype(np.uint8)) if deep == "8 bits" else ((1, *sides), np.dtype(np.float32))

    def check(self, files: Sequence[Path]) -> None:
        """Raise DataError if pictures are of different sizes or depths; only their first bytes are read."""
        first: tuple[tuple[int, int], str] | None = None
        for file in files:
            with opened(file) as picture:
                own = (picture.width, picture.height), depth(picture)
            first = first or own
            if self.size is None and own[0] != first[0]:
                raise DataError(
                    f"{file}: this picture is {own[0][0]}x{own[0][1]}, {files[0]} is {first[0][0]}x{first[0][1]}. Give "
                    "size= (in a config, data.size) to resize all of them.",
                    code="pictures-differ",
                    path=str(file),
                )
            if own[1] != first[1]:
                raise DataError(
                    f"{file}: this picture has {own[1]} a pixel, {files[0]} has {first[1]}. Give all the same depth.",
                    code="pictures-differ",
                    path=str(file),
                )

    def read(self, file: Path) -> NDArray[Any]:
        """Return one picture."""
        return read_image(file, self.size)


@dataclass(frozen=True)
class Masks:
    """Reads masks: the numbers of the pixels, without any change of colour."""

    size: tuple[int, int] | None

    def settings(self) -> Sequence[Any]:
        """Return the kind of array, and the size that is asked for."""
        return ["masks", self.size]

    def form(self, file: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return (height, width) of bytes."""
        with opened(file) as picture:
            return self.size or (picture.height, picture.width), np.dtype(np.uint8)

    def check(self, files: Sequence[Path]) -> None:
        """Raise DataError if masks have colours, or are of different sizes."""
        for file in files:
            with opened(file) as picture:
                mode = picture.mode
            if mode not in ("L", "P", "1"):
                raise DataError(
                    f"{file}: a mask must have one number a pixel, its class; this one has the mode {mode}. Write it "
                    "grey or with a palette, of 8 bits.",
                    code="content-unfit",
                    path=str(file),
                    got=mode,
                )
        Pictures(self.size).check(files)

    def read(self, file: Path) -> NDArray[Any]:
        """Return one mask; where it is resized, each pixel takes the nearest one's class."""
        with opened(file) as picture:
            if self.size is not None and (picture.height, picture.width) != self.size:
                picture = picture.resize((self.size[1], self.size[0]), NEAREST)
            return np.asarray(picture).astype(np.uint8)


def paired(folder: Path, found: Found) -> tuple[Found, list[Path]]:
    """Return the pictures, and for each the mask of the same name in the folder beside it."""
    strange = next((file for _, inner, file in found if inner not in (IMAGES, MASKS)), None)
    if strange is not None:
        raise DataError(
            f"{folder}: in segmentation pictures are in {IMAGES}/ and {MASKS}/, or in DOMAIN/{IMAGES}/ and "
            f"DOMAIN/{MASKS}/; found {strange}.",
            code="content-unfit",
            path=str(folder),
        )
    masks = {(outer, file.stem): file for outer, inner, file in found if inner == MASKS}
    pictures = [one for one in found if one[1] == IMAGES]
    bare = next((file for outer, _, file in pictures if (outer, file.stem) not in masks), None)
    if bare is not None or len(masks) != len(pictures):
        lone = bare or next(file for key, file in masks.items() if key not in {(o, f.stem) for o, _, f in pictures})
        other = MASKS if bare is not None else IMAGES
        raise DataError(
            f"{lone}: there is no file of this name in {lone.parent.parent / other}. Add it, or remove this one.",
            code="file-missing",
            path=str(lone),
        )
    return pictures, [masks[outer, file.stem] for outer, _, file in pictures]
