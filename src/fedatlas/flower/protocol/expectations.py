"""What answers must look like, found out by playing two rounds with made-up examples.

A part may send tensors whose shapes only it knows. So the server lets a few clients of its own, with random examples,
train in its process, and takes names, types and shapes from what they say. An axis whose length differs from client to
client or from round to round depends on the data and may have any length.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from fedatlas.client.work import LocalWork
from fedatlas.engines.simulator import Simulator
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.types import Memory, Tensors
from fedatlas.training.rounds import play

SIZES = (6, 11, 1, 7)
"""Examples of the made-up clients; a part may have nothing to say of a single one."""
ROUNDS = 2


@dataclass(frozen=True)
class Shape:
    """The type and the axes of a tensor; None is an axis of any length, and no axes at all a tensor of any form."""

    dtype: torch.dtype
    axes: tuple[int | None, ...] | None

    def united(self, other: Shape) -> Shape:
        """Return the shape that both are examples of."""
        if self.axes is None or other.axes is None or len(self.axes) != len(other.axes):
            return Shape(self.dtype, None)
        return Shape(self.dtype, tuple(a if a == b else None for a, b in zip(self.axes, other.axes, strict=True)))

    def fits(self, dtype: torch.dtype, axes: tuple[int, ...]) -> bool:
        """Tell whether a tensor of this type and these axes is one of these."""
        if self.dtype != dtype:
            return False
        if self.axes is None:
            return True
        return len(axes) == len(self.axes) and all(
            own is None or own == found for own, found in zip(self.axes, axes, strict=True)
        )

    def __str__(self) -> str:
        axes = "of any shape" if self.axes is None else f"of shape ({', '.join(map(str, self.axes))})"
        return f"{str(self.dtype).removeprefix('torch.')} {axes}".replace("None", "any")


Shapes = dict[str, Shape]


@dataclass(frozen=True)
class Said:
    """What one kind of answer holds, part by part."""

    shapes: Mapping[str, Shapes] = field(default_factory=dict)
    always: frozenset[tuple[str, str]] = frozenset()
    """The parts and names that are in every answer."""


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """What every kind of answer looks like."""

    change: Shapes
    buffers: Shapes
    notes: Said = Said()
    surveys: Said = Said()
    introductions: Said = Said()


def shapes(tensors: Tensors) -> Shapes:
    """Return the shapes of tensors."""
    return {name: Shape(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def expect(algorithm: Algorithm, network: nn.Module, form: DataForm, members: Sequence[Member]) -> Expectations:
    """Return what an algorithm's clients will send."""
    trained = [member for member in members if not member.held_out][: len(SIZES)]
    federation = form.stand_in(trained, SIZES[: len(trained)])
    with Simulator(algorithm, copy.deepcopy(network), federation, work=LocalWork(batch_size=4), workers=1) as clients:
        # What a part knows of a client, such as its row in an atlas, may go by its true size.
        clients.roster = [replace(c, num_examples=m.num_train) for c, m in zip(clients.roster, trained, strict=True)]
        shared, buffers, _ = clients.initial()
        notes: list[Memory] = []
        surveys: list[Memory] = []
        for found in play(algorithm, clients, rounds=ROUNDS):
            notes += [upload.notes for upload in found.uploads]
            surveys += found.surveys.values()
    return Expectations(
        change=shapes(shared),
        buffers=shapes(buffers),
        notes=_said(notes),
        surveys=_said(surveys),
        introductions=_said(client.introduction for client in clients.roster),
    )


def _said(answers: Iterable[Memory]) -> Said:
    heard: dict[str, Shapes] = {}
    always: frozenset[tuple[str, str]] | None = None
    for answer in answers:
        names = frozenset((part, name) for part, tensors in answer.items() for name in tensors)
        always = names if always is None else always & names
        for part, tensors in answer.items():
            heard[part] = _united(heard.get(part, {}), shapes(tensors))
    return Said(heard, always or frozenset())


def _united(one: Shapes, other: Shapes) -> Shapes:
    both = {name: one[name].united(other[name]) for name in one.keys() & other.keys()}
    return {**one, **other, **both}
