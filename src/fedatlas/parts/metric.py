"""How a model's outputs are scored: a metric defines a row for each example, and its value over all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.task import CLASSIFICATION, Task
from fedatlas.errors import UsageError
from fedatlas.parts.registry import METRICS, metric
from fedatlas.parts.types import Value
from fedatlas.seeds import numpy_generator

ONE_CLASS, LABELS, NUMBERS, MASKS = "classification", "multi-label", "regression", "segmentation"
RESAMPLES = 200
"""How often the test examples are drawn again for an interval."""
Z = 1.959964
"""The normal distribution's quantile for intervals of 95 %."""


class Metric:
    """A score of a client's test part. Subclasses are frozen dataclasses.

    Examples are scored in batches, on whatever process has time for them; their rows are put together before
    ``value`` sees them. So its bits do not depend on batches or workers.
    """

    name: ClassVar[str]
    higher_is_better: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = (ONE_CLASS,)
    """The tasks that it can score; () is any."""
    axes: ClassVar[int] = 0
    """Of its value: 0 is a number, 1 a number for each class, 2 a number for each pair of classes."""

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the metric's row for each example: a tensor whose first axis is the examples."""
        raise TypeError(f"{type(self).__name__} must define rows()")

    def value(self, rows: Tensor) -> Value:
        """Return the metric over examples, given their rows; NaN where it is undefined."""
        raise TypeError(f"{type(self).__name__} must define value()")

    def pool(self, values: Sequence[Value], sizes: Sequence[int]) -> Value:
        """Return one value for several clients: the mean by test examples, of those for which it is defined."""
        found, weights = np.asarray(values, dtype=float), np.asarray(sizes, dtype=float)
        weights = weights.reshape(-1, *[1] * (found.ndim - 1))
        known = np.isfinite(found)
        total = np.where(known, weights, 0.0).sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(known, found * weights, 0.0).sum(0) / total
        return mean.tolist()  # type: ignore[no-any-return]

    def interval(self, rows: Tensor) -> tuple[float, float] | None:
        """Return where the value would be in 95 of 100 test parts like this one; None for a list of numbers.

        The test examples are drawn again with replacement, and the value is computed each time (the bootstrap's
        percentiles).
        """
        if self.axes:
            return None
        rng = numpy_generator(0, "interval", self.name, len(rows))
        draws = torch.from_numpy(rng.integers(len(rows), size=(RESAMPLES, len(rows)))).to(rows.device)
        values = np.asarray([self.value(rows[own]) for own in draws], dtype=float)
        known = values[np.isfinite(values)]
        if not len(known):
            return None
        low, high = np.quantile(known, [0.025, 0.975]).tolist()
        return low, high


class MeanMetric(Metric):
    """A metric that is the mean over examples; ``rows`` are numbers, or true and false."""

    def value(self, rows: Tensor) -> float:
        """Return the mean, in float64."""
        return int(rows.sum()) / len(rows) if rows.dtype == torch.bool else float(rows.double().mean())

    def interval(self, rows: Tensor) -> tuple[float, float] | None:
        """Return Wilson's interval of a share, or mean ± 1.96 standard errors of numbers."""
        count, mean = len(rows), self.value(rows)
        if rows.dtype != torch.bool:
            if count < 2:
                return None
            half = Z * float(rows.double().std()) / math.sqrt(count)
            return mean - half, mean + half
        # Wilson 1927: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)
        middle, scale = mean + Z * Z / (2 * count), 1 + Z * Z / count
        half = Z * math.sqrt(mean * (1 - mean) / count + Z * Z / (4 * count * count))
        return (middle - half) / scale, (middle + half) / scale


@metric("accuracy")
@dataclass(frozen=True)
class Accuracy(MeanMetric):
    """The share of examples whose largest logit is their label's; of several labels or pixels, the share right."""

    name: ClassVar[str] = "accuracy"
    tasks: ClassVar[tuple[str, ...]] = (ONE_CLASS, LABELS, MASKS)

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether each example is right, or how much of it."""
        if targets.is_floating_point():
            return ((outputs > 0) == (targets > 0.5)).float().mean(1)
        right = outputs.argmax(1) == targets
        return right if targets.ndim == 1 else right.float().flatten(1).mean(1)


@metric("loss")
@dataclass(frozen=True)
class Loss(MeanMetric):
    """The mean of the task's loss, for classes the cross-entropy."""

    task: Task = CLASSIFICATION
    name: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ()

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each example's loss."""
        return self.task.losses(outputs, targets)


