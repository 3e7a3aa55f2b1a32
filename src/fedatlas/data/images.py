"""Pictures as arrays: decoding packed WebP, changing size, grey to colour."""

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.errors import DataError

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
        except (OSError, UnidentifiedImageError) as reason:
            raise DataError(f"{where}: picture {i} cannot be decoded ({reason}). Write the file again.") from reason
        if images is None:
            images = np.empty((len(offset) - 1, *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            raise DataError(
                f"{where}: picture {i} is {pixels.shape[1]}x{pixels.shape[0]}, the first is "
                f"{images.shape[2]}x{images.shape[1]}. Resize them to one size before packing."
            )
        images[i] = pixels
    if images is None:
        raise DataError(f"{where}: there are no pictures in it.")
    return images


def read_image(path: Path, size: tuple[int, int] | None = None) -> Bytes:
    """Return one picture file as (height, width, 3), resized (height, width) if ``size`` is given."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            mode, colour = picture.mode, picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as reason:
        raise DataError(f"{path}: this picture cannot be read ({reason}). Repair or remove it.") from reason
    if mode[0] in "IF":
        # The conversion would clip all that is above 255.
        raise DataError(f"{path}: this picture has more than 8 bits a pixel (mode {mode}). Convert it to 8 bits.")
    if size is not None and (colour.height, colour.width) != size:
        colour = colour.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(colour)


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
