"""Metrics of classes and labels: per class, rank and probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.parts.metric import LABELS, MASKS, ONE_CLASS, MeanMetric, Metric
from fedatlas.parts.registry import metric
from fedatlas.parts.types import Value

Numbers = NDArray[np.float64]
BINS = 15
"""Of equal width, for the calibration error."""


@dataclass(frozen=True)
class TopK(MeanMetric):
    """The share of examples whose label is among the ``k`` largest logits."""

    k: int = 5

    @property
    def name(self) -> str:  # type: ignore[override]
        """``top_`` and the number."""
        return f"top_{self.k}"

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether each example's label is among the largest."""
        return (outputs.topk(min(self.k, outputs.shape[1])).indices == targets[:, None]).any(1)


@metric("top_3")
def top_3() -> TopK:
    """The share of examples whose label is among the 3 largest logits."""
    return TopK(3)


@metric("top_5")
def top_5() -> TopK:
    """The share of examples whose label is among the 5 largest logits."""
    return TopK(5)


class Counted(Metric):
    """A metric of counts: for each example and class its true positives, false positives and false negatives."""

    tasks: ClassVar[tuple[str, ...]] = (ONE_CLASS, LABELS, MASKS)

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return int32 (examples, 3, classes): hits, wrong alarms and misses."""
        if targets.is_floating_point():
            found, wanted = outputs > 0, targets > 0.5
        else:
            classes = torch.arange(outputs.shape[1], device=outputs.device)
            predicted = outputs.argmax(1).reshape(len(outputs), -1, 1)
            found, wanted = predicted == classes, targets.reshape(len(targets), -1, 1) == classes
            hits, alarms, misses = (found & wanted).sum(1), (found & ~wanted).sum(1), (~found & wanted).sum(1)
            return torch.stack([hits, alarms, misses], 1).int()
        return torch.stack([found & wanted, found & ~wanted, ~found & wanted], 1).int()

    def counts(self, rows: Tensor) -> Numbers:
        """Return hits, wrong alarms and misses of each class, over all examples."""
        found: Numbers = rows.sum(0).double().cpu().numpy()
        return found


@metric("recall_per_class")
@dataclass(frozen=True)
class RecallPerClass(Counted):
    """For each class, the share of its test examples that are recognised; nothing where a client has none."""

    name: ClassVar[str] = "recall_per_class"
    axes: ClassVar[int] = 1

    def value(self, rows: Tensor) -> Value:
        """Return TP / (TP + FN) for each class, NaN where the class does not occur."""
        hits, _, misses = self.counts(rows)
        return _ratio(hits, hits + misses).tolist()  # type: ignore[no-any-return]


@metric("macro_f1")
@dataclass(frozen=True)
class MacroF1(Counted):
    """The mean over classes of the harmonic mean of precision and recall; classes that do not occur are left out."""

    name: ClassVar[str] = "macro_f1"

    def value(self, rows: Tensor) -> float:
        """Return the mean over classes of 2 TP / (2 TP + FP + FN), of those that occur or are predicted."""
        hits, alarms, misses = self.counts(rows)
        return _mean(_ratio(2 * hits, 2 * hits + alarms + misses))


@metric("weighted_f1")
@dataclass(frozen=True)
class WeightedF1(Counted):
    """The mean over classes of the harmonic mean of precision and recall, by how often a class occurs."""

    name: ClassVar[str] = "weighted_f1"

    def value(self, rows: Tensor) -> float:
        """Return the mean of 2 TP / (2 TP + FP + FN), weighted by TP + FN."""
        hits, alarms, misses = self.counts(rows)
        support = hits + misses
        scores = np.nan_to_num(_ratio(2 * hits, 2 * hits + alarms + misses))
        return float((scores * support).sum() / support.sum()) if support.sum() else math.nan


class Ranked(Metric):
    """A metric of how the probabilities of a class rank the examples."""

    tasks: ClassVar[tuple[str, ...]] = (ONE_CLASS, LABELS)

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return float32 (examples, 2, classes): the probability of each class, and whether it is right."""
        if targets.is_floating_point():
            return torch.stack([outputs.sigmoid(), targets], 1)
        right = torch.nn.functional.one_hot(targets, outputs.shape[1])
        found = torch.stack([outputs.softmax(1), right.to(outputs.dtype)], 1)
        # Of two classes one says all: the probability of the second.
        return found[:, :, 1:] if outputs.shape[1] == 2 else found

    def value(self, rows: Tensor) -> float:
        """Return the mean over the classes that some examples have and some do not; NaN if there are none."""
        scores, truth = rows.double().cpu().numpy().transpose(1, 2, 0)
        able = [(score, right) for score, right in zip(scores, truth > 0.5, strict=True) if 0 < right.mean() < 1]
        return _mean(np.array([self.of_class(score, right) for score, right in able]))

    def of_class(self, scores: Numbers, right: NDArray[np.bool_]) -> float:
        """Return the value for one class, given the examples' probabilities and which ones have it."""
        raise NotImplementedError


