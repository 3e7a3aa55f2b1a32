"""Data sets of the Hugging Face hub as a Dataset, through the package ``datasets``."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.data.dataset import Dataset
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.data.loading.catalogue import HubSource
from fedatlas.data.loading.texts import from_texts
from fedatlas.errors import DataError


def from_hub(source: HubSource, *, name: str, seed: int = 0) -> Dataset:
    """Return a data set of the hub; ``train`` and ``test`` become the official split."""
    import datasets

    loaded = datasets.load_dataset(source.repository, source.config)
    splits = [(part == "test", loaded[part]) for part in ("train", "test") if part in loaded]
    if not splits:
        raise DataError(
            f"{source.repository}: has the splits {sorted(loaded)}, wanted train or test.",
            code="split-unfit",
            got=sorted(loaded),
        )
    missing = {source.inputs, source.label} - set(splits[0][1].column_names)
    if missing:
        raise DataError(
            f"{source.repository}: has no column {missing.pop()!r} but {splits[0][1].column_names}.",
            code="content-unfit",
        )

    def column(title: str) -> list[Any]:
        return [value for _, split in splits for value in split[title]]

    if splits[0][1].features[source.inputs].__class__.__name__ != "Image":
        return from_texts(
            column(source.inputs),
            clients=None if source.owner is None else [str(value) for value in column(source.owner)],
            labels=[str(value) for value in column(source.label)],
            fraction=source.fraction,
            seed=seed,
            name=name,
        )
    return from_arrays(
        np.concatenate([_pixels(split, source) for _, split in splits]),
        column(source.label),
        name=name,
        classes=getattr(splits[0][1].features[source.label], "names", None),
        domain=None if source.domain is None else column(source.domain),
        owner=None if source.owner is None else column(source.owner),
        is_test=np.repeat([test for test, _ in splits], [len(split) for _, split in splits])
        if len(splits) > 1
        else None,
    )


def hub_errors() -> tuple[type[Exception], ...]:
    """Return what the hub's packages raise where a name, a network, a file or a package itself is missing."""
    named = (("datasets.exceptions", "DatasetsError"), ("httpx", "HTTPError"))
    loaded = [getattr(sys.modules[module], name) for module, name in named if module in sys.modules]
    return (ImportError, OSError, RuntimeError, ValueError, *loaded)


def _pixels(split: Any, source: HubSource) -> NDArray[np.uint8]:
    images: NDArray[np.uint8] | None = None
    for i, picture in enumerate(split[source.inputs]):
        pixels = np.asarray(picture if picture.mode == "L" else picture.convert("RGB"))
        if images is None:
            images = np.empty((len(split), *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            raise DataError(
                f"{source.repository}: picture {i} has shape {pixels.shape}, the first {images.shape[1:]}.",
                code="pictures-differ",
                picture=i,
            )
        images[i] = pixels
    if images is None:
        raise DataError(f"{source.repository}: a split is empty.", code="data-empty", what="split")
    return images
