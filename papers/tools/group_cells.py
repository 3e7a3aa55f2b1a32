"""The federations on which groups from an atlas are measured, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedatlas import Federation, federate, from_arrays, load_dataset
from fedatlas.data import (
    Augment,
    Dataset,
    Dirichlet,
    DomainImbalance,
    Iid,
    NaturalId,
    Partition,
    PermutedLabels,
    Rotated,
    Transform,
)
from fedatlas.seeds import numpy_generator
from papers.tools.domain_sets import DOMAIN_SETS


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of federation."""

    data: str
    partition: Callable[[], Partition]
    model: str = "cnn"
    options: dict[str, Any] = field(default_factory=dict)
    rounds: int = 40
    lr: float = 0.05
    optimizer: dict[str, Any] = field(default_factory=dict)
    """What SGD is given beside its rate."""
    augment: Transform | None = None
    groups: int = 4
    precision: Literal["float32", "bfloat16"] = "float32"
    test: Literal["client", "domain"] = "client"
    test_fraction: float = 0.25
    by_domain: bool = False
    """Whether its table has a column for each domain."""
    norm: dict[str, str] = field(default_factory=dict)
    """The norms of methods that need others than the rest."""
    swapped: bool = False
    """Whether one client of the domain with the most clients has two names swapped in its training examples."""

    def federation(self, folder: Path, seed: int) -> Federation:
        """Return the clients."""
        found = federate(
            load(self.data, folder), self.partition(), seed=seed, test=self.test, test_fraction=self.test_fraction
        )
        return with_swap(found, seed) if self.swapped else found

    def model_options(self, method: str) -> dict[str, Any]:
        """Return the options of the model; FedPCE makes its norms from vectors and keeps no running statistics."""
        return {**self.options, "norm": self.norm[method]} if method in self.norm else self.options


def mnist(shift: Callable[..., Partition], **options: Any) -> Callable[[], Partition]:
    """Return how 24 clients of 500 images are made."""
    return lambda: shift(num_clients=24, examples_per_client=500, **options)


def sized(shift: Callable[..., Partition], images: int, **options: Any) -> Cell:
    """Return a cell of 24 clients with so many training images of MNIST, a quarter more to test, and a perceptron."""
    whole = round(images / 0.75)
    partition = partial(shift, num_clients=24, examples_per_client=whole, **options)
    return Cell(data="mnist", partition=partition, model="mlp", lr=0.1)


def domains(data: str, **options: Any) -> Cell:
    """Return a cell whose domains differ much in size; a small network, so that a processor suffices."""
    return Cell(
        data=data,
        partition=lambda: DomainImbalance(factor=5, **options),
        options={"norm": "batch", "width": 8},
        groups=4 if data == "pacs" else 5,
        test="domain",
        by_domain=True,
        norm={"fedpce": "instance"},
    )


def with_swap(federation: Federation, seed: int) -> Federation:
    """Return the clients with the names of two classes swapped at the first of the domain that has the most clients."""
    (most, _), *_ = Counter(str(client.kind) for client in federation).most_common(1)
    own = next(client for client in federation if client.kind == most)
    one, other = numpy_generator(seed, "swap").choice(federation.num_classes, 2, replace=False).tolist()
    labels, given = federation.data.labels.clone(), federation.data.labels[own.train]
    labels[own.train[given == one]], labels[own.train[given == other]] = other, one
    return replace(federation, data=replace(federation.data, labels=labels))


def small_cifar10(classes: int | Literal["all"]) -> Cell:
    """Return a cell of 24 clients that share 50,000 images of CIFAR-10 at 16 by 16 pixels, and a small network."""
    return Cell(
        data="cifar10-16",
        partition=lambda: PermutedLabels(num_clients=24, classes=classes),
        options={"norm": "group", "width": 8},
        rounds=20,
        lr=0.1,
        test_fraction=1 / 6,
    )


def whole_cifar10(classes: int | Literal["all"]) -> Cell:
    """Return a cell of 24 clients that share 50,000 images of CIFAR-10 as they are, and ResNet-18."""
    return replace(
        small_cifar10(classes),
        data="cifar10-whole",
        model="resnet18",
        options={},
        rounds=40,
        optimizer={"weight_decay": 5e-4, "schedule": "cosine"},
        augment=Augment(),
        precision="bfloat16",
    )


SHIFTS: dict[str, Callable[..., Partition]] = {"rotated": Rotated, "permuted": PermutedLabels}
CELLS: dict[str, Cell] = {
    **{f"{name}-{n}": sized(shift, n) for name, shift in SHIFTS.items() for n in (60, 150, 500)},
    **{f"{name}-{n}-0.3": sized(shift, n, alpha=0.3) for name, shift in SHIFTS.items() for n in (60, 150, 500)},
    "small-digits": domains("digits-16"),
    "small-digits-swapped": replace(domains("digits-16"), swapped=True),
    "digit-five": domains("digit-five"),
    "pacs": domains("pacs", quota=400),
    "rotated-mnist": Cell(data="mnist", partition=mnist(Rotated)),
    "permuted-mnist": Cell(data="mnist", partition=mnist(PermutedLabels)),
    "rotated-mnist-0.3": Cell(data="mnist", partition=mnist(Rotated, alpha=0.3)),
    "permuted-mnist-0.3": Cell(data="mnist", partition=mnist(PermutedLabels, alpha=0.3)),
    "iid-mnist": Cell(data="mnist", partition=mnist(Rotated, num_groups=1), groups=1),
    "permuted-cifar10": Cell(
        data="cifar10",
        partition=lambda: PermutedLabels(num_clients=24),
        model="resnet18",
        precision="bfloat16",
    ),
    "permuted-cifar10-16": small_cifar10(3),
    "permuted-all-cifar10-16": small_cifar10("all"),
    "permuted-cifar10-whole": whole_cifar10(3),
    "permuted-all-cifar10-whole": whole_cifar10("all"),
    "dirichlet-cifar10": Cell(
        data="cifar10",
        partition=lambda: Dirichlet(num_clients=24, alpha=0.3),
        model="resnet18",
        precision="bfloat16",
        groups=1,
    ),
    "digits-domains": Cell(
        data="digits", partition=lambda: DomainImbalance(factor=5), options={"norm": "batch"}, groups=5
    ),
    "heart": Cell(data="heart", partition=NaturalId, model="mlp", rounds=20, by_domain=True),
    "heart-norms": Cell(
        data="heart",
        partition=NaturalId,
        model="mlp",
        rounds=20,
        by_domain=True,
        options={"norm": "batch"},
        norm={"fedpce": "layer"},
    ),
    "iid-digits": Cell(data="digits", partition=lambda: Iid(num_clients=12), groups=1, rounds=20),
}


def load(name: str, folder: Path) -> Dataset:
    """Return a data set by its name; of NAME.npz the training part."""
    if name in ("digits", "heart"):
        return load_dataset(name)
    if name == "cifar10-whole":
        return load_dataset("cifar10", data_folder=folder)
    if name in DOMAIN_SETS:
        return DOMAIN_SETS[name](folder)
    with np.load(folder / f"{name}.npz") as file:
        images, labels = file["x_train"], file["y_train"]
    return from_arrays(images, labels.reshape(-1).astype(np.int64), name=name)
