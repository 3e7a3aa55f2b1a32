"""Metrics of predicted numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.parts.metric import NUMBERS, MeanMetric, Metric
from fedatlas.parts.registry import metric
from fedatlas.parts.types import Value


@metric("mae")
@dataclass(frozen=True)
class MeanAbsoluteError(MeanMetric):
    """The mean of the absolute errors."""

    name: ClassVar[str] = "mae"
    higher_is_better: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = (NUMBERS,)

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each example's mean absolute error."""
        return (outputs - targets).abs().mean(1)


@metric("rmse")
@dataclass(frozen=True)
class RootMeanSquareError(Metric):
    """The square root of the mean of the squared errors."""

    name: ClassVar[str] = "rmse"
    higher_is_better: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = (NUMBERS,)

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each example's mean squared error."""
        return (outputs - targets).square().mean(1)

    def value(self, rows: Tensor) -> float:
        """Return the root of the mean."""
        return math.sqrt(float(rows.double().mean()))

    def pool(self, values: Sequence[Value], sizes: Sequence[int]) -> Value:
        """Return the root of the mean over all clients' examples."""
        squares = super().pool([float(value) ** 2 for value in values], sizes)  # type: ignore[arg-type]
        return math.sqrt(squares)  # type: ignore[arg-type]


@metric("r2")
@dataclass(frozen=True)
class Determination(Metric):
    """The share of the targets' variance that is explained (R²), the mean over outputs."""

    name: ClassVar[str] = "r2"
    tasks: ClassVar[tuple[str, ...]] = (NUMBERS,)

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return (examples, 2, outputs): predictions and targets."""
        return torch.stack([outputs, targets], 1)

    def value(self, rows: Tensor) -> float:
        """Return the mean over outputs of 1 - sum (y - f)² / sum (y - mean y)²; NaN where targets do not vary."""
        found, wanted = rows.double().unbind(1)
        spread = (wanted - wanted.mean(0)).square().sum(0)
        known = spread > 0
        if not bool(known.any()):
            return math.nan
        return float((1 - (wanted - found).square().sum(0)[known] / spread[known]).mean())
