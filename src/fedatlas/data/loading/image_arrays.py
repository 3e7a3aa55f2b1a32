"""Arrays that are images: of 256 shades as bytes, deeper ones as they are; channels first."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.data.dataset import check_finite
from fedatlas.errors import DataError

Array = NDArray[Any]


def are_8_bit(values: Array) -> bool:
    """Return whether values are pictures of 256 shades, or floats in [0, 1] that are some."""
    if values.ndim not in (3, 4) or values.dtype == np.uint16:
        return False
    if values.dtype == np.uint8 or not values.size:
        return True
    low, high = values.min(), values.max()
    # NaN is neither; it is an error in either form.
    if not (low >= 0 and high <= (1 if values.dtype.kind == "f" else 255)):
        return False
    return values.dtype.kind != "f" or _are_shades(values)


def _are_shades(values: Array) -> bool:
    """Return whether floats are k / 255 of whole k but for rounding, as torchvision makes them; so bytes lose nothing.

    >>> _are_shades(np.float32([0, 1 / 255, 1])), _are_shades(np.float32([0.3, 0.5]))
    (True, False)
    """
    least = 4 * 255 * float(np.finfo(values.dtype).eps)
    return all(
        bool((np.abs(shades - np.round(shades)) <= least).all())
        for part in np.array_split(values, max(1, values.size // (1 << 22)))
        for shades in [part * 255]
    )


def are_deep_images(values: Array) -> bool:
    """Return whether values are pictures of more than 256 shades: of 16 bits, or floats in [0, 1] with channels."""
    if values.dtype == np.uint16:
        return values.ndim in (3, 4)
    floats = values.ndim == 4 and values.dtype.kind == "f" and values.size > 0
    return bool(floats and values.min() >= 0 and values.max() <= 1)


def as_they_are(values: Array) -> Tensor:
    """Return an array as float32: 16-bit images in [0, 1] (x / 65535), as 8-bit ones are later, others unchanged."""
    return float32(values / np.float32(65535) if values.dtype == np.uint16 else values)


def float32(values: Array) -> Tensor:
    """Return floats of 32 bits; those too large become infinite, which is an error later."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def as_bytes(name: str, values: Array) -> Tensor:
    """Return images as uint8 (N, channels, height, width); floats in [0, 1] are rounded to 256 shades."""
    if values.dtype != np.uint8:
        scale = 1 if values.dtype.kind == "f" else 255
        low, high = (values.min(), values.max()) if values.size else (0, 0)
        # Written so that NaN fails too.
        if not (low >= 0 and high <= scale):
            check_finite(name, float32(values))
            raise DataError(
                f"{name}: images of {values.dtype} must be in [0, {scale}], got {low} to {high}. "
                "Undo the normalisation and give mean= and std= instead, or clip.",
                code="out-of-range",
                got=low,
                what="images",
                most=high,
            )
        values = np.round(values * (255 / scale)).astype(np.uint8)
    if not _channel_axes(values):
        raise DataError(
            f"{name}: images of shape {values.shape} have no axis of 1 to 4 channels, first or last.",
            code="wrong-shape",
            what="images",
            shape=values.shape,
        )
    return torch.from_numpy(np.ascontiguousarray(channels_first(values)))


def _channel_axes(values: Array) -> list[int]:
    """Return the axes of images that may be their channels, the likeliest first; 1 where there is none yet."""
    if values.ndim == 3:
        return [1]
    # Small images can be read both ways: 1 or 3 channels are likelier than 2 or 4, and first is the usual place.
    return [axis for counts in ((1, 3), (2, 4)) for axis in (1, 3) if values.shape[axis] in counts]


def channels_first(values: Array) -> Array:
    """Return images as (N, channels, height, width); those without an axis of few channels stay as they are."""
    if values.ndim == 3:
        return values[:, None]
    return np.moveaxis(values, next(iter(_channel_axes(values)), 1), 1)
