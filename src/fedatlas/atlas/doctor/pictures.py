"""Broken images: blank ones, and ones whose lower part was never read.

A blank image has one value in every pixel. A truncated one has a lower quarter of one colour at least, and above it a
row that is another colour nearly everywhere: things on a plain ground do not end so. Pictures with bars do, so a client
is named only where it has far more of them than others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.doctor.suspect import FALSE_ALARMS

EDGE = 0.8
"""The share of the last row that was read whose pixels have another colour than what follows."""
LEAST, SHARE = 3, 0.01
"""Blank or truncated images that are worth naming, and their share of a client's."""


class PictureFigures(NamedTuple):
    """What one client tells about its images."""

    images: int
    blank: int
    truncated: int


def describe_pictures(images: Tensor) -> PictureFigures:
    """Return one client's figures about its images, (N, channels, height, width)."""
    return PictureFigures(len(images), int(is_blank(images).sum()), int(is_truncated(images).sum()))


def is_blank(images: Tensor) -> Tensor:
    """Return which images have the same colour in every pixel."""
    return _like_the_last(images).all(2).all(1)


def is_truncated(images: Tensor) -> Tensor:
    """Return which images have a lower part of one colour under a row of others."""
    alike = _like_the_last(images)
    height = images.shape[2]
    plain = alike.all(2).flip(1).int().cumprod(1).sum(1)
    above = (height - 1 - plain).clamp(min=0)
    other = 1 - alike[torch.arange(len(images)), above].double().mean(1)
    return (plain >= max(height // 4, 1)) & (plain < height) & (other >= EDGE)


def _like_the_last(images: Tensor) -> Tensor:
    """Return (N, height, width): which pixels have the colour of the last one."""
    return (images == images[:, :, -1:, -1:]).all(1)


def broken(figures: Sequence[PictureFigures]) -> dict[int, tuple[str, int]]:
    """Return the clients with broken images, each with ``blank`` or ``truncated`` and their number."""
    found: dict[int, tuple[str, int]] = {}
    total, truncated = sum(own.images for own in figures), sum(own.truncated for own in figures)
    for i, own in enumerate(figures):
        if own.blank >= LEAST and own.blank >= SHARE * own.images:
            found[i] = ("blank", own.blank)
        elif own.truncated >= LEAST and own.truncated >= SHARE * own.images:
            rest = max(total - own.images, 1)
            usual = (truncated - own.truncated + 1) / (rest + 1)
            if _chance(own.truncated, own.images, usual) < FALSE_ALARMS / len(figures) and len(figures) > 1:
                found[i] = ("truncated", own.truncated)
    return found


def _chance(count: int, of: int, share: float) -> float:
    """Return the probability of at least ``count`` of ``of`` at this share."""
    from scipy.special import betainc  # here, as it takes longer to load than all of this package

    return float(betainc(count, of - count + 1, share))