@metric("auroc")
@dataclass(frozen=True)
class Auroc(Ranked):
    """The area under the ROC curve, one class against the rest, the mean over classes."""

    name: ClassVar[str] = "auroc"

    def of_class(self, scores: Numbers, right: NDArray[np.bool_]) -> float:
        """Return the chance that an example of the class gets a higher probability than another example."""
        from scipy.stats import rankdata

        ranks, count = rankdata(scores)[right].sum(), int(right.sum())
        return float((ranks - count * (count + 1) / 2) / (count * (len(right) - count)))


@metric("auprc")
@dataclass(frozen=True)
class Auprc(Ranked):
    """The area under the precision-recall curve (average precision), the mean over classes."""

    name: ClassVar[str] = "auprc"

    def of_class(self, scores: Numbers, right: NDArray[np.bool_]) -> float:
        """Return the average precision."""
        from sklearn.metrics import average_precision_score

        return float(average_precision_score(right, scores))


@metric("calibration_error")
@dataclass(frozen=True)
class CalibrationError(Metric):
    """How far the stated probability is from the share of right ones: the mean over 15 bins, by examples."""

    name: ClassVar[str] = "calibration_error"
    higher_is_better: ClassVar[bool] = False

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each example's largest probability, and whether it was right."""
        sure, predicted = outputs.softmax(1).max(1)
        return torch.stack([sure, (predicted == targets).to(sure.dtype)], 1)

    def value(self, rows: Tensor) -> float:
        """Return sum over bins of n_bin / n |mean probability - share right|."""
        sure, right = rows.double().cpu().numpy().T
        places = np.minimum((sure * BINS).astype(int), BINS - 1)
        gaps = np.bincount(places, sure - right, minlength=BINS)
        return float(np.abs(gaps).sum() / len(sure))


@metric("confusion")
@dataclass(frozen=True)
class Confusion(Metric):
    """How many examples of each class (row) were taken for each class (column)."""

    name: ClassVar[str] = "confusion"
    axes: ClassVar[int] = 2

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return label, prediction and the number of classes, which a client may not show."""
        classes = torch.full_like(targets, outputs.shape[1])
        return torch.stack([targets, outputs.argmax(1), classes], 1)

    def value(self, rows: Tensor) -> Value:
        """Return the counts."""
        labels, predicted, classes = rows.cpu().unbind(1)
        count = int(classes[0])
        return torch.bincount(labels * count + predicted, minlength=count**2).reshape(count, count).tolist()

    def pool(self, values: Sequence[Value], sizes: Sequence[int]) -> Value:
        """Return the clients' counts, added up."""
        return np.sum([np.asarray(own) for own in values], 0).tolist()  # type: ignore[no-any-return]


@metric("dice")
@dataclass(frozen=True)
class Dice(Counted):
    """Twice the overlap of predicted and true pixels by the sum of both, the mean over classes that occur."""

    name: ClassVar[str] = "dice"
    tasks: ClassVar[tuple[str, ...]] = (MASKS,)

    def value(self, rows: Tensor) -> float:
        """Return the mean over classes of 2 TP / (2 TP + FP + FN), over the pixels of all examples."""
        hits, alarms, misses = self.counts(rows)
        return _mean(_ratio(2 * hits, 2 * hits + alarms + misses))


@metric("iou")
@dataclass(frozen=True)
class Iou(Counted):
    """The overlap of predicted and true pixels by their union, the mean over classes that occur."""

    name: ClassVar[str] = "iou"
    tasks: ClassVar[tuple[str, ...]] = (MASKS,)

    def value(self, rows: Tensor) -> float:
        """Return the mean over classes of TP / (TP + FP + FN), over the pixels of all examples."""
        hits, alarms, misses = self.counts(rows)
        return _mean(_ratio(hits, hits + alarms + misses))


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    """Return quotients, NaN where there is nothing to divide by."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _mean(values: Numbers) -> float:
    """Return the mean of the values that are defined, NaN if none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
