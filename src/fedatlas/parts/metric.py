"""How a model's outputs are scored: a metric defines a row for each example, and its value over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedatlas.parts.registry import METRICS, metric


class Metric:
    """One number for a client's test part. Subclasses are frozen dataclasses.

    Examples are scored in batches, on whatever process has time for them; their rows are put together before
    ``value`` sees them. So its bits do not depend on batches or workers.
    """

    name: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the metric's row for each example: a tensor whose first axis is the examples."""
        raise TypeError(f"{type(self).__name__} must define rows()")

    def value(self, rows: Tensor) -> float:
        """Return the metric over examples, given their rows."""
        raise TypeError(f"{type(self).__name__} must define value()")


@metric("accuracy")
@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of examples whose largest logit is their label's."""

    name: ClassVar[str] = "accuracy"

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return whether each example is right."""
        return logits.argmax(1) == labels

    def value(self, rows: Tensor) -> float:
        """Return the share of right ones."""
        return int(rows.sum()) / len(rows)


@metric("loss")
@dataclass(frozen=True)
class Loss(Metric):
    """The mean cross-entropy."""

    name: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False

    def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return each example's cross-entropy."""
        return F.cross_entropy(logits, labels, reduction="none")

    def value(self, rows: Tensor) -> float:
        """Return the mean, in float64."""
        return float(rows.double().mean())


ALWAYS: tuple[Metric, ...] = (Accuracy(), Loss())
"""The metrics of every evaluation; a run may ask for more."""


def make_metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Return metrics by name.

    >>> [one.name for one in make_metrics(["accuracy"])]
    ['accuracy']
    """
    return tuple(METRICS[name]() for name in names)
