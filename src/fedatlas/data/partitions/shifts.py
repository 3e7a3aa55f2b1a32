"""Groups of clients whose data really differ: turned images, other colours, other labels; for some classes or for all.

Clients are dealt their examples as by ``iid`` or ``dirichlet``, and are dealt to the groups in turns. The first group
is as the data are. The change of a group is part of the data set of the federation, in training and in test alike.
Which group a client is in is its type, which no algorithm sees.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Shift
from fedatlas.data.partitions.basic import Dirichlet, Iid, Share, check_alpha, check_num_clients
from fedatlas.data.partitions.registry import partition
from fedatlas.data.transforms import rotate
from fedatlas.errors import UsageError

PLAIN = "plain"
LOOKS: Mapping[str, Callable[[Tensor], Tensor]] = {
    PLAIN: lambda images: images,
    "hue 120": lambda images: images.roll(1, 1),
    "hue 240": lambda images: images.roll(2, 1),
    "inverted": lambda images: 255 - images,
    "dark": lambda images: images // 2,
    "pale": lambda images: 128 + images // 2,
}
"""What a group's images may look like, in exact bytes: to turn the hue by a third is to swap the channels."""
CHUNK = 4096
"""Images that are turned at a time by an angle other than a right one, which needs four bytes for each."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Turns images counter-clockwise; right angles move whole pixels, others leave black corners."""

    degrees: float
    classes: tuple[int, ...] | None = None
    """Turn the images of these classes only."""

    def __call__(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changed images and the labels."""
        if self.classes is None:
            return self._turned(inputs), labels
        chosen = torch.isin(labels, torch.tensor(self.classes, device=labels.device))
        inputs = inputs.clone()
        inputs[chosen] = self._turned(inputs[chosen])
        return inputs, labels

    def _turned(self, images: Tensor) -> Tensor:
        quarters, rest = divmod(self.degrees % 360, 90)
        # A quarter turn of an oblong image would have another shape.
        if rest == 0 and (quarters % 2 == 0 or images.shape[2] == images.shape[3]):
            return images.rot90(int(quarters), (2, 3))
        parts = (part.float() / 255 for part in images.split(CHUNK))
        turned = [rotate(part, torch.full((len(part),), self.degrees, device=part.device)) for part in parts]
        return (torch.cat(turned) * 255).round().to(torch.uint8)


@dataclass(frozen=True, kw_only=True)
class Recolour:
    """Gives all images one of ``LOOKS``."""

    look: str

    def __call__(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the changed images and the labels."""
        return LOOKS[self.look](inputs), labels


@dataclass(frozen=True, kw_only=True)
class Relabel:
    """Gives the examples of class c the label ``labels[c]``."""

    labels: tuple[int, ...]

    def __call__(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and the changed labels."""
        return inputs, torch.tensor(self.labels, device=labels.device)[labels]


@dataclass(frozen=True, kw_only=True)
class _Shifting(ABC):
    """Clients in groups, each of which has its own shift of the data."""

    title: ClassVar[str]
    images: ClassVar[bool] = True
    """Whether it can change images only."""

    num_clients: int
    num_groups: int = 4
    """1 is the same clients without a shift."""
    alpha: float | None = None
    """Divide the classes by a Dirichlet draw, too; None gives every client the same mix."""
    min_samples: int = 10
    """With ``alpha``: the least number of examples of a client."""
    examples_per_client: int | None = None
    """At most so many examples for each client, those for its test among them where ``test`` is ``client``."""

    def __post_init__(self) -> None:
        if self.alpha is not None:
            check_alpha(self.title, self.alpha)
        if not 1 <= self.num_groups <= max(1, self.num_clients):
            raise UsageError(
                f"{self.title}: num_groups must be in [1, num_clients], got {self.num_groups} for {self.num_clients} "
                "clients.",
                code="out-of-range",
                got=self.num_groups,
                setting="num_groups",
                most=self.num_clients,
            )
        if self.examples_per_client is not None and self.examples_per_client < 1:
            raise UsageError(
                f"{self.title}: examples_per_client must be at least 1, got {self.examples_per_client}.",
                code="out-of-range",
                got=self.examples_per_client,
                setting="examples_per_client",
            )

    def assign(self, data: Dataset, rng: np.random.Generator) -> list[Share]:
        """Return one share for each client; the same seed deals the same examples whatever the shift."""
        if self.images and data.kind != "image":
            raise UsageError(
                f"{self.title}: needs images, and {data.name} holds {data.kind}.",
                code="kind-mismatch",
                data=data.name,
                got=data.kind,
            )
        check_num_clients(self.title, self.num_clients, data)
        if self.alpha is None:
            dealt = Iid(num_clients=self.num_clients).assign(data, rng)
        else:
            rule = Dirichlet(num_clients=self.num_clients, alpha=self.alpha, min_samples=self.min_samples)
            dealt = rule.assign(data, rng)
        if self.examples_per_client is not None:
            dealt = [replace(s, indices=rng.permutation(s.indices)[: self.examples_per_client]) for s in dealt]
        groups = list(self.groups(data, rng).items())
        turns = (groups[i % len(groups)] for i in range(len(dealt)))
        return [replace(share, type=kind, shift=shift) for share, (kind, shift) in zip(dealt, turns, strict=True)]

    @abstractmethod
    def groups(self, data: Dataset, rng: np.random.Generator) -> dict[str, Shift]:
        """Return the shift of each group by the name of its type; the first changes nothing."""


@partition("rotated")
@dataclass(frozen=True, kw_only=True)
class Rotated(_Shifting):
    """Groups of clients whose images are turned, by default by 0, 90, 180 and 270 degrees.

    >>> from fedatlas.data import federate, load_dataset
    >>> federation = federate(load_dataset("digits"), Rotated(num_clients=24, examples_per_client=147), held_out=4)
    >>> federation.types
    ('rotated 0', 'rotated 90', 'rotated 180', 'rotated 270')
    """

    title: ClassVar[str] = "rotated"
    degrees: tuple[float, ...] | None = None
    """The angle of each group; None spaces them equally over the circle."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degrees is None:
            return
        object.__setattr__(self, "degrees", tuple(self.degrees))
        if len(self.degrees) != self.num_groups:
            raise UsageError(
                f"rotated: degrees must be one angle for each of {self.num_groups} groups, got {list(self.degrees)}. "
                "Set num_groups too.",
                code="wrong-count",
                what="degrees",
                got=len(self.degrees),
                wanted=self.num_groups,
            )
        angles = [angle % 360 for angle in self.degrees]
        if not all(map(math.isfinite, angles)) or len(set(angles)) < len(angles):
            raise UsageError(
                f"rotated: degrees must be different angles, got {list(self.degrees)}.",
                code="wrong-value",
                got=self.degrees,
                setting="degrees",
            )

    def groups(self, data: Dataset, rng: np.random.Generator) -> dict[str, Shift]:
        """Return the turn of each group."""
        angles = self.degrees if self.degrees is not None else _angles(self.num_groups)
        return {f"rotated {angle:g}": Turn(degrees=angle) for angle in angles}


@partition("colour-shifted")
@dataclass(frozen=True, kw_only=True)
class ColourShifted(_Shifting):
    """Groups of clients whose images have another hue, are inverted, dark or pale; grey images have no hue.

    >>> list(LOOKS)
    ['plain', 'hue 120', 'hue 240', 'inverted', 'dark', 'pale']
    """

    title: ClassVar[str] = "colour-shifted"

    def groups(self, data: Dataset, rng: np.random.Generator) -> dict[str, Shift]:
        """Return the look of each group."""
        looks = [look for look in LOOKS if data.inputs.shape[1] == 3 or not look.startswith("hue")]
        if self.num_groups > len(looks):
            raise UsageError(
                f"colour-shifted: num_groups must be at most {len(looks)} for the images of {data.name}, got "
                f"{self.num_groups}. They can be {', '.join(looks)}.",
                code="out-of-range",
                got=self.num_groups,
                setting="num_groups",
                most=len(looks),
            )
        return {look: Recolour(look=look) for look in looks[: self.num_groups]}


@dataclass(frozen=True, kw_only=True)
class _ShiftingClasses(_Shifting):
    """Groups of clients in which some classes differ."""

    classes: int | Literal["all"] = 3
    """How many classes of a group differ, drawn for each group."""

    def _count(self, data: Dataset, least: int) -> int:
        """Return how many classes differ; raise UsageError if the data do not have so many."""
        known = len(data.classes)
        count = known if self.classes == "all" else self.classes
        if not isinstance(count, int) or not least <= count <= known:
            raise UsageError(
                f'{self.title}: classes must be in [{least}, {known}] or "all", as {data.name} has {known}; got '
                f"{self.classes!r}.",
                code="out-of-range",
                got=self.classes,
                setting="classes",
                most=known,
            )
        return count


@partition("permuted-labels")
@dataclass(frozen=True, kw_only=True)
class PermutedLabels(_ShiftingClasses):
    """Groups of clients that exchange the labels of some classes, each group but the first in another way.

    Of the chosen classes, by default three, none keeps its label.
    """

    title: ClassVar[str] = "permuted-labels"
    images: ClassVar[bool] = False

    def groups(self, data: Dataset, rng: np.random.Generator) -> dict[str, Shift]:
        """Return the labelling of each group; no two are the same."""
        known, count = len(data.classes), self._count(data, 2)
        most = math.comb(known, count) * _derangements(count)
        if self.num_groups - 1 > most:
            raise UsageError(
                f"permuted-labels: num_groups must be at most {most + 1}, as {count} of {known} classes can be renamed "
                f"in {most} ways; got {self.num_groups}.",
                code="out-of-range",
                got=self.num_groups,
                setting="num_groups",
                most=most + 1,
            )
        labellings = [tuple(range(known))]
        while len(labellings) < self.num_groups:
            chosen = np.sort(rng.choice(known, count, replace=False))
            renamed = rng.permutation(chosen)
            labels = np.arange(known)
            labels[chosen] = renamed
            if (chosen != renamed).all() and tuple(labels.tolist()) not in labellings:
                labellings.append(tuple(labels.tolist()))
        names = ["labels as given", *(f"labels permuted {i}" for i in range(1, self.num_groups))]
        return {name: Relabel(labels=labels) for name, labels in zip(names, labellings, strict=True)}


@partition("conditional-shift")
@dataclass(frozen=True, kw_only=True)
class ConditionalShift(_ShiftingClasses):
    """Groups of clients in which the images of some classes are turned, and those of the others are not.

    The angles are those of ``rotated``. The groups take their classes, by default three, in turns from one random
    order, so that with few groups no class is turned in two of them.
    """

    title: ClassVar[str] = "conditional-shift"

    def groups(self, data: Dataset, rng: np.random.Generator) -> dict[str, Shift]:
        """Return the turn of each group's classes."""
        known, count = len(data.classes), self._count(data, 1)
        order = rng.permutation(known)
        found: dict[str, Shift] = {PLAIN: Turn(degrees=0.0)}
        for group, angle in enumerate(_angles(self.num_groups)[1:]):
            chosen = sorted(int(order[(group * count + i) % known]) for i in range(count))
            some = "/".join([*(data.classes[label] for label in chosen[:3]), *["..."] * (count > 3)])
            found[f"{some} rotated {angle:g}"] = Turn(degrees=angle, classes=tuple(chosen))
        return found


def _angles(count: int) -> list[float]:
    return [360 * i / count for i in range(count)]


def _derangements(count: int) -> int:
    """Return how many permutations of so many things leave none in its place.

    >>> [_derangements(count) for count in range(6)]
    [1, 0, 1, 2, 9, 44]
    """
    found = 1
    for i in range(1, count + 1):
        found = i * found + (-1) ** i
    return found
