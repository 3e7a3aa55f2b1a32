"""Data sets small enough for a processor: digits and CIFAR-10 at 16 by 16 pixels, PACS at 24 by 24.

A folder holds mnist.npz, usps.npz, mnistm.npz, svhn.npz and cifar10.npz (x_train, y_train, x_test, y_test), and
pacs64.npz (for each domain DOMAIN_x and DOMAIN_y, and the classes). Digit-Five's fifth set cannot be had; in its place
is a generated one, the domain ``scene`` of the embedded digits: printed digits in any colour on photographs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from fedatlas import from_arrays, load_dataset
from fedatlas.data import Dataset
from fedatlas.seeds import numpy_generator

DIGIT_SETS = ("mnist", "usps", "mnistm", "svhn")
GENERATED = "scene"
TRAIN, TEST = 1200, 400
"""Images of each domain of Digit-Five, the same ones for all seeds."""
PACS = ("photo", "art_painting", "cartoon", "sketch")
PACS_TEST = 0.25


def scaled(images: np.ndarray, size: int) -> np.ndarray:
    """Return uint8 images (N, size, size, 3); grey ones get three equal channels."""
    rows = torch.from_numpy(images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3))
    rows = rows.permute(0, 3, 1, 2).float()
    small = F.interpolate(rows, size=(size, size), mode="bilinear", antialias=True, align_corners=False)
    return small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()


def small_digits(folder: Path) -> Dataset:
    """Return the embedded digits at 16 by 16 pixels; no folder is needed."""
    made = load_dataset("digits")
    assert made.domain is not None
    assert made.is_test is not None
    return from_arrays(
        scaled(made.inputs.permute(0, 2, 3, 1).numpy(), 16),
        made.labels.numpy(),
        name="digits-16",
        domain=np.array(made.domains)[made.domain.numpy()],
        is_test=made.is_test.numpy(),
    )


def digit_five(folder: Path) -> Dataset:
    """Return MNIST, USPS, MNIST-M, SVHN and generated digits."""
    images, labels, domains, tests = [], [], [], []
    for name in DIGIT_SETS:
        with np.load(folder / f"{name}.npz") as file:
            for part, count in (("train", TRAIN), ("test", TEST)):
                rng = numpy_generator(0, "digit-five", name, part)
                chosen = np.sort(rng.choice(len(file[f"y_{part}"]), count, replace=False))
                images.append(scaled(file[f"x_{part}"][chosen], 16))
                labels.append(file[f"y_{part}"].reshape(-1)[chosen].astype(np.int64))
                domains += [name] * count
                tests.append(np.full(count, part == "test"))
    made = load_dataset("digits")
    assert made.domain is not None
    assert made.is_test is not None
    own = (made.domain == made.domains.index(GENERATED)).numpy()
    images.append(scaled(made.inputs.permute(0, 2, 3, 1).numpy()[own], 16))
    labels.append(made.labels.numpy()[own])
    domains += ["generated"] * int(own.sum())
    tests.append(made.is_test.numpy()[own])
    return from_arrays(
        np.concatenate(images),
        np.concatenate(labels),
        name="digit-five",
        domain=np.array(domains),
        is_test=np.concatenate(tests),
    )


def small_cifar10(folder: Path) -> Dataset:
    """Return CIFAR-10 at 16 by 16 pixels, its training and test images together."""
    with np.load(folder / "cifar10.npz") as file:
        images, labels = (np.concatenate([file[f"{kind}_{part}"] for part in ("train", "test")]) for kind in "xy")
    return from_arrays(scaled(images, 16), labels.reshape(-1).astype(np.int64), name="cifar10-16")


def pacs(folder: Path) -> Dataset:
    """Return PACS; a quarter of each domain, the same for all seeds, is its test part."""
    with np.load(folder / "pacs64.npz") as file:
        parts = [(name, scaled(file[f"{name}_x"], 24), file[f"{name}_y"].astype(np.int64)) for name in PACS]
        classes = [str(name) for name in file["classes"]]
    return from_arrays(
        np.concatenate([images for _, images, _ in parts]),
        np.concatenate([labels for _, _, labels in parts]),
        name="pacs",
        classes=classes,
        domain=np.concatenate([[name] * len(labels) for name, _, labels in parts]),
        is_test=np.concatenate(
            [numpy_generator(0, "pacs", name).random(len(own)) < PACS_TEST for name, _, own in parts]
        ),
    )


DOMAIN_SETS: dict[str, Callable[[Path], Dataset]] = {
    "digits-16": small_digits,
    "digit-five": digit_five,
    "pacs": pacs,
    "cifar10-16": small_cifar10,
}
