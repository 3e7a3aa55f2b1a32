"""The images of FedGCR's tables: a part of each domain, small enough to be carried about.

    python -m papers.fedgcr.data --data-folder FOLDER --to FOLDER     # writes digit-five.npz and pacs.npz

Images are 32x32 in colour, the size of the backbone that ships, packed without loss. A table reads the packed files
where ``--data-folder`` holds them, else the data sets themselves; either gives the same examples.
"""

import argparse
import io
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from PIL import Image

from fedatlas.data import (
    Dataset,
    DomainImbalance,
    Federation,
    federate,
    from_image_folder,
    from_npz,
    load_dataset,
    resize_images,
)
from fedatlas.seeds import numpy_generator
from papers.options import one_of, script

SIDE = 32
HALF = (0.5,) * 3
SPLIT_SEED, TEST_SHARE = 0, 0.25
MOST_TESTS = 2000
MOST_TRAIN: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "digit-five": {"mnist": 3000, "usps": 3000, "generated": 1700, "mnistm": 2000, "svhn": 2000},
        "pacs": dict.fromkeys(("photo", "art_painting", "cartoon", "sketch"), 700),
        "domainnet": dict.fromkeys(("clipart", "real", "painting", "sketch", "quickdraw", "infograph"), 1700),
    }
)
"""What the partitions of all tables need of a domain; a seed draws its clients' examples from these."""
TYPES = MappingProxyType({"digit-five": 5, "pacs": 4, "domainnet": 6, "digits": 5})
"""The true number of client types, T."""


@lru_cache(maxsize=2)
def load_images(name: str, folder: str | None) -> Dataset:
    """Return the examples of a table's data set, scaled for the backbone; kept for the next variant of a process."""
    packed = None if folder is None else Path(folder) / f"{name}.npz"
    if name == "digits":
        data = load_dataset("digits")
    elif packed is not None and packed.exists():
        data = from_npz(packed, name=name)
    else:
        data = chosen(name, folder)
    return replace(data, mean=HALF, std=HALF)


def chosen(name: str, folder: str | None) -> Dataset:
    """Return the part of a data set that the tables use: a seeded draw in each domain."""
    if name == "digit-five":
        data = load_dataset("digit_five", data_folder=folder)
    elif name == "pacs":
        data = load_dataset("pacs", data_folder=folder)
    else:
        data = from_image_folder(Path(folder or ".") / name, size=SIDE, name=name)
    assert data.domain is not None
    is_test = data.is_test if data.is_test is not None else _split(data)
    kept = []
    for number, domain in enumerate(data.domains):
        for tested, most in ((False, MOST_TRAIN[name][domain]), (True, MOST_TESTS)):
            members = torch.nonzero((data.domain == number) & (is_test == tested)).flatten()
            order = numpy_generator(SPLIT_SEED, "pool", domain, int(tested)).permutation(len(members))
            kept.append(members[torch.from_numpy(np.sort(order[:most]))])
    indices = torch.cat(kept)
    return replace(
        data,
        name=name,
        inputs=resize_images(data.inputs[indices], SIDE),
        labels=data.labels[indices],
        domain=data.domain[indices],
        is_test=is_test[indices],
    )


def _split(data: Dataset) -> torch.Tensor:
    """Return a test part, a share of each class of each domain."""
    assert data.domain is not None
    strata = (data.domain * len(data.classes) + data.labels).numpy()
    rng = numpy_generator(SPLIT_SEED, "test part")
    is_test = np.zeros(len(strata), bool)
    for stratum in np.unique(strata):
        members = rng.permutation(np.flatnonzero(strata == stratum))
        is_test[members[: round(TEST_SHARE * len(members))]] = True
    return torch.from_numpy(is_test)


def make_federation(name: str, *, factor: float, other_order: bool, seed: int, folder: str | None) -> Federation:
    """Return the clients of a table: the paper's numbers of clients and examples."""
    order = "other" if other_order else None
    partition = (
        DomainImbalance(factor=factor) if name == "digits" else DomainImbalance(factor=factor, preset=name, order=order)
    )
    return federate(load_images(name, folder), partition, test="domain", seed=seed)


def pack(data: Dataset, file: Path) -> None:
    """Write a data set as lossless WebP pictures in one npz file."""
    assert data.domain is not None
    assert data.is_test is not None
    pictures = []
    for image in data.inputs.permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "WEBP", lossless=True, exact=True, quality=80, method=4)
        pictures.append(buffer.getvalue())
    np.savez(
        file,
        webp=np.frombuffer(b"".join(pictures), np.uint8),
        offset=np.cumsum([0, *map(len, pictures)]),
        y=data.labels.numpy(),
        classes=np.array(data.classes),
        domain=np.array(data.domains)[data.domain.numpy()],
        is_test=data.is_test.numpy(),
    )


@script
def main() -> None:
    """Pack the data sets of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-folder", help="where data sets are stored; else FEDATLAS_DATA")
    parser.add_argument("--to", type=Path, required=True, help="folder to write the packed files into")
    parser.add_argument("--sets", default="digit-five,pacs", help="comma separated; default digit-five,pacs")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for name in options.sets.split(","):
        one_of("sets", name, MOST_TRAIN)
        file = options.to / f"{name}.npz"
        pack(chosen(name, options.data_folder), file)
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
