"""What a model has to say about an example: one class, several labels, numbers, or a class for each pixel.

A task knows the form of the targets, the loss, and the metric by which results are compared. ``Dataset.labels`` holds
the targets, and ``Dataset.classes`` names the model's outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.errors import DataError, UsageError, unknown_name


@dataclass(frozen=True)
class Task:
    """What is to be predicted. Subclasses define the form of the targets and the loss."""

    name: ClassVar[str]
    main: ClassVar[str]
    """The metric by which clients, rounds and runs are compared."""
    dtype: ClassVar[torch.dtype]
    """The type of the targets."""
    outputs: ClassVar[str] = "classes"
    """What the model's outputs stand for, in a word."""
    takes_further: ClassVar[bool] = False
    """Whether data may lack some of the outputs: of classes yes, of columns no."""

    @property
    def has_classes(self) -> bool:
        """Whether every example has exactly one class."""
        return False

    def output_shape(self, num_outputs: int, target: torch.Size) -> tuple[int, ...]:
        """Return the shape of the model's output for one example, given that of its target."""
        return (num_outputs,)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, (examples,)."""
        raise NotImplementedError

    def counts(self, targets: Tensor, num_outputs: int) -> Tensor:
        """Return how many examples have each class, float32; nothing where there are no classes."""
        raise NotImplementedError

    def strata(self, targets: Tensor) -> Tensor:
        """Return int64 (examples,): what a random split keeps in proportion."""
        return torch.zeros(len(targets), dtype=torch.int64)

    def stand_ins(self, count: int, num_outputs: int, example: Sequence[int]) -> Tensor:
        """Return targets in the right form, in place of some that are not known; ``example`` is an input's shape."""
        return torch.zeros(count, num_outputs)

    def renumbered(self, targets: Tensor, places: Tensor) -> Tensor:
        """Return the targets where output i has become output ``places[i]``; all outputs are there."""
        return targets[:, places.argsort()]

    def check(self, name: str, inputs: Tensor, targets: Tensor, num_outputs: int) -> None:
        """Raise DataError if the targets do not have the form of this task."""
        axes = self._axes(inputs)
        if targets.dtype != self.dtype or targets.ndim != axes:
            raise DataError(
                f"{name}: the targets of {self.name} must be {str(self.dtype)[6:]} with {axes} axes; got "
                f"{str(targets.dtype)[6:]} of shape {tuple(targets.shape)}.",
                code="wrong-shape",
                what="labels",
                got=targets.dtype,
                shape=tuple(targets.shape),
            )
        self._check_values(name, inputs, targets, num_outputs)

    def _axes(self, inputs: Tensor) -> int:
        return 2

    def _check_values(self, name: str, inputs: Tensor, targets: Tensor, num_outputs: int) -> None:
        if targets.shape[1] != num_outputs:
            raise DataError(
                f"{name}: {targets.shape[1]} columns of targets but {num_outputs} names; name each (classes=).",
                code="wrong-count",
                what="labels",
                got=targets.shape[1],
                wanted=num_outputs,
            )


@dataclass(frozen=True)
class Classification(Task):
    """One class for each example; the loss is the cross-entropy."""

    name: ClassVar[str] = "classification"
    takes_further: ClassVar[bool] = True
    main: ClassVar[str] = "accuracy"
    dtype: ClassVar[torch.dtype] = torch.int64

    @property
    def has_classes(self) -> bool:
        """Whether every example has exactly one class: yes."""
        return True

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``-log softmax(outputs)[target]`` for each example."""
        return F.cross_entropy(outputs, targets, reduction="none")

    def counts(self, targets: Tensor, num_outputs: int) -> Tensor:
        """Return how many examples each class has."""
        return torch.bincount(targets, minlength=num_outputs).float()

    def strata(self, targets: Tensor) -> Tensor:
        """Return the classes."""
        return targets

    def stand_ins(self, count: int, num_outputs: int, example: Sequence[int]) -> Tensor:
        """Return one class after another."""
        return torch.arange(count) % num_outputs

    def renumbered(self, targets: Tensor, places: Tensor) -> Tensor:
        """Return the classes by their new numbers."""
        return places[targets]

    def _axes(self, inputs: Tensor) -> int:
        return 1

    def _check_values(self, name: str, inputs: Tensor, targets: Tensor, num_outputs: int) -> None:
        check_range(name, targets, num_outputs)


@dataclass(frozen=True)
class MultiLabel(Task):
    """Any number of labels for each example, as a row of zeros and ones; the loss is the binary cross-entropy."""

    name: ClassVar[str] = "multi-label"
    main: ClassVar[str] = "accuracy"
    dtype: ClassVar[torch.dtype] = torch.float32

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each example's mean over labels of the binary cross-entropy."""
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)

    def counts(self, targets: Tensor, num_outputs: int) -> Tensor:
        """Return how many examples have each label."""
        return targets.sum(0).float()

    def _check_values(self, name: str, inputs: Tensor, targets: Tensor, num_outputs: int) -> None:
        super()._check_values(name, inputs, targets, num_outputs)
        if not bool(((targets == 0) | (targets == 1)).all()):
            raise DataError(
                f"{name}: the targets of {self.name} must be 0 or 1. Give one column a label.",
                code="out-of-range",
                what="labels",
            )


