"""What one client tells for a check beside its summary: figures about columns, images and its own copies.

Every client of a simulation and every node of a network computes the same; ``FIGURES`` declares them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.atlas.doctor.columns import CODES, QUANTILES, ColumnFigures, describe_columns
from fedatlas.atlas.doctor.duplicates import CopyFigures, content_keys, describe_copies
from fedatlas.atlas.doctor.pictures import PictureFigures, describe_pictures, is_blank
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Client, Federation
from fedatlas.data.table import NUMBER
from fedatlas.errors import DataError
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.types import Tensors

MOST_COLUMNS = 2000
"""Wider rows are not looked at column by column; without names they are vectors, of which no entry means anything."""
_MOST = 1 << 50

FIGURES: tuple[Disclosure, ...] = (
    Disclosure("label_counts", "the number of its training examples of each class", "check", ("classes",), torch.int64),
    Disclosure("images", "how many images it has, how many are blank and how many cut off", "check", (3,), torch.int64),
    Disclosure(
        "copies",
        "how many pairs of its training examples are equal, and how many test examples are in training too, if its "
        "test part was given and not drawn",
        "check",
        (4,),
        torch.int64,
    ),
    Disclosure(
        "cells",
        "of each column of numbers, how many cells there are, how many are missing, how many values differ (at most "
        "8), how often the commonest one occurs, and how many cells are far below and far above its quartiles",
        "check",
        ("columns", 6),
        torch.int64,
    ),
    Disclosure(
        "quantiles",
        "of each column of numbers with ten cells, five quantiles",
        "check",
        ("columns", 1 + len(QUANTILES)),
        torch.float64,
    ),
    Disclosure(
        "codes",
        f"of each column of numbers and {len(CODES)} values such as 0 and 999, which may stand for missing, how many "
        "cells are equal (from three on), how many less and how many close",
        "check",
        ("columns", len(CODES), 3),
        torch.int64,
    ),
)
HASHES = Disclosure(
    "hashes",
    "only if the node was given a key: a keyed hash of each training example, to find the same example at two clients",
    "check",
    (None,),
    torch.int64,
)


@dataclass(frozen=True, kw_only=True)
class ClientFigures:
    """What one client tells about its examples."""

    label_counts: tuple[int, ...]
    """Its training examples of each class."""
    columns: tuple[ColumnFigures, ...]
    """Of the columns of numbers; () of data that have none."""
    images: PictureFigures
    """Zeros of data that are no images."""
    copies: CopyFigures

    def tensors(self) -> Tensors:
        """Return the figures as tensors, by the names of ``FIGURES``."""
        some = [own.quantiles for own in self.columns]
        quantiles = [(0.0,) * (1 + len(QUANTILES)) if own is None else (1.0, *own) for own in some]
        cells = [(own.count, own.missing, own.distinct, own.commonest, *own.tails) for own in self.columns]
        codes = [own.codes for own in self.columns]
        return {
            "label_counts": torch.tensor(self.label_counts, dtype=torch.int64),
            "images": torch.tensor(self.images, dtype=torch.int64),
            "copies": torch.tensor(self.copies, dtype=torch.int64),
            "cells": torch.tensor(cells, dtype=torch.int64).reshape(-1, 6),
            "quantiles": torch.tensor(quantiles, dtype=torch.float64).reshape(-1, 1 + len(QUANTILES)),
            "codes": torch.tensor(codes, dtype=torch.int64).reshape(-1, len(CODES), 3),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> ClientFigures:
        """Return the figures that ``tensors`` gave; raise DataError if no client can have them."""
        counts = [tensors[name] for name in ("label_counts", "images", "copies", "cells", "codes")]
        if any(bool(((own < 0) | (own > _MOST)).any()) for own in counts):
            raise DataError("a count is below 0 or absurd", code="wrong-value", what="figures")
        rows = zip(*(tensors[name].tolist() for name in ("cells", "quantiles", "codes")), strict=True)
        columns = tuple(
            ColumnFigures(
                count=count,
                missing=missing,
                distinct=distinct,
                quantiles=tuple(quantiles[1:]) if quantiles[0] else None,
                commonest=commonest,
                tails=(low, high),
                codes=tuple((equal, below, near) for equal, below, near in codes),
            )
            for (count, missing, distinct, commonest, low, high), quantiles, codes in rows
        )
        found = cls(
            label_counts=tuple(tensors["label_counts"].tolist()),
            columns=columns,
            images=PictureFigures(*tensors["images"].tolist()),
            copies=CopyFigures(*tensors["copies"].tolist()),
        )
        found._check()
        return found

    def _check(self) -> None:
        """Raise DataError if the figures contradict each other."""
        images, copies = self.images, self.copies
        sound = max(images.blank, images.truncated) <= images.images
        sound = sound and copies.train <= sum(self.label_counts) and copies.tested <= copies.test
        sound = sound and copies.pairs <= math.comb(copies.train, 2)
        for own in self.columns:
            ordered = own.quantiles is None or list(own.quantiles) == sorted(own.quantiles)
            counted = max(own.commonest, sum(own.tails)) <= own.count
            counted = counted and all(equal + max(below, near) <= own.count for equal, below, near in own.codes)
            sound = sound and ordered and counted
        if not sound:
            raise DataError("the figures contradict each other", code="wrong-value", what="figures")


def describe_clients(federation: Federation) -> list[ClientFigures]:
    """Return what every client tells, of columns as they were before any scaling."""
    data = federation.data
    labels = data.labels.cpu()
    values = column_values(data)
    keys, counted = example_keys(data)
    found = []
    for client, own in zip(federation, own_examples(federation), strict=True):
        train, test = (part.cpu().numpy() for part in (client.train, client.test))
        given = test if _was_given(federation, client) else test[:0]
        images = describe_pictures(data.inputs[own]) if data.kind == "image" else PictureFigures(0, 0, 0)
        found.append(
            ClientFigures(
                label_counts=tuple(torch.bincount(labels[client.train.cpu()], minlength=len(data.classes)).tolist()),
                columns=() if values is None else tuple(describe_columns(values[own.numpy()])),
                images=images,
                copies=describe_copies(keys[train[counted[train]]], keys[given[counted[given]]]),
            )
        )
    return found


def _was_given(federation: Federation, client: Client) -> bool:
    """Return whether a client's test part was made by whoever made the data or the clients, and not drawn here."""
    if federation.origin is None or federation.data.is_test is None:
        return federation.origin is None
    apart = federation.data.is_test.cpu().bool()
    return bool(apart[client.test.cpu()].all()) and not bool(apart[client.train.cpu()].any())