@dataclass(frozen=True)
class FunctionMetric(Metric):
    """A metric from a function of all outputs and all targets of a client's test part."""

    title: str
    function: Callable[[Tensor, Tensor], float]
    better: bool = True
    tasks: ClassVar[tuple[str, ...]] = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name in records and tables."""
        return self.title

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        """Whether more is better."""
        return self.better

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Call the function."""
        return self.function(outputs, targets)

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return outputs and targets of each example side by side, and how many numbers each has."""
        columns = [outputs.flatten(1).double(), targets.reshape(len(targets), -1).double()]
        widths = [columns[0].shape[1], 0 if targets.ndim == 1 else columns[1].shape[1]]
        return torch.cat([*columns, columns[0].new_tensor(widths).expand(len(outputs), 2)], 1)

    def value(self, rows: Tensor) -> float:
        """Return the function's value for all examples."""
        wide, several = (int(width) for width in rows[0, -2:])
        outputs, targets = rows[:, :wide].float(), rows[:, wide:-2]
        found = self.function(outputs, targets if several else _whole(targets[:, 0]))
        return float(found)


def _whole(targets: Tensor) -> Tensor:
    """Return classes as whole numbers."""
    return targets.long() if bool((targets == targets.round()).all()) else targets


def metric_function(
    name: str, *, higher_is_better: bool = True
) -> Callable[[Callable[[Tensor, Tensor], float]], FunctionMetric]:
    """Return a decorator that makes a metric of a function, and registers it under a name.

    The function gets the outputs, float32 (examples, outputs), and the targets of a client's test part, and returns a
    number.

        @fedatlas.metric_function("sure", higher_is_better=False)
        def sure(logits, labels):
            return logits.softmax(1).max(1).values.mean()

        fedatlas.Settings(metrics=[sure])
    """

    def decorate(function: Callable[[Tensor, Tensor], float]) -> FunctionMetric:
        made = FunctionMetric(name, function, higher_is_better)
        METRICS.register(name)(lambda: made)
        return made

    return decorate


def always(task: Task) -> tuple[Metric, ...]:
    """Return the metrics of every evaluation of a task: its main one first, then the loss."""
    return METRICS[task.main](), Loss(task)


def make_metrics(chosen: Sequence[str | Metric], task: Task = CLASSIFICATION) -> tuple[Metric, ...]:
    """Return the metrics that are chosen beside those of every evaluation, by name or as they are.

    >>> [one.name for one in make_metrics(["macro_f1"])]
    ['macro_f1']
    """
    found: dict[str, Metric] = {}
    for one in chosen:
        made = METRICS[one]() if isinstance(one, str) else one
        if not isinstance(made, Metric):
            raise UsageError(
                f"a metric must be a name or a fedatlas.Metric, got {one!r}. `fedatlas list metrics` shows the names; "
                "@fedatlas.metric_function makes one of a function.",
                code="wrong-type",
                setting="metrics",
                got=one,
            )
        if made.tasks and task.name not in made.tasks:
            fitting = [name for name in METRICS if task.name in (tasks := METRICS[name]().tasks) or not tasks]
            raise UsageError(
                f"the metric {made.name} scores {' and '.join(made.tasks)}, and the task is {task.name}. Use one of "
                f"{', '.join(fitting)}.",
                code="task-unfit",
                got=made.name,
                known=fitting,
            )
        found[made.name] = made
    regular = {one.name for one in always(task)}
    return tuple(own for name, own in found.items() if name not in regular)


def known_metrics(names: Sequence[str], task: Task) -> tuple[Metric, ...]:
    """Return a run's metrics that are known here by name; a function is known where its file was imported."""
    return make_metrics([name for name in names if name in METRICS], task)
