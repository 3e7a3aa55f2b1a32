"""What leaves a client beyond the model's change: every part declares it, tensor by tensor.

Message checks, ``fedatlas list --disclosures`` and the docs read the declarations; ``check_algorithm`` compares
them with the messages of clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol

import torch
from torch import nn

from fedatlas.errors import UsageError
from fedatlas.models.head import find_head, head_parameters
from fedatlas.parts.types import Memory, Tensors

When = Literal["hello", "atlas", "introduction", "losses", "survey", "upload", "note", "check"]
"""With the client's name; while an atlas is made; by ``introduce``; where the losses of models are asked for; by
``survey`` or ``finish``; in the server's notes to other clients; or for a check of all clients' data."""
CHECKED: tuple[When, ...] = ("introduction", "losses", "survey", "upload")
Sender = Literal["everyone", "training", "stepping", "some"]
SENDERS: tuple[Sender, ...] = ("everyone", "training", "stepping", "some")


class Each(Enum):
    """Names that only the network knows. Such a tensor has the type and the shape of its parameter."""

    SHARED = "each shared parameter"
    HEAD = "each parameter of the head"


@dataclass(frozen=True)
class UpTo:
    """The length of an axis that depends on the client's data, with its bound: a number or a setting of the part."""

    most: int | str

    def __str__(self) -> str:
        return f"up to {self.most}"


Axis = int | str | UpTo | None
"""A length; ``classes``, ``features`` (the head's inputs), ``channels``, or ``inputs``, which stands for all axes of an
example; the name of one of the part's settings; a bound; or None, any length."""


@dataclass(frozen=True)
class Disclosure:
    """One tensor, or one kind of tensor, that a part takes from a client."""

    name: str | Each
    """The tensor's key."""
    why: str
    """What it shows about the client, in words."""
    when: When = "upload"
    axes: tuple[Axis, ...] = ()
    dtype: torch.dtype = torch.float32
    sender: Sender = "everyone"
    """Who sends it: everyone that is asked, everyone that may train, everyone that took a step, or some. A part sends
    all that it declares for a time, or nothing."""

    def row(self) -> tuple[str, str, str, str]:
        """Return the tensor's name, its type and shape, when it leaves and what it shows, for a table.

        >>> Disclosure("label_counts", "examples of each class", "introduction", ("classes",)).row()
        ('label_counts', 'float32 (classes)', 'introduction', 'examples of each class')
        """
        if isinstance(self.name, Each):
            return self.name.value, "as the parameter", self.when, self.why
        return self.name, f"{_text(self.dtype)} ({_text(self.axes)})", self.when, self.why


class Discloses(Protocol):
    """A part, as its declarations show it."""

    @property
    def name(self) -> str:
        """The part's name."""
        ...

    @property
    def discloses(self) -> tuple[Disclosure, ...]:
        """What leaves a client for this part."""
        ...


def words(disclosures: Iterable[Disclosure]) -> list[str]:
    """Return the disclosures in words, each line once."""
    return list(dict.fromkeys(disclosure.why for disclosure in disclosures))


@dataclass(frozen=True)
class Shape:
    """The type and the axes of a tensor; None is an axis of any length."""

    dtype: torch.dtype
    axes: tuple[int | UpTo | None, ...]

    def fits(self, dtype: torch.dtype, axes: tuple[int, ...]) -> bool:
        """Return whether a tensor of this type and these axes is one of these."""
        return (
            self.dtype == dtype
            and len(axes) == len(self.axes)
            and all(_fits(own, found) for own, found in zip(self.axes, axes, strict=True))
        )

    def __str__(self) -> str:
        return f"{_text(self.dtype)} of shape ({_text(self.axes)})"


Shapes = dict[str, Shape]
Form = tuple[torch.dtype, tuple[int, ...]]
"""The type and the axes of one tensor."""