def own_keys(federation: Federation) -> list[NDArray[np.int64]]:
    """Return the keys of every client's own examples, the same for equal examples and only for those."""
    keys, counted = example_keys(federation.data)
    parts = (own.numpy() for own in own_examples(federation))
    return [keys[own[counted[own]]] for own in parts]


def example_keys(data: Dataset) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return a key for each example, and which examples count as copies of others: blank images do not."""
    cells = data.inputs.cpu().numpy() if data.table is None else np.nan_to_num(data.table.values, nan=-1e300)
    counted = ~is_blank(data.inputs).cpu().numpy() if data.kind == "image" else np.ones(len(data), bool)
    return content_keys(cells), counted


def own_examples(federation: Federation) -> list[Tensor]:
    """Return every client's examples: for training, and for a test that no other client shares."""
    times = torch.zeros(len(federation.data), dtype=torch.int64)
    for client in federation:
        times[client.test.cpu()] += 1
    return [
        torch.cat([client.train.cpu(), test[times[test] == 1]]).unique()
        for client in federation
        for test in (client.test.cpu(),)
    ]


def column_names(data: Dataset) -> tuple[str, ...]:
    """Return the names of the columns of numbers; () of data that have none."""
    if data.table is not None:
        return tuple(data.table.columns[j] for j in _numbers(data))
    return feature_names(data.inputs.shape[1] if data.kind == "features" else 0)


def feature_names(width: int) -> tuple[str, ...]:
    """Return names for rows of so many numbers; () of wide ones."""
    return () if width > MOST_COLUMNS else tuple(f"feature {j}" for j in range(width))


def num_described(columns: Sequence[str]) -> int:
    """Return of how many columns clients tell figures: of all, or of none if they are very many."""
    return len(columns) if len(columns) <= MOST_COLUMNS else 0


def column_values(data: Dataset) -> NDArray[np.float64] | None:
    """Return the columns of numbers, (rows, columns), or None."""
    if not num_described(column_names(data)):
        return None
    if data.table is not None:
        return data.table.values[:, _numbers(data)]
    return data.inputs.double().cpu().numpy()


def _numbers(data: Dataset) -> list[int]:
    """Return the places of a table's columns of numbers, in the order and by the kinds that all clients agree on."""
    assert data.table is not None
    if data.preparation is None:
        return [j for j, kind in enumerate(data.table.kinds) if kind == NUMBER]
    places = data.preparation.places(data.table.columns, data.table.kinds)
    return [j for j, column in zip(places, data.preparation.columns, strict=True) if column.kind == NUMBER]
