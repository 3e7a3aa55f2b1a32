"""The files as their authors publish them: MNIST's idx files and CIFAR's Python batches."""

import codecs
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.dataset import Dataset
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.errors import DataError

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def read_idx_folder(folder: Path, name: str) -> Dataset:
    """Return MNIST or a set in its form from the four idx files in a folder, gzipped or not."""
    train_x, train_y, test_x, test_y = (_read_idx(folder / file) for file in IDX_FILES)
    return _split(name, train_x, train_y, test_x, test_y)


def read_cifar10_batches(folder: Path) -> Dataset:
    """Return CIFAR-10 from the folder ``cifar-10-batches-py``."""
    batches = [_unpickle(folder / f"data_batch_{i}") for i in range(1, 6)]
    test = _unpickle(folder / "test_batch")
    labels = np.concatenate([np.asarray(batch["labels"]) for batch in batches])
    train = np.concatenate([batch["data"] for batch in batches])
    return _split("cifar10", _squares(train), labels, _squares(test["data"]), np.asarray(test["labels"]))


def read_cifar100(folder: Path) -> Dataset:
    """Return CIFAR-100 with its fine labels from the folder ``cifar-100-python``."""
    train, test = _unpickle(folder / "train"), _unpickle(folder / "test")
    names = [str(name) for name in _unpickle(folder / "meta")["fine_label_names"]]
    labels = np.asarray(train["fine_labels"]), np.asarray(test["fine_labels"])
    return _split("cifar100", _squares(train["data"]), labels[0], _squares(test["data"]), labels[1], names)


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


def _squares(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return rows.reshape(-1, 3, 32, 32)


def _read_idx(file: Path) -> NDArray[np.uint8]:
    packed = file.with_name(file.name + ".gz")
    if not file.is_file() and not packed.is_file():
        raise DataError(
            f"{file}: there is no such file, nor {packed.name}. Put all four idx files there.",
            code="file-missing",
            path=str(file),
        )
    try:
        raw = file.read_bytes() if file.is_file() else gzip.decompress(packed.read_bytes())
    except (OSError, EOFError) as reason:
        raise DataError(
            f"{packed}: cannot be unpacked ({reason}). Get it again.", code="file-unreadable", path=str(packed)
        ) from reason
    # Two zero bytes, 8 for unsigned bytes, the number of axes, then the length of each axis, big-endian.
    axes = raw[3] if len(raw) > 3 else 0
    shape = tuple(np.frombuffer(raw[4 : 4 + 4 * axes], ">u4").tolist())
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * axes + int(np.prod(shape)):
        raise DataError(
            f"{file}: is not a whole idx file of bytes. Get it again.", code="file-unreadable", path=str(file)
        )
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


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
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError) as reason:
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