def shapes(tensors: Tensors) -> Shapes:
    """Return the shapes of tensors."""
    return {name: Shape(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Declared:
    """The tensors that clients may send at one time, by part."""

    shapes: Mapping[str, Shapes] = field(default_factory=dict)
    senders: Mapping[str, Sender] = field(default_factory=dict)
    """Which clients send the tensors that a part declares."""

    def fault(self, reply: Memory, *, held_out: bool = False, stepped: bool = True) -> str | None:
        """Return the fault in a client's reply, or None."""
        for part, tensors in reply.items():
            forms = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
            if tensors and (fault := self.fault_in_part(part, forms)):
                return fault
        return self.missing_part({p for p, tensors in reply.items() if tensors}, held_out=held_out, stepped=stepped)

    def missing_part(self, found: set[str], *, held_out: bool, stepped: bool) -> str | None:
        """Return which part is missing in a client's reply, or None."""
        excused = {"some", *(["training"] if held_out else []), *([] if stepped else ["stepping"])}
        missing = sorted(part for part, sender in self.senders.items() if sender not in excused and part not in found)
        return f"{missing[0]} did not say {next(iter(self.shapes[missing[0]]))!r}" if missing else None

    def fault_in_part(self, part: str, found: Mapping[str, Form]) -> str | None:
        """Return the fault in one part's tensors, or None."""
        known = self.shapes.get(part)
        if known is None:
            return f"{part!r} is not a part that says something here"
        if strange := sorted(found.keys() ^ known.keys()):
            name = strange[0]
            return f"{part}: {name!r} is unknown" if name in found else f"{part} did not say {name!r}"
        for name, form in found.items():
            if not known[name].fits(*form):
                return f"{part} {name}: {Shape(*form)}, wanted {known[name]}"
        return None


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The lengths and shapes that declarations refer to by name."""

    lengths: Mapping[str, int | None]
    inputs: tuple[int, ...]
    """The axes of one example."""
    shared: Shapes
    network: nn.Module

    @classmethod
    def of(cls, network: nn.Module, shared: Tensors, inputs: tuple[int, ...], num_classes: int) -> Dimensions:
        """Return the dimensions of a network with its extensions, and of its data."""
        try:
            head = find_head(network)
        except UsageError:  # a custom model need not have one
            head = network
        width = head.in_features if isinstance(head, nn.Linear) else None
        lengths = {"classes": num_classes, "features": width, "channels": inputs[0] if len(inputs) > 1 else None}
        return cls(lengths=lengths, inputs=tuple(inputs), shared=shapes(shared), network=network)

    def resolve(self, part: Discloses, disclosure: Disclosure) -> Shapes:
        """Return the tensors that a part declares, by name."""
        if disclosure.name is Each.SHARED:
            return dict(self.shared)
        if isinstance(disclosure.name, Each):
            parameters = dict(self.network.named_parameters())
            return shapes({name: parameters[name] for name in head_parameters(self.network)})
        axes: list[int | UpTo | None] = []
        for axis in disclosure.axes:
            axes += self.inputs if axis == "inputs" else [self._axis(part, axis)]
        return {disclosure.name: Shape(disclosure.dtype, tuple(axes))}

    def _axis(self, part: Discloses, axis: Axis) -> int | UpTo | None:
        if isinstance(axis, UpTo):
            return UpTo(getattr(part, axis.most)) if isinstance(axis.most, str) else axis
        if isinstance(axis, str):
            return self.lengths[axis] if axis in self.lengths else int(getattr(part, axis))
        return axis


def declared(parts: Iterable[Discloses], when: When, dimensions: Dimensions) -> Declared:
    """Return the tensors that clients of an algorithm with these parts may send at a time."""
    found: dict[str, Shapes] = {}
    senders: dict[str, Sender] = {}
    for part in parts:
        for disclosure in (one for one in part.discloses if one.when == when):
            found.setdefault(part.name, {}).update(dimensions.resolve(part, disclosure))
            senders[part.name] = max(senders.get(part.name, "everyone"), disclosure.sender, key=SENDERS.index)
    return Declared(found, senders)


def _fits(own: int | UpTo | None, found: int) -> bool:
    if isinstance(own, UpTo):
        return found <= int(own.most)
    return own is None or own == found


def _text(what: torch.dtype | tuple[Axis, ...]) -> str:
    if isinstance(what, torch.dtype):
        return str(what).removeprefix("torch.")
    return ", ".join("any" if axis is None else str(axis) for axis in what)
