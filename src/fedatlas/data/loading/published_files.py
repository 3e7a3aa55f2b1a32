"""The files as their authors publish them: MNIST's idx files and CIFAR's Python batches."""

import codecs
import gzip
import math
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.dataset import Dataset
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.errors import DataError

MOST_IDX = 1 << 30
"""Bytes of an unpacked idx file; those of EMNIST, the largest, have 550 million."""
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def read_idx_folder(folder: Path, name: str) -> Dataset:
    """Return MNIST or a set in its form from the four idx files in a folder, gzipped or not."""
    train_x, train_y, test_x, test_y = (_read_idx(folder / file) for file in IDX_FILES)
    return _split(name, train_x, train_y, test_x, test_y)


def read_cifar10_batches(folder: Path) -> Dataset:
    """Return CIFAR-10 from the folder ``cifar-10-batches-py``."""
    images, labels = zip(*(_batch(folder / f"data_batch_{i}", "labels") for i in range(1, 6)), strict=True)
    test = _batch(folder / "test_batch", "labels")
    return _split("cifar10", np.concatenate(images), np.concatenate(labels), *test)


def read_cifar100(folder: Path) -> Dataset:
    """Return CIFAR-100 with its fine labels from the folder ``cifar-100-python``."""
    train, test = _batch(folder / "train", "fine_labels"), _batch(folder / "test", "fine_labels")
    names = _unpickle(folder / "meta").get("fine_label_names")
    return _split("cifar100", *train, *test, None if names is None else [str(name) for name in names])


def _split(
    name: str,
    train_x: NDArray[Any],
    train_y: NDArray[Any],
    test_x: NDArray[Any],
    test_y: NDArray[Any],
    classes: list[str] | None = None,
) -> Dataset:
    is_test = np.repeat([False, True], [len(train_y), len(test_y)])
    inputs, labels = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
    return from_arrays(inputs, labels, name=name, classes=classes, is_test=is_test)


def _batch(file: Path, title: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the images and the labels of a batch."""
    content = _unpickle(file)
    rows: Any = content.get("data")
    labels: Any = content.get(title)
    known = isinstance(rows, np.ndarray) and isinstance(labels, list)
    if not known or rows.dtype != np.uint8 or rows.shape != (len(labels), 3 * 32 * 32):
        raise DataError(
            f"{file}: is not a CIFAR batch of 32x32 images and a list {title!r}. Get it again.",
            code="file-unreadable",
            path=str(file),
        )
    return rows.reshape(-1, 3, 32, 32), np.asarray(labels)


def _read_idx(file: Path) -> NDArray[np.uint8]:
    packed = file.with_name(file.name + ".gz")
    if not file.is_file() and not packed.is_file():
        raise DataError(
            f"{file}: there is no such file, nor {packed.name}. Put all four idx files there.",
            code="file-missing",
            path=str(file),
        )
    try:
        raw = file.read_bytes() if file.is_file() else _unpacked(packed)
    except (OSError, EOFError, zlib.error) as reason:
        raise DataError(
            f"{packed}: cannot be unpacked ({reason}). Get it again.", code="file-unreadable", path=str(packed)
        ) from reason
    # Two zero bytes, 8 for unsigned bytes, the number of axes, then the length of each axis, big-endian.
    axes = raw[3] if len(raw) > 3 else 0
    shape = tuple(np.frombuffer(raw[4 : 4 + 4 * axes], ">u4").tolist())
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * axes + math.prod(shape):
        raise DataError(
            f"{file}: is not a whole idx file of bytes. Get it again.", code="file-unreadable", path=str(file)
        )
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _unpacked(packed: Path) -> bytes:
    """Return the content of a gzip file, up to a little more than a set of this form can have."""
    with gzip.open(packed) as content:
        return content.read(MOST_IDX + 1)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numbers, texts, lists, dictionaries and numpy arrays; anything else could run code and is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise pickle.UnpicklingError(f"{module}.{name} is not an array")


def _latin1(text: str, encoding: str) -> bytes:
    if codecs.lookup(encoding).name != "iso8859-1":
        raise pickle.UnpicklingError(f"unexpected encoding {encoding!r}")
    return text.encode("latin1")


def _unpickle(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise DataError(
            f"{file}: there is no such file. Unpack the whole archive there.", code="file-missing", path=str(file)
        )
    try:
        with file.open("rb") as stream:
            content = _ArraysOnly(stream, encoding="latin1").load()
    # A file that was made to break the reader ends in almost any error; none of them has run code.
    except Exception as reason:
        raise DataError(
            f"{file}: is not a CIFAR batch ({reason}). Get it again.", code="file-unreadable", path=str(file)
        ) from reason
    if not isinstance(content, dict):
        raise DataError(
            f"{file}: is not a CIFAR batch (a {type(content).__name__}). Get it again.",
            code="file-unreadable",
            path=str(file),
        )
    return content
