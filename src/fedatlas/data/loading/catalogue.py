"""The data sets by name: what is known of each before it is loaded. Nothing here imports torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedatlas.errors import UsageError, unknown_name

SIZE, TASK = "size", "task"
TABLE_ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
DIGITS = tuple("0123456789")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_CIFAR_SCALING = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_HALF = ((0.5,), (0.5,))
SHAKESPEARE_FRACTION = 0.1


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """Where a data set is on the hub and what its columns are called."""

    repository: str
    config: str | None = None
    inputs: str = "image"
    label: str = "label"
    domain: str | None = None
    owner: str | None = None
    fraction: float = 1.0
    """For text: draw clients until they hold this share of it."""


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """What is known about a data set before it is loaded."""

    description: str
    hub: HubSource | None = None
    classes: tuple[str, ...] = ()
    scaling: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """Mean and standard deviation; one number stands for all channels."""
    table: str = ""
    """The file of a table that comes with the package."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """How that table is read: options of ``from_table``."""


DATASETS = {
    "cifar10": NamedSet(
        description="CIFAR-10: 60,000 photographs of 32x32 in 10 classes",
        hub=HubSource(repository="uoft-cs/cifar10", inputs="img"),
        classes=_CIFAR10,
        scaling=_CIFAR_SCALING,
    ),
    "cifar100": NamedSet(
        description="CIFAR-100: 60,000 photographs of 32x32 in 100 classes",
        hub=HubSource(repository="uoft-cs/cifar100", inputs="img", label="fine_label"),
        scaling=_CIFAR_SCALING,
    ),
    "digit_five": NamedSet(
        description="MNIST, USPS, generated printed digits, MNIST-M and SVHN as 5 domains, colour, 32x32",
    ),
    "digits": NamedSet(
        description="Digits in 5 domains (handwritten, printed, thin, photo, scene), made at load time, no download",
    ),
    "fashion_mnist": NamedSet(
        description="Fashion-MNIST: 70,000 grey pictures of clothes, 28x28, 10 classes",
        hub=HubSource(repository="zalando-datasets/fashion_mnist"),
        classes=_FASHION,
        scaling=_HALF,
    ),
    "femnist": NamedSet(
        description="FEMNIST (LEAF): handwritten characters, 28x28, 62 classes; the writers are clients",
        hub=HubSource(repository="flwrlabs/femnist", label="character", owner="writer_id"),
        scaling=_HALF,
    ),
    "heart": NamedSet(
        description="Heart disease (UCI): 920 patients of 4 hospitals, 13 measurements, healthy or ill, no download",
        table="heart.csv",
        reading={
            "client": "hospital",
            "domain": "hospital",
            "label": "num",
            "classes": {"healthy": [0], "ill": [1, 2, 3, 4]},
            "categorical": ["cp", "restecg", "thal"],
        },
    ),
    "mnist": NamedSet(
        description="MNIST: 70,000 handwritten digits, grey, 28x28",
        hub=HubSource(repository="ylecun/mnist"),
        classes=DIGITS,
        scaling=_HALF,
    ),
    "mnistm": NamedSet(
        description="MNIST-M: MNIST's digits on photographs, colour, 32x32",
        hub=HubSource(repository="Mike0307/MNIST-M"),
        classes=DIGITS,
        scaling=_HALF,
    ),
    "pacs": NamedSet(
        description="PACS: 9,991 pictures of 7 classes in 4 domains: photo, art_painting, cartoon, sketch",
        hub=HubSource(repository="flwrlabs/pacs", domain="domain"),
    ),
    "shakespeare": NamedSet(
        description="Shakespeare (LEAF): the next character after 80; a tenth of the text, speakers are clients",
        hub=HubSource(
            repository="flwrlabs/shakespeare",
            inputs="x",
            label="y",
            owner="character_id",
            fraction=SHAKESPEARE_FRACTION,
        ),
    ),
    "svhn": NamedSet(
        description="SVHN: house numbers in photographs, digits cropped to 32x32",
        hub=HubSource(repository="ufldl-stanford/svhn", config="cropped_digits"),
        classes=DIGITS,
        scaling=_HALF,
    ),
    "usps": NamedSet(
        description="USPS: 9,298 handwritten digits from envelopes, grey, 16x16",
        hub=HubSource(repository="flwrlabs/usps"),
        classes=DIGITS,
        scaling=_HALF,
    ),
}
"""The known names."""


def is_named(source: str | Path) -> bool:
    """Return whether ``load_dataset`` takes this for one of the known names, and not for a path.

    >>> is_named("digits"), is_named("mine.npz")
    (True, False)
    """
    return canonical_name(source) in DATASETS


def canonical_name(source: str | Path) -> str:
    """Return a name as the table has it: in small letters, with underscores."""
    return str(source).lower().replace("-", "_")


def check_source(source: str | Path) -> None:
    """Raise an error if a data set is neither a known name nor a file or folder that can be read."""
    path = Path(source).expanduser()
    if is_named(source) or path.is_dir() or (path.exists() and path.suffix in (".npz", *TABLE_ENDINGS)):
        return
    if path.exists():
        raise UsageError(
            f"{source}: is not a folder and not an npz, csv, tsv, jsonl or parquet file. Check the path.",
            code="file-ending",
            path=str(source),
        )
    if isinstance(source, Path) or path.suffix or "/" in source or os.sep in source:
        raise UsageError(
            f"{source}: there is no such file or folder. Check the path.", code="file-missing", path=str(source)
        )
    raise unknown_name("data set", source, DATASETS)


def kind_of(name: str | Path) -> str:
    """Return what a path is: ``folder``, ``table``, or the ending of another file; a name has none."""
    path = Path(name).expanduser()
    return "folder" if path.is_dir() else "table" if path.suffix in TABLE_ENDINGS else path.suffix
