"""Pictures as arrays: decoding packed WebP, changing size, grey to colour."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

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
                pixels = np.asarray(_colour(picture))
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


def read_image(path: Path, size: tuple[int, int] | None = None) -> Bytes:
    """Return one picture file as (height, width, 3), resized (height, width) if ``size`` is given."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            colour = _colour(picture)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as reason:
        raise DataError(
            f"{path}: this picture cannot be read ({reason}). Repair or remove it.",
            code="file-unreadable",
            path=str(path),
        ) from reason
    if size is not None and (colour.height, colour.width) != size:
        colour = colour.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(colour)


def _colour(picture: Image) -> Image:
    """Return a picture with three channels of a byte; of 16 bits the upper eight are kept, where Pillow would clip."""
    if picture.mode == "F":
        raise OSError("it holds fractions; write it with 8 or 16 bits")
    if not picture.mode.startswith("I"):
        return picture.convert("RGB")
    values = np.asarray(picture).astype(np.int64)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise OSError(f"it holds numbers from {values.min()} to {values.max()}; write it with 8 or 16 bits")
    from PIL.Image import fromarray

    return fromarray((values >> 8).astype(np.uint8)).convert("RGB")


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
