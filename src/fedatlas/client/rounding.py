"""How a GPU rounds the factors of float32 products."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products_like_convolutions() -> Iterator[None]:
    """Let products of float32 be rounded as cuDNN rounds convolutions, to TF32 unless a user forbids it."""
    matmul, conv = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)
    before = getattr(matmul, "fp32_precision", None)
    if before is None or getattr(conv, "fp32_precision", None) != "tf32":  # the first: older than torch 2.9
        yield
        return
    matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before
