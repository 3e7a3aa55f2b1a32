"""The workloads that all contenders train: the same random images, the same networks, the same steps.

Plain torch, as each contender runs in its own environment. Speed does not depend on what the images show.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Workload:
    """So many clients with so many images each, of whom a cohort trains in a round."""

    clients: int
    examples: int
    """Of each client."""
    shape: tuple[int, int, int]
    cohort: int
    batch_size: int
    network: Callable[[], nn.Module]
    lr: float = 0.05
    rounds: int = 10
    """Rounds of one measurement, the first of which is not counted."""

    def images(self) -> tuple[Tensor, Tensor]:
        """Return uint8 images (client by client) and their labels."""
        rng = torch.Generator().manual_seed(0)
        count = self.clients * self.examples
        images = torch.randint(256, (count, *self.shape), generator=rng, dtype=torch.uint8)
        return images, torch.randint(NUM_CLASSES, (count,), generator=rng)

    def prepared(self) -> tuple[Tensor, Tensor]:
        """Return the images as the network takes them, made ready once: float32, mean 0."""
        images, labels = self.images()
        return images.float().div_(255).sub_(0.5).div_(0.25), labels


class Perceptron(nn.Module):
    """784-200-10."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(784, 200)
        self.head = nn.Linear(200, NUM_CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(F.relu(self.hidden(inputs.flatten(1))))  # type: ignore[no-any-return]


class Convolutions(nn.Module):
    """The network of pfl-research's CIFAR-10 benchmark, without its dropout: 1.6 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)
        self.hidden, self.head = nn.Linear(64 * 14 * 14, 128), nn.Linear(128, NUM_CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(inputs)))), 2)
        return self.head(F.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, before: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = norm(width), norm(width)
        plain = stride == 1 and before == width
        self.shortcut = (
            nn.Identity() if plain else nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), norm(width))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output."""
        x = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.norm2(self.conv2(x)) + self.shortcut(inputs))


class ResNet18(nn.Module):
    """ResNet-18 with the 3x3 stem for 32x32 images."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), norm(width), nn.ReLU())
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        before = [width, *widths[:-1]]
        self.blocks = nn.Sequential(
            *(Block(b, w, 1 if b == w else 2, norm) for b, w in zip(before, widths, strict=True))
        )
        self.head = nn.Linear(8 * width, NUM_CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.blocks(self.stem(inputs)).mean((2, 3)))  # type: ignore[no-any-return]


def group_norm(width: int) -> nn.Module:
    """Return a group normalisation with two groups, or 32 channels a group."""
    return nn.GroupNorm(max(2, width // 32), width)


WORKLOADS = {
    "A": Workload(
        clients=1000, examples=60, shape=(1, 28, 28), cohort=20, batch_size=10, network=Perceptron, rounds=40
    ),
    "B": Workload(
        clients=1000, examples=50, shape=(3, 32, 32), cohort=50, batch_size=10, network=Convolutions, rounds=6
    ),
    "C": Workload(
        clients=10,
        examples=100,
        shape=(3, 32, 32),
        cohort=10,
        batch_size=50,
        network=lambda: ResNet18(group_norm),
        rounds=3,
    ),
}
TINY = Workload(clients=6, examples=8, shape=(1, 28, 28), cohort=3, batch_size=4, network=Perceptron, rounds=3)
"""For trying a contender."""


def workload_of(name: str) -> Workload:
    """Return a workload by its name."""
    return TINY if name == "tiny" else WORKLOADS[name]


@cache
def resident_data(name: str) -> tuple[Tensor, Tensor]:
    """Return a workload's prepared images and labels; once in a process."""
    return workload_of(name).prepared()


@cache
def resident_network(name: str) -> nn.Module:
    """Return a workload's network, the same in each call of a process."""
    return workload_of(name).network()


def contender(description: str) -> tuple[Workload, argparse.Namespace]:
    """Read a contender's command line and return its workload."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("workload", choices=[*WORKLOADS, "tiny"])
    parser.add_argument("--rounds", type=int, help="rounds, the first of which is not counted")
    parser.add_argument("--variant", default="", help="what the contender has several of")
    options = parser.parse_args()
    workload = workload_of(options.workload)
    options.rounds = options.rounds or workload.rounds
    return workload, options


def tell(seconds: Sequence[float], packages: Sequence[str] = (), **more: float) -> None:
    """Print what a contender measured as the last line of its output: seconds of each round, and what it says more."""
    versions = {name: metadata.version(name) for name in ("torch", *packages)}
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    about = {"python": platform.python_version(), **versions}
    print(json.dumps({"seconds": list(seconds), "peak_mb": round(peak), "versions": about, **more}), flush=True)
    sys.stdout.flush()