@dataclass(frozen=True)
class Regression(Task):
    """Numbers for each example, as a row; the loss is the mean square of the errors."""

    name: ClassVar[str] = "regression"
    main: ClassVar[str] = "rmse"
    dtype: ClassVar[torch.dtype] = torch.float32
    outputs: ClassVar[str] = "numbers"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each example's mean over outputs of the squared error."""
        return F.mse_loss(outputs, targets, reduction="none").mean(1)

    def counts(self, targets: Tensor, num_outputs: int) -> Tensor:
        """Return nothing: there are no classes."""
        return torch.zeros(0)

    def _check_values(self, name: str, inputs: Tensor, targets: Tensor, num_outputs: int) -> None:
        super()._check_values(name, inputs, targets, num_outputs)
        if not bool(targets.isfinite().all()):
            where = int((~targets.isfinite()).any(1).nonzero()[0])
            raise DataError(
                f"{name}: targets hold NaN or infinity, first at example {where}. Clean or drop it.",
                code="not-finite",
                what="labels",
                example=where,
            )


@dataclass(frozen=True)
class Segmentation(Task):
    """A class for each pixel, as a mask; the loss is the mean cross-entropy over pixels."""

    name: ClassVar[str] = "segmentation"
    takes_further: ClassVar[bool] = True
    main: ClassVar[str] = "iou"
    dtype: ClassVar[torch.dtype] = torch.int64

    def output_shape(self, num_outputs: int, target: torch.Size) -> tuple[int, ...]:
        """Return (classes, *mask): a logit for each class of each pixel."""
        return (num_outputs, *target)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each example's mean over pixels of the cross-entropy."""
        return F.cross_entropy(outputs, targets, reduction="none").flatten(1).mean(1)

    def counts(self, targets: Tensor, num_outputs: int) -> Tensor:
        """Return in how many examples each class occurs."""
        flat = targets.flatten(1)
        return torch.stack([(flat == label).any(1).sum() for label in range(num_outputs)]).float()

    def stand_ins(self, count: int, num_outputs: int, example: Sequence[int]) -> Tensor:
        """Return masks of the first class."""
        return torch.zeros(count, *example[1:], dtype=torch.int64)

    def renumbered(self, targets: Tensor, places: Tensor) -> Tensor:
        """Return the masks by the classes' new numbers."""
        return places[targets]

    def _axes(self, inputs: Tensor) -> int:
        return inputs.ndim - 1

    def _check_values(self, name: str, inputs: Tensor, targets: Tensor, num_outputs: int) -> None:
        if targets.shape[1:] != inputs.shape[2:]:
            raise DataError(
                f"{name}: masks of shape {tuple(targets.shape[1:])} for inputs of shape {tuple(inputs.shape[2:])}; "
                "give each pixel a class.",
                code="wrong-shape",
                what="labels",
                got=targets.dtype,
                shape=tuple(targets.shape),
            )
        check_range(name, targets, num_outputs)


CLASSIFICATION = Classification()
TASKS: dict[str, Task] = {task.name: task for task in (CLASSIFICATION, MultiLabel(), Regression(), Segmentation())}
"""The tasks by name."""


def find_task(name: str) -> Task:
    """Return a task by name.

    >>> find_task("regression").main
    'rmse'
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name]


def check_range(name: str, labels: Tensor, num_classes: int) -> None:
    """Raise DataError if a label is not the number of a class."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        outside = ((labels < 0) | (labels >= num_classes)).flatten(1) if labels.ndim > 1 else None
        wrong = (labels < 0) | (labels >= num_classes) if outside is None else outside.any(1)
        where = int(wrong.nonzero()[0])
        got = int(labels[where]) if labels.ndim == 1 else low if low < 0 else high
        raise DataError(
            f"{name}: labels must be in [0, {num_classes}), got {got} at example {where}. "
            "Renumber the labels or name all classes.",
            code="out-of-range",
            got=got,
            what="labels",
            example=where,
        )


def require_classes(task: Task, what: str, do: str = "Use another, such as fedavg.") -> None:
    """Raise UsageError if a task does not give each example one class; ``what`` needs that."""
    if not task.has_classes:
        raise UsageError(
            f"{what} needs one class for each example, and the task is {task.name}. {do}",
            code="task-unfit",
            got=task.name,
            what=what,
        )


def class_labels(task: Task, targets: Tensor, what: str) -> Any:
    """Return the classes of examples as an array of numpy; raise UsageError if the task has none."""
    require_classes(task, what)
    return targets.cpu().numpy()
