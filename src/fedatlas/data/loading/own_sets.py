"""Data sets of torch and of Hugging Face, and lists of them with one for each client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedatlas.data.dataset import Dataset
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.data.loading.watching import watched
from fedatlas.errors import DataError, UsageError, unknown_name


def from_torch(datasets: Any, *, name: str = "torch", **options: Any) -> Dataset:
    """Return a Dataset from a torch data set whose items are (input, label), or from a list of them, one a client.

    Every item is read once. Of a list, or of a mapping by name, each data set becomes the examples of one client.
    ``options`` are those of ``from_arrays``, such as ``classes``, ``owner`` and ``task``.

        >>> pairs = [(np.zeros(3, np.float32), 0), (np.ones(3, np.float32), 1)]
        >>> from_torch(pairs).kind, from_torch({"Lyon": pairs, "Oslo": pairs}).owners
        ('features', ('Lyon', 'Oslo'))
    """
    parts = _by_client(datasets)
    if len(parts) == 1 and None in parts:
        inputs, labels = _pairs(name, parts[None])
        return from_arrays(inputs, labels, name=name, **options)
    read = {client: _pairs(f"{name}, client {client}", own) for client, own in parts.items()}
    owner = np.repeat([str(client) for client in read], [len(labels) for _, labels in read.values()])
    inputs, labels = (np.concatenate([pair[i] for pair in read.values()]) for i in (0, 1))
    return from_arrays(inputs, labels, name=name, owner=owner, **options)


def from_huggingface(
    dataset: Any,
    *,
    inputs: str | None = None,
    label: str = "label",
    owner: str | None = None,
    domain: str | None = None,
    name: str = "huggingface",
    **options: Any,
) -> Dataset:
    """Return a Dataset from a Hugging Face data set (one split), with columns by name.

    ``inputs`` is the column of images or of lists of numbers; None is ``image``, or the only column that is left.
    ``owner`` names each example's client. The classes' names come with the label, where it has some.
    """
    columns = list(dataset.column_names)
    for column in (inputs, label, owner, domain):
        if column is not None and column not in columns:
            raise unknown_name(f"column of {name}", column, columns)
    left = [column for column in columns if column not in (label, owner, domain)]
    if inputs is None and len(left) != 1 and "image" not in left:
        raise UsageError(
            f"{name}: each of the columns {left} may be the inputs. Name one with inputs=.",
            code="column-unclear",
            known=left,
        )
    column = inputs or ("image" if "image" in left else left[0])
    kind = dataset.features[label]
    if getattr(kind, "names", None):
        options.setdefault("classes", list(kind.names))
    for title, own in (("owner", owner), ("domain", domain)):
        if own is not None:
            options[title] = [str(value) for value in dataset[own]]
    found = dataset[column]
    examples = _stacked(name, (_input(found[i]) for i in watched(range(len(found)), f"reading {name}")))
    return from_arrays(examples, np.asarray(dataset[label]), name=name, **options)


def _by_client(datasets: Any) -> dict[Any, Any]:
    """Return the data sets by client, or one data set under None."""
    if isinstance(datasets, dict):
        return dict(datasets)
    if isinstance(datasets, list | tuple) and datasets and not isinstance(datasets[0], tuple):
        return {f"client-{number}": own for number, own in enumerate(datasets)}
    return {None: datasets}


def _pairs(name: str, dataset: Any) -> tuple[Any, Any]:
    """Return all inputs and all labels of a data set."""
    count = len(dataset)
    if not count:
        raise DataError(f"{name}: there are no examples. Leave it out.", code="data-empty", data=name)
    items = [dataset[i] for i in watched(range(count), f"reading {name}")]
    if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise DataError(
            f"{name}: an item must be (input, label), got {type(items[0]).__name__}. Wrap the data set.",
            code="wrong-type",
            what="items",
            got=type(items[0]).__name__,
        )
    return _stacked(name, (_input(x) for x, _ in items)), np.asarray([_input(y) for _, y in items])


def _input(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _stacked(name: str, values: Iterable[Any]) -> Any:
    found: Sequence[Any] = list(values)
    shapes = {one.shape for one in found}
    if len(shapes) > 1:
        some = sorted(map(str, shapes))[:3]
        raise DataError(
            f"{name}: examples have different shapes ({', '.join(some)}). Resize or cut them to one shape.",
            code="wrong-shape",
            what="inputs",
            shape=some,
        )
    return np.stack(found)
