"""What an atlas is made of: arrays become tensors, and parts that do not fit are refused."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas.summary import Summary
from fedatlas.errors import DataError, UsageError, expect


class Parts(Protocol):
    """The parts of an atlas."""

    @property
    def names(self) -> tuple[str, ...]:
        """The clients."""
        ...

    @property
    def halves(self) -> Mapping[str, Tensor]:
        """Vectors by half."""
        ...

    @property
    def sizes(self) -> Tensor:
        """Examples of each client."""
        ...

    @property
    def domains(self) -> tuple[str | None, ...]:
        """One for each client."""
        ...

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Plain values."""
        ...

    @property
    def summary(self) -> Summary | None:
        """The clients' cells."""
        ...


def by_half(halves: Any) -> Mapping[str, Any]:
    """Return the halves; raise UsageError if they are not a dictionary."""
    do = "Name them: halves={'feature': vectors}."
    expect(halves, Mapping, "halves of an atlas must be a dictionary, vectors by the half's name", do)
    found: Mapping[str, Any] = halves
    return found


def as_tensor(values: Any, title: str, *, whole: bool = False) -> Tensor:
    """Return numbers as a tensor, copied from an array or a list; a tensor is taken as it is."""
    if isinstance(values, Tensor):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(
            f"{title!r} of the atlas must be an array of numbers: {error}.", code="wrong-type", what=title
        ) from error
    if array.size and array.dtype.kind not in ("iu" if whole else "fiu"):
        kind = "whole numbers" if whole else "numbers"
        raise DataError(
            f"{title!r} of the atlas must be an array of {kind}, got one of {array.dtype}.",
            code="wrong-type",
            what=title,
        )
    return torch.from_numpy(array.astype(np.int64 if whole else np.float32))


def check_parts(atlas: Parts) -> None:
    """Raise an error if the parts of an atlas do not fit."""
    count = len(atlas.names)
    if count == 0 or len(set(atlas.names)) != count:
        raise DataError(
            f"an atlas needs at least one client, each named once; got {atlas.names[:5]} of {count}.",
            code="name-repeated",
            got=atlas.names[:5],
        )
    if not atlas.halves:
        raise DataError(
            "an atlas needs at least one half, e.g. 'feature' or 'label'.", code="data-empty", what="halves"
        )
    for own, table in atlas.halves.items():
        if table.dtype != torch.float32 or table.ndim != 2 or len(table) != count or table.device.type != "cpu":
            raise DataError(
                f"half {own!r} of the atlas must be float32 ({count}, width) on the CPU, "
                f"got {table.dtype} {tuple(table.shape)} on {table.device}.",
                code="wrong-shape",
                got=table.dtype,
                half=own,
            )
        if not table.shape[1]:
            raise DataError(f"half {own!r} of the atlas has no numbers.", code="data-empty", what="halves", half=own)
        if not bool(table.isfinite().all()):
            where = int((~table.isfinite()).any(1).nonzero()[0])
            raise DataError(
                f"half {own!r} of the atlas holds NaN or infinity, first at client {atlas.names[where]!r}.",
                code="not-finite",
                client=atlas.names[where],
                half=own,
            )
    if atlas.sizes.dtype != torch.int64 or atlas.sizes.shape != (count,) or bool((atlas.sizes < 0).any()):
        raise DataError(
            f"sizes of the atlas must be {count} non-negative int64 numbers, got {atlas.sizes}.",
            code="wrong-shape",
            got=atlas.sizes,
            what="sizes",
        )
    if len(atlas.domains) != count:
        raise DataError(
            f"the atlas has {count} clients but {len(atlas.domains)} domains; give one each, or none.",
            code="wrong-count",
            what="domains",
            got=len(atlas.domains),
            wanted=count,
        )
    if atlas.summary is not None and len(atlas.summary) != count:
        raise DataError(
            f"the atlas has {count} clients but a summary of {len(atlas.summary)}; give one of the same clients.",
            code="wrong-count",
            what="summary",
            got=len(atlas.summary),
            wanted=count,
        )
    try:
        json.dumps(dict(atlas.provenance), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"provenance of the atlas must hold plain values that JSON knows: {error}.",
            code="wrong-type",
            what="provenance",
        ) from error
