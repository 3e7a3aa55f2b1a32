"""An encoder without weights: fixed features of images, hashed pieces of text, codes for class names.

It separates images by their look (colours, contrast, strokes, noise, layout), not by their meaning: two classes are as
far apart as any two others. Nothing is downloaded, and an example or a name gives the same vector
anywhere (images up to rounding).
"""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.atlas.encoders.base import BatchEncoder
from fedatlas.atlas.encoders.inputs import pictures
from fedatlas.atlas.encoders.projection import WIDTH, signs, to_width
from fedatlas.atlas.encoders.registry import encoder
from fedatlas.data.dataset import Dataset

LENGTH = 10.0
"""About the length of CLIP's vectors, which decides how much DSA-IGN's reconstruction counts."""

_SIZE = 32
_ORIENTATIONS = 8
_CELLS = 4
_SCALE = 4.2
"""Makes the mean length over the embedded digits LENGTH."""
_SPLIT = (-7046029254386353131, -4417276706812531889, 1609587929392839161)
"""Odd numbers that mix the hashes of an n-gram's tokens."""


@encoder("builtin")
@dataclass(frozen=True, kw_only=True)
class Builtin(BatchEncoder):
    """Fixed features, no download: colours, edges and layout of images, hashed n-grams of text, codes for classes."""

    name: ClassVar[str] = "builtin"
    kinds: ClassVar[tuple[str, ...]] = ("image", "tokens", "features")

    cache: bool = False
    """Off: computing is as fast as reading."""

    def identity(self) -> str:
        """Return the name and the version of the features."""
        return "builtin 1"

    def embed(self, data: Dataset, inputs: Tensor) -> Tensor:
        """Return one vector of 512 entries for each input."""
        if data.kind == "image":
            return to_width(_SCALE * image_features(pictures(inputs, "encoder 'builtin'")), "builtin images")
        if data.kind == "tokens":
            count = max(len(data.vocabulary), int(inputs.max()) + 1)
            return hashed_ngrams(inputs, token_hashes(data.vocabulary, count).to(inputs.device))
        # Features have no known scale: asinh leaves small ones as they are and tames large ones.
        return to_width(inputs.asinh(), "builtin features")

    def embed_classes(self, data: Dataset) -> Tensor:
        """Return one code for each class, from its name alone; the codes of two names are almost orthogonal."""
        codes = torch.stack([signs(f"class {name}", WIDTH) for name in data.classes])
        return codes.mul(LENGTH / WIDTH**0.5)


def image_features(images: Tensor) -> Tensor:
    """Return fixed features of colour pictures in [0, 1]: where edges of each direction lie, layout, colour, texture.

    The edges are taken relative to the picture's contrast, so they depend more on the class; the rest depends more on
    the domain. The weights give both about the same spread over the embedded digits.
    """
    if images.shape[2:] != (_SIZE, _SIZE):
        images = F.interpolate(images, size=(_SIZE, _SIZE), mode="bilinear", align_corners=False, antialias=True)
    grey = (images * images.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    fine, steepness = _edges(grey)
    coarse, _ = _edges(F.avg_pool2d(grey, 2))
    off_mean = F.avg_pool2d((grey - grey.mean((2, 3), keepdim=True)).abs(), 4).flatten(1)
    detail = (grey - F.avg_pool2d(F.pad(grey, (1,) * 4, mode="replicate"), 3, 1)).abs()
    saturation = (images.amax(1) - images.amin(1)).flatten(1)
    parts = [
        2.0 * _centred(fine),
        2.0 * _centred(coarse),
        F.normalize(_centred(off_mean), dim=1),
        0.2 * (F.avg_pool2d(grey, 4).flatten(1) - 0.5),
        images.mean((2, 3)) - 0.5,
        images.std((2, 3), correction=0),
        torch.stack([saturation.mean(1), saturation.std(1, correction=0)], 1),
        _centred(_histogram(grey, 0.0, 1.0, 12)),
        _centred(_histogram((steepness + 1e-3).log10(), -3.0, -0.3, 10)),
        _centred(_histogram((detail + 1e-3).log10(), -3.0, -0.3, 10)),
    ]
    return torch.cat(parts, 1)


def _edges(grey: Tensor) -> tuple[Tensor, Tensor]:
    """Return the energy of each direction in each cell of a grid, of length 1 for each image, and the steepness."""
    padded = F.pad(grey, (1,) * 4, mode="replicate")
    across = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) / 2
    down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) / 2
    steepness = (across.square() + down.square()).sqrt()
    angles = [math.pi * i / _ORIENTATIONS for i in range(_ORIENTATIONS)]
    # steepness * cos^4 of the angle between the gradient and the direction: narrow, and the same for either polarity.
    along = torch.cat([(across * math.cos(a) + down * math.sin(a)) for a in angles], 1)
    energy = along.square().square() / (steepness**3 + 1e-6)
    cells = F.adaptive_avg_pool2d(energy, _CELLS).flatten(1).sqrt()
    return F.normalize(cells, dim=1), steepness


def _histogram(values: Tensor, low: float, high: float, bins: int) -> Tensor:
    """Return the square roots of the shares of pixels near each of ``bins`` values; a pixel counts for two of them."""
    step = (high - low) / (bins - 1)
    flat = values.clamp(low, high).flatten(1)
    near = [(1 - (flat - (low + i * step)).abs() / step).clamp(min=0).mean(1) for i in range(bins)]
    return torch.stack(near, 1).sqrt()


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(1, keepdim=True)


@lru_cache(maxsize=4)
def token_hashes(vocabulary: tuple[str, ...], count: int) -> Tensor:
    """Return a 64-bit number for each token, from what it stands for; 0 for a token that stands for nothing."""
    names = [*vocabulary, *(f"token {i}" for i in range(len(vocabulary), count))]
    digests = [hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in names]
    numbers = np.frombuffer(b"".join(digests), np.int64).copy()
    numbers[[not name for name in names]] = 0
    return torch.from_numpy(numbers)


def hashed_ngrams(tokens: Tensor, hashes: Tensor) -> Tensor:
    """Return counts of the runs of one, two and three tokens, hashed with a sign into 512 entries, at one length."""
    coded = hashes[tokens]
    counts = torch.zeros(len(tokens), WIDTH, device=tokens.device)
    for size in (1, 2, 3):
        windows = coded.unfold(1, size, 1) if coded.shape[1] >= size else coded.new_zeros(len(tokens), 0, size)
        mixed = windows[..., 0] * _SPLIT[0] + size
        for i in range(1, size):
            mixed = (mixed ^ (mixed >> 29)) * _SPLIT[1] + windows[..., i] * _SPLIT[2]
        mixed = (mixed ^ (mixed >> 32)) * _SPLIT[0]
        whole = (windows != 0).all(2)
        sign = torch.where((mixed >> 50) & 1 == 1, 1.0, -1.0) * whole
        counts.scatter_add_(1, (mixed >> 40) & (WIDTH - 1), sign)
    return LENGTH * F.normalize(counts, dim=1)
