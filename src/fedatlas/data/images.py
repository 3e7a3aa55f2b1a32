"""Pictures as arrays: reading files, decoding packed WebP, changing size, grey to colour."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Bytes = NDArray[np.uint8]


def decode_images(blob: Bytes, offset: NDArray[np.int64], where: str) -> Bytes:
    """Return the pictures that lie one after another in ``blob``, picture i in ``blob[offset[i]:offset[i + 1]]``."""
    from PIL import Image, UnidentifiedImageError

    raw = blob.tobytes()
    images: Bytes | None = None
    for i, (start, stop) in enumerate(pairwise(offset.tolist())):
        try:
            with Image.open(io.BytesIO(raw[start:stop])) as picture:
                pixels = np.asarray(picture.convert("RGB"))
        except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as reason:
            raise DataError(
                f"{where}: picture {i} cannot be decoded ({reason}). Write the file again.",
                code="file-unreadable",
                picture=i,
            ) from reason
        if images is None:
            images = np.empty((len(offset) - 1, *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            raise DataError(
                f"{where}: picture {i} is {pixels.shape[1]}x{pixels.shape[0]}, the first is "
                f"{images.shape[2]}x{images.shape[1]}. Resize them to one size before packing.",
                code="pictures-differ",
                picture=i,
            )
        images[i] = pixels
    if images is None:
        raise DataError(f"{where}: there are no pictures in it.", code="data-empty", what="pictures")
    return images


@contextmanager
def opened(path: Path) -> Iterator[Image]:
    """Open a picture file; its pixels are read when they are asked for. Raise DataError if it cannot be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            yield picture
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as reason:
        raise DataError(
            f"{path}: this picture cannot be read ({reason}). Repair or remove it.",
            code="file-unreadable",
            path=str(path),
        ) from reason


def depth(picture: Image) -> str:
    """Return what a picture's pixels are: ``8 bits``, ``16 bits`` or ``fractions``; nothing is decoded for it."""
    return "fractions" if picture.mode == "F" else "16 bits" if picture.mode.startswith("I") else "8 bits"


def read_image(path: Path, size: tuple[int, int] | None = None) -> NDArray[Any]:
    """Return one picture file, resized (height, width) if ``size`` is given.

    One of 8 bits becomes colours, uint8 (3, height, width). Deeper ones become float32 (1, height, width): of 16 bits
    x / 65535, fractions as they are.
    """
    with opened(path) as picture:
        deep = depth(picture)
        pixels = picture.convert("RGB") if deep == "8 bits" else _shades(picture)
        if size is not None and (pixels.height, pixels.width) != size:
            pixels = pixels.resize((size[1], size[0]), _BILINEAR)
    if deep == "8 bits":
        return np.moveaxis(np.asarray(pixels), 2, 0)
    values = np.asarray(pixels, np.float32)[None]
    return values / np.float32(0xFFFF) if deep == "16 bits" else values


_BILINEAR = 2
"""Pillow's number of it."""


def _shades(picture: Image) -> Image:
    """Return a deep picture in one channel of floats, which hold 16 bits exactly."""
    from PIL.Image import fromarray

    values = np.asarray(picture)
    if depth(picture) == "16 bits" and (values.min() < 0 or values.max() > 0xFFFF):
        raise OSError(f"it holds numbers from {values.min()} to {values.max()}; write it with 16 bits or as fractions")
    return fromarray(values.astype(np.float32))


def resize_images(images: Tensor, size: int) -> Tensor:
    """Return uint8 images (N, channels, height, width) as squares of ``size``, bilinear."""
    if images.shape[2:] == (size, size):
        return images
    shrinks = max(images.shape[2:]) > size
    parts = [
        F.interpolate(part.float(), size=(size, size), mode="bilinear", align_corners=False, antialias=shrinks)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        for part in torch.split(images, 1024)
    ]
    return torch.cat(parts)


def in_colour(images: Tensor) -> Tensor:
    """Return uint8 images with three channels; grey ones are repeated."""
    return images.repeat(1, 3, 1, 1) if images.shape[1] == 1 else images
