"""How the clients' changes become one change: a chain between the weights and the server's rules.

An empty chain is the weighted mean, which is added up while clients still train. A link that needs all changes at once,
such as a median, waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedatlas.parts.part import ServerPart
from fedatlas.parts.types import Cohort, Tensors


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """What a link passes on. After the last one, the sums of changes and of moves under the weights are applied."""

    changes: Sequence[Tensors]
    """Of the shared parameters, one for each upload, until a link makes one of all."""
    moves: Sequence[Tensors]
    """Of the shared buffers, likewise; an empty dictionary leaves them as they were."""
    weights: Tensor
    """float64, with sum 1. A change of weight 0 counts as left out."""
    remarks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the record of the round says of each link, as plain values."""


class Combination(ServerPart):
    """Makes the clients' changes smaller or fewer before they are added up. Subclasses are frozen dataclasses."""

    ignores_weights: ClassVar[bool] = False
    """Whether every client counts the same for it, so that a weighting has no effect."""
    ends: ClassVar[bool] = False
    """Whether it makes one change of all, so that no link can follow."""
    private: ClassVar[bool] = False
    """Whether it promises differential privacy. Nothing else may leave a client then, and it must work on no upload."""

    def combine(self, gathered: Gathered, memory: Tensors, cohort: Cohort) -> tuple[Gathered, Tensors]:
        """Return what is passed on, and the new memory."""
        raise TypeError(f"{type(self).__name__} must define combine()")


def left_in(gathered: Gathered) -> Gathered:
    """Return what the links before have not left out."""
    there = gathered.weights.nonzero()[:, 0]
    places = there.tolist()
    return replace(
        gathered,
        changes=[gathered.changes[place] for place in places],
        moves=[gathered.moves[place] for place in places],
        weights=gathered.weights[there],
    )


def norms(terms: Sequence[Tensors]) -> Tensor:
    """Return the Euclidean norm of each of several sets of tensors, float64: large changes must not overflow."""
    squares = [sum((tensor.double().square().sum() for tensor in one.values()), torch.zeros(())) for one in terms]
    return torch.stack([torch.as_tensor(square).cpu().double() for square in squares]).sqrt()


def scaled(terms: Sequence[Tensors], factors: Tensor) -> list[Tensors]:
    """Return sets of tensors, each times its factor; those of factor 1 stay the same objects."""
    return [
        one if factor == 1 else {name: tensor * factor for name, tensor in one.items()}
        for one, factor in zip(terms, factors.tolist(), strict=True)
    ]


def stacked(terms: Sequence[Tensors], name: str) -> Tensor:
    """Return one tensor of all clients, (clients, ...)."""
    return torch.stack([one[name] for one in terms])
