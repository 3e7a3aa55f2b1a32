"""How much each client counts: weightings that chain, each taking and returning weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.parts.part import ServerPart
from fedatlas.parts.types import Cohort, Tensors


class Weighting(ServerPart):
    """Turns weights into weights. The first of a chain gets equal ones; the result is normalised after the last."""

    foreseeable: ClassVar[bool] = False
    """Whether it looks at nothing of the answers but how many examples each client has."""
    bounds: ClassVar[bool] = False
    """Whether it promises to bound what one client can do, so that no server rule may go past the weights."""

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Return one weight for each upload, float64 and in the uploads' order, and the new memory."""
        raise TypeError(f"{type(self).__name__} must define weigh()")


@dataclass(frozen=True, kw_only=True)
class ByExamples(Weighting):
    """FedAvg's weights: each upload counts by its number of training examples, n_k / sum n, for each of its draws."""

    name: ClassVar[str] = "examples"
    foreseeable: ClassVar[bool] = True

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Multiply the weights by the numbers of examples, and by the numbers of draws."""
        sizes = torch.tensor([float(upload.num_examples) for upload in cohort.uploads], dtype=torch.float64)
        return weights * sizes * _draws(cohort), memory


@dataclass(frozen=True, kw_only=True)
class Equal(Weighting):
    """Every upload counts the same; a client drawn twice counts twice."""

    name: ClassVar[str] = "equal"
    foreseeable: ClassVar[bool] = True

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Replace the weights by the number of draws."""
        return _draws(cohort), memory


def _draws(cohort: Cohort) -> Tensor:
    """Return how often each upload's client was drawn, float64; 1 unless the sampler draws with replacement."""
    draws = [float(cohort.draws.get(upload.client, 1)) for upload in cohort.uploads]
    return torch.tensor(draws, dtype=torch.float64)
