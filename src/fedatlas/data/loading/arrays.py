"""Your own data as a Dataset: arrays in memory, a folder of pictures."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedatlas.data.dataset import DTYPES, Dataset, first_repeated
from fedatlas.data.loading.image_arrays import (
    are_8_bit,
    are_deep_images,
    as_bytes,
    as_they_are,
    channels_first,
    float32,
)
from fedatlas.data.task import CLASSIFICATION, Task, find_task
from fedatlas.errors import DataError, UsageError, unknown_name

Array = NDArray[Any]
MOST_CLASSES = 1 << 20
"""The most classes that labels without names may stand for."""


def from_arrays(
    inputs: ArrayLike | Tensor,
    labels: ArrayLike | Tensor,
    *,
    name: str = "arrays",
    classes: Sequence[str] | None = None,
    domain: ArrayLike | Tensor | None = None,
    owner: ArrayLike | Tensor | None = None,
    is_test: ArrayLike | Tensor | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    vocabulary: Sequence[str] = (),
    kind: str | None = None,
    task: str = CLASSIFICATION.name,
) -> Dataset:
    """Return a Dataset from numpy arrays, tensors or lists.

    ``task`` says what is predicted. ``labels`` are one class for each example; with ``"multi-label"`` a row of zeros
    and ones, with ``"regression"`` a number or a row of numbers, with ``"segmentation"`` a mask of classes;
    ``classes`` then names the columns or classes.

    ``inputs`` are images (uint8, or floats that are 256 shades in [0, 1]; N x height x width, channels first or last)
    or features (numbers, N x width) or other arrays, taken as they are: 16-bit and other float images, signals, volumes
    (``kind="array"`` takes any so; ``kind="image"`` rounds floats in [0, 1] to 256 shades). With ``kind="tokens"``,
    or a vocabulary, they are tokens (whole numbers, N x length). ``labels``, ``domain`` and ``owner`` are integers or
    names, one for each example. ``owner`` is the natural client of an example, ``vocabulary`` what each token stands
    for.

        >>> data = from_arrays([[0.1, 0.2], [0.3, 0.4]], ["cat", "dog"])
        >>> data.kind, data.classes
        ('features', ('cat', 'dog'))
    """
    values = _array(inputs)
    named = kind is None and len(vocabulary) > 0 and values.dtype.kind in "ui"
    examples = as_inputs(name, values, "tokens" if named else kind)
    aim = find_task(task)
    targets, class_names = _targets(name, _array(labels), classes, aim)
    domain_index, domains = _names(name, "domain", domain)
    owner_index, owners = _names(name, "owner", owner)
    test = None if is_test is None else _test_part(name, targets, is_test)
    _check_scaling(name, examples, mean, std)
    if vocabulary and len(examples) and (examples.dtype != torch.int64 or int(examples.max()) >= len(vocabulary)):
        raise DataError(
            f"{name}: the vocabulary names {len(vocabulary)} tokens, but the inputs are {examples.dtype} up to "
            f"{examples.max().item()}. Name every token from 0 on; other inputs have no vocabulary.",
            code="vocabulary",
            got=len(vocabulary),
            inputs=str(examples.dtype).removeprefix("torch."),
        )
    return Dataset(
        name=name,
        inputs=examples,
        labels=targets,
        classes=class_names,
        domains=domains,
        domain=domain_index,
        owners=owners,
        owner=owner_index,
        is_test=test,
        mean=tuple(mean),
        std=tuple(std),
        vocabulary=tuple(vocabulary),
        task=aim,
    )


def _test_part(name: str, labels: Tensor, is_test: ArrayLike | Tensor) -> Tensor:
    """Return which examples are for test; warn if some classes are only there."""
    test = torch.from_numpy(_array(is_test).astype(bool))
    if test.shape != labels.shape[:1]:
        raise DataError(
            f"{name}: is_test has {len(test)} entries for {len(labels)} labels; give one each.",
            code="wrong-count",
            what="is_test",
            got=len(test),
            wanted=len(labels),
        )
    if labels.ndim == 1:
        _warn_unlearnt(name, labels, test)
    return test


def _array(values: ArrayLike | Tensor) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def as_inputs(name: str, inputs: ArrayLike | Tensor, kind: str | None = None) -> Tensor:
    """Return images as uint8 (N, channels, height, width), features and other arrays as float32, tokens as int64.

    ``kind`` is checked where it is given; whole numbers are tokens only where it says so.
    """
    if kind is not None and kind not in DTYPES:
        raise unknown_name("kind of inputs", kind, DTYPES)
    values = _array(inputs)
    form, axes = values.dtype.kind, values.ndim
    if axes > 2 and form in "uif" and (kind == "array" or (kind is None and not are_8_bit(values))):
        return as_they_are(values if kind == "array" or not are_deep_images(values) else channels_first(values))
    if axes in (3, 4) and form in "uif" and kind in (None, "image"):
        return as_bytes(name, values)
    if axes == 2 and form in "uifb" and kind in (None, "features"):
        return float32(values)
    if axes == 2 and form in "ui" and kind == "tokens":
        if values.size and values.min() < 0:
            raise DataError(
                f"{name}: tokens must be 0 or more, got {values.min()}. Renumber them.",
                code="out-of-range",
                got=values.min(),
                what="tokens",
            )
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
    raise DataError(
        f"{name}: inputs of {values.dtype} and shape {values.shape} are not {kind or 'of a known kind'}. Give images "
        "(uint8, or floats in [0, 1]; N x height x width, channels first or last), features (numbers, N x width) or, "
        'with kind="tokens", tokens (whole numbers, N x length).',
        code="wrong-shape",
        what="inputs",
        got=values.dtype,
        shape=values.shape,
    )


def _targets(name: str, values: Array, classes: Sequence[str] | None, task: Task) -> tuple[Tensor, tuple[str, ...]]:
    """Return the targets in the form of the task, and the names of what is predicted."""
    if task.has_classes:
        return _labels(name, values, classes)
    if values.dtype.kind not in "uibf":
        raise DataError(
            f"{name}: the targets of {task.name} must be numbers, got {values.dtype}. Convert them.",
            code="wrong-type",
            got=values.dtype,
            what="labels",
        )
    if task.dtype == torch.float32:
        found = float32(values if values.ndim > 1 else values[:, None])
        count = found.shape[1]
    else:
        found = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
        count = int(found.max()) + 1 if found.numel() else 0
    names = tuple(classes) if classes is not None else tuple(str(i) for i in range(count))
    return found, names


def _labels(name: str, values: Array, classes: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    if classes is not None and len(set(classes)) != len(classes):
        twice = first_repeated(classes)
        raise DataError(
            f"{name}: two classes are named {twice!r}. Rename one, or make one class of both.",
            code="name-repeated",
            what="classes",
            got=twice,
        )
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(
            f"{name}: labels must be one for each example, got shape {values.shape}.",
            code="wrong-count",
            got=values.shape,
            what="labels",
        )
    return _named_labels(name, values, classes) if values.dtype.kind in "US" else _numbers(name, values, classes)


def _named_labels(name: str, values: Array, classes: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    texts = values.astype(str)
    if classes is None:
        _check_no_empty(name, "label", texts)
    known = tuple(classes) if classes is not None else tuple(np.unique(texts).tolist())
    place = {label: i for i, label in enumerate(known)}
    strange = next((str(label) for label in texts if label not in place), None)
    if strange is not None:
        raise DataError(
            f"{name}: label {strange!r} is not among the classes {known}. Add it to classes=.",
            code="names-unfit",
            what="labels",
            got=strange,
            known=known,
        )
    return torch.tensor([place[label] for label in texts], dtype=torch.int64), known


def _numbers(name: str, values: Array, classes: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    if values.dtype.kind not in "uibf":
        raise DataError(
            f"{name}: labels must be whole numbers or names, got {values.dtype}. Convert them.",
            code="wrong-type",
            got=values.dtype,
            what="labels",
        )
    broken = np.flatnonzero(~(np.isfinite(values) & (values == np.round(values))))
    if len(broken):
        raise DataError(
            f"{name}: labels must be whole numbers or names, got {values[broken[0]]} at example {broken[0]}. "
            "Correct it, or give the classes numbers from 0 on.",
            code="wrong-type",
            got=values[broken[0]],
            what="labels",
            example=int(broken[0]),
        )
    top = int(values.max()) if len(values) else -1
    if top >= MOST_CLASSES:
        raise DataError(
            f"{name}: labels go up to {top}, and every number up to it would be a class of the model; at most "
            f"{MOST_CLASSES:,} are possible. Labels look like ids: number the classes from 0, or give their names.",
            code="out-of-range",
            what="labels",
            got=top,
            most=MOST_CLASSES,
        )
    numbers = torch.from_numpy(values.astype(np.int64))
    count = top + 1
    if classes is None:
        _warn_of_ids(name, numbers, count)
    return numbers, tuple(classes) if classes is not None else tuple(str(i) for i in range(count))


def _names(name: str, title: str, values: ArrayLike | Tensor | None) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return an index for each example and the names, in order of first appearance."""
    if values is None:
        return None, ()
    array = _array(values)
    if array.ndim != 1 or array.dtype.kind not in "uiUS":
        raise DataError(
            f"{name}: {title} must be integers or names, one for each example; got {array.dtype} {array.shape}.",
            code="wrong-count",
            got=array.dtype,
            what=title,
        )
    _check_no_empty(name, title, array)
    _, first, index = np.unique(array, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return torch.from_numpy(rank[index]), tuple(str(array[i]) for i in first[order])


def _check_no_empty(name: str, title: str, values: Array) -> None:
    if values.dtype.kind in "US" and len(empty := np.flatnonzero(np.char.str_len(values) == 0)):
        raise DataError(
            f"{name}: the {title} of example {empty[0]} is an empty text. Fill it in, or drop the example.",
            code="value-missing",
            what=title,
            example=int(empty[0]),
        )


def _warn_of_ids(name: str, numbers: Tensor, count: int) -> None:
    """Warn if label numbers are far apart: every number up to the largest becomes a class of the model."""
    present = len(numbers.unique())
    # The data of a single client may lack many classes, but hardly three of four, and not of so many.
    if count > 20 and present * 4 < count:
        warnings.warn(
            f"{name}: {present} of {count:,} classes occur, numbers up to {count - 1}; labels look like ids. "
            "Number them from 0, or give classes=.",
            stacklevel=4,
        )


def _warn_unlearnt(name: str, labels: Tensor, test: Tensor) -> None:
    """Warn if the test part has classes that training lacks; in small data this may happen by chance."""
    few = int(test.sum()) < 10 or bool(test.all())
    if not few and not torch.isin(labels[test].unique(), labels[~test].unique()).any():
        warnings.warn(
            f"{name}: no class of the test part occurs in the training part, so no model can learn them. "
            "Look at is_test, or split again.",
            stacklevel=3,
        )


def rescale(data: Dataset, mean: Sequence[float], std: Sequence[float]) -> Dataset:
    """Return a data set whose images are scaled by other numbers, one for each channel."""
    _check_scaling(data.name, data.inputs, mean, std)
    return replace(data, mean=tuple(map(float, mean)), std=tuple(map(float, std)))


def _check_scaling(name: str, inputs: Tensor, mean: Sequence[float], std: Sequence[float]) -> None:
    if mean and inputs.dtype != torch.uint8:
        raise UsageError(
            f"{name}: mean= and std= are for images, but its inputs are not images. Leave them out.",
            code="kind-mismatch",
            setting="mean",
        )
    channels = inputs.shape[1]
    if len(mean) != len(std) or (mean and len(mean) != channels):
        raise UsageError(
            f"{name}: mean= and std= have one number for each of {channels} channels; got {len(mean)} and {len(std)}.",
            code="wrong-count",
            got=len(mean),
            setting="mean",
            wanted=channels,
        )
    if any(value <= 0 for value in std):
        raise UsageError(
            f"{name}: std= must be above 0, got {tuple(std)}.", code="out-of-range", got=tuple(std), setting="std"
        )
