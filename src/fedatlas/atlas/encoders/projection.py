"""Fixed maps between widths: no weights to ship, the same bits on every machine."""

import hashlib
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

WIDTH = 512
"""The width of the vectors, that of CLIP ViT-B/32."""


def signs(purpose: str, *shape: int) -> Tensor:
    """Return fixed random signs, +1 or -1, for a purpose."""
    count = int(np.prod(shape))
    bits = np.frombuffer(hashlib.shake_256(purpose.encode()).digest((count + 7) // 8), np.uint8)
    return torch.from_numpy(np.unpackbits(bits)[:count].astype(np.float32) * 2 - 1).view(*shape)


def to_width(vectors: Tensor, purpose: str, width: int = WIDTH) -> Tensor:
    """Map vectors (N, any) to (N, width), a power of two, in a way that depends on ``purpose`` alone.

    Up to ``width`` entries are turned by a signed Hadamard matrix, which keeps lengths and angles exactly and spreads
    each entry over all of the result; more are projected by random signs, which keeps a cosine to about
    ``1 / sqrt(width)``.
    """
    mapped: Tensor = vectors @ _map(vectors.shape[1], width, purpose).to(vectors)
    return mapped


@lru_cache(maxsize=16)
def _map(entries: int, width: int, purpose: str) -> Tensor:
    turn = (
        _hadamard(width)[:entries] * signs(purpose, entries, 1) if entries <= width else signs(purpose, entries, width)
    )
    return turn.div(width**0.5)


def _hadamard(size: int) -> Tensor:
    """Return Sylvester's Hadamard matrix."""
    if size & (size - 1):
        raise ValueError(f"a Hadamard matrix of {size} rows needs a power of two")
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix
