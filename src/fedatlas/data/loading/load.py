"""Load a data set by name: from a folder of yours, or from the Hugging Face hub.

The folder is ``data_folder=`` or the environment variable ``FEDATLAS_DATA``. ``digits`` and ``heart`` need neither.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedatlas.data.dataset import Dataset, check_domains
from fedatlas.data.images import decode_images, in_colour, resize_images
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.data.loading.catalogue import (
    DATASETS,
    DIGITS,
    SHAKESPEARE_FRACTION,
    SIZE,
    TABLE_ENDINGS,
    TASK,
    HubSource,
    NamedSet,
    canonical_name,
    check_source,
)
from fedatlas.data.loading.cells import table_columns
from fedatlas.data.loading.digits import generate_digits, load_digits_domains
from fedatlas.data.loading.hub import from_hub, hub_errors
from fedatlas.data.loading.image_folder import from_image_folder
from fedatlas.data.loading.npz import from_npz, read_npz
from fedatlas.data.loading.published_files import IDX_FILES, read_cifar10_batches, read_cifar100, read_idx_folder
from fedatlas.data.loading.table import from_table
from fedatlas.errors import DataError, UsageError

FOLDER_VARIABLE = "FEDATLAS_DATA"
EMBEDDED = Path(__file__).parents[1] / "embedded"
"""The tables that come with the package."""
_SHARDS = tuple(f"cifar10_webp_{i}.npz" for i in range(3))
DIGIT_FIVE_DOMAINS = ("mnist", "usps", "generated", "mnistm", "svhn")
GENERATED_TRAIN, GENERATED_TEST = 10_000, 2_000


def load_dataset(
    name: str | Path,
    *,
    data_folder: str | Path | None = None,
    seed: int = 0,
    domains: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Return a data set by name, or from a path: an npz file, a table (csv, tsv, jsonl, Parquet), a picture folder.

    A name is looked up in ``data_folder`` (else ``FEDATLAS_DATA``): ``<name>.npz`` as ``from_npz`` reads it, the
    authors' own files for MNIST and CIFAR, ``<name>/`` as a picture folder; then on the Hugging Face hub. ``seed``
    matters where something is drawn: ``digits``, ``digit_five``, ``shakespeare``. ``domains``
    are those to keep, in this order; of ``digit_five`` only their files are needed. ``options`` are ``from_table``'s
    for a table, such as its columns, ``size`` for a picture folder, and ``task`` for any of your own.

        >>> load_dataset("digits").domains
        ('handwritten', 'printed', 'thin', 'photo', 'scene')
    """
    known = canonical_name(name)
    _check_options(name, options or {})
    if known == "digit_five":
        return _digit_five(data_folder, seed, DIGIT_FIVE_DOMAINS if domains is None else domains)
    entry = DATASETS.get(known)
    if known == "digits":
        data = load_digits_domains(seed)
    elif entry is not None and entry.table:
        data = from_table(EMBEDDED / entry.table, name=known, **{**entry.reading, **(options or {})})
    elif entry is not None and entry.hub is not None:
        data = _load_named(known, entry, entry.hub, data_folder, seed)
    else:
        data = _load_path(name, seed, options or {})
    return data if domains is None else data.of_domains(domains)


def _check_options(name: str | Path, options: Mapping[str, Any]) -> None:
    """Raise UsageError if an option is for another kind of source."""
    ending, entry = Path(name).suffix, DATASETS.get(canonical_name(name))
    is_table = ending in TABLE_ENDINGS or (entry is not None and entry.table != "")
    is_file = entry is not None or ending == ".npz"
    for titles, fits, kind in (
        ([title for title in options if title not in (SIZE, TASK)], is_table, f"a table ({', '.join(TABLE_ENDINGS)})"),
        ([title for title in options if title == SIZE], not (is_table or is_file), "a folder of pictures"),
        ([title for title in options if title == TASK], entry is None, "a file or folder of yours"),
    ):
        if titles and not fits:
            raise UsageError(
                f"{', '.join(titles)}: only {kind} has such a setting, and the data set is {str(name)!r}. "
                "Drop the setting or name another source.",
                code="option-unfit",
                settings=tuple(titles),
                source=str(name),
            )


def _load_path(name: str | Path, seed: int, options: Mapping[str, Any]) -> Dataset:
    check_source(name)
    path = Path(name).expanduser()
    if path.suffix == ".npz":
        return from_npz(path, **options)
    if path.suffix in TABLE_ENDINGS:
        return from_table(path, seed=seed, **options)
    return from_image_folder(path, **options)


def _load_named(name: str, entry: NamedSet, hub: HubSource, data_folder: str | Path | None, seed: int) -> Dataset:
    given = data_folder if data_folder is not None else os.environ.get(FOLDER_VARIABLE)
    folder = None if given is None else Path(given).expanduser()
    candidates = [] if folder is None else _candidates(name, folder, seed)
    for path, read in candidates:
        if path.exists():
            return _finish(name, entry, read(path))
    try:
        loaded = from_hub(hub, name=name, seed=seed)
    except DataError:
        raise
    # To each of these the user needs the same answer: the two ways to get the data, and the reason.
    except hub_errors() as reason:
        looked = (
            f"set data_folder= or the variable {FOLDER_VARIABLE}; none is set"
            if folder is None
            else f"in {folder} there is none of {', '.join(str(path.relative_to(folder)) for path, _ in candidates)}"
        )
        raise UsageError(
            f"cannot load {name!r}. From a folder: {looked}. From the Hugging Face hub ({hub.repository}): "
            f"pip install 'fedatlas[hub]' and a network are needed; it said: {type(reason).__name__}: {reason}",
            code="source-unavailable",
            source=name,
        ) from reason
    return _finish(name, entry, loaded)


def _candidates(name: str, folder: Path, seed: int) -> list[tuple[Path, Callable[[Path], Dataset]]]:
    """Return the places where a set may be stored, best first, and how to read each."""
    found: list[tuple[Path, Callable[[Path], Dataset]]] = []
    if name == "shakespeare":
        return [(folder / f"{name}{ending}", lambda file: _shakespeare(file, seed)) for ending in TABLE_ENDINGS]
    found.append((folder / f"{name}.npz", from_npz))
    if name == "pacs":
        found.append((folder / "pacs64.npz", from_npz))
    if name == "cifar10":
        found.append((folder / _SHARDS[0], lambda file: _cifar10_shards(file.parent)))
        found.append((folder / "cifar-10-batches-py", read_cifar10_batches))
    if name == "cifar100":
        found.append((folder / "cifar-100-python", read_cifar100))
    for inner in {"mnist": ("", "mnist", "MNIST/raw"), "fashion_mnist": (name, "FashionMNIST/raw")}.get(name, ()):
        for ending in ("", ".gz"):
            file = folder / inner / f"{IDX_FILES[0]}{ending}"
            found.append((file, lambda file: read_idx_folder(file.parent, name)))
    found.append((folder / name, from_image_folder))
    return found


def _finish(name: str, entry: NamedSet, data: Dataset) -> Dataset:
    """Give a set its name, its classes where the file had none, and its scaling."""
    mean, std = entry.scaling
    if len(mean) == 1:
        mean, std = mean * data.inputs.shape[1], std * data.inputs.shape[1]
    unnamed = data.classes == tuple(str(i) for i in range(len(data.classes)))
    classes = entry.classes if entry.classes and unnamed and len(data.classes) <= len(entry.classes) else data.classes
    return replace(data, name=name, classes=classes, mean=mean, std=std)


def _cifar10_shards(folder: Path) -> Dataset:
    """Read three npz files of 20,000 lossless WebP pictures each, training first."""
    images, labels = [], []
    for shard in _SHARDS:
        arrays = read_npz(folder / shard)
        missing = {"webp", "offset", "y"} - set(arrays)
        if missing:
            raise DataError(
                f"{folder / shard}: has no {missing.pop()!r}. Write the three files again.",
                code="content-unfit",
                path=str(folder / shard),
                what=shard,
            )
        images.append(decode_images(arrays["webp"], arrays["offset"], str(folder / shard)))
        labels.append(arrays["y"])
    targets = np.concatenate(labels)
    # A sixth, as in the original 50,000 and 10,000.
    is_test = np.arange(len(targets)) >= len(targets) * 5 // 6
    return from_arrays(np.concatenate(images), targets, name="cifar10", is_test=is_test)


def _shakespeare(file: Path, seed: int) -> Dataset:
    if {"character_id", "x", "y"} <= set(table_columns(file)):
        return from_table(file, text="x", client="character_id", label="y", fraction=SHAKESPEARE_FRACTION, seed=seed)
    return from_table(file, label=None, fraction=SHAKESPEARE_FRACTION, seed=seed)


def _digit_five(data_folder: str | Path | None, seed: int, domains: Sequence[str]) -> Dataset:
    """Return some of the five digit domains of the papers, with generated digits in place of SynthDigits."""
    check_domains("digit_five", domains, DIGIT_FIVE_DOMAINS)
    images, labels, tests = [], [], []
    for domain in domains:
        if domain == "generated":
            pixels, targets = generate_digits(GENERATED_TRAIN + GENERATED_TEST, seed)
            is_test = torch.arange(len(targets)) >= GENERATED_TRAIN
        else:
            data = load_dataset(domain, data_folder=data_folder, seed=seed)
            pixels, targets = resize_images(in_colour(data.inputs), 32), data.labels
            is_test = data.is_test if data.is_test is not None else torch.zeros(len(targets), dtype=torch.bool)
        images.append(pixels)
        labels.append(targets)
        tests.append(is_test)
    counts = torch.tensor([len(targets) for targets in labels])
    return Dataset(
        name="digit_five",
        inputs=torch.cat(images),
        labels=torch.cat(labels),
        classes=DIGITS,
        domains=tuple(domains),
        domain=torch.arange(len(domains)).repeat_interleave(counts),
        is_test=torch.cat(tests),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
