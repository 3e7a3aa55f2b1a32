"""Sums of named tensors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fedatlas.parts.types import Tensors, Upload


def copies(tensors: Tensors) -> Tensors:
    """Return detached copies of tensors, in one call for all."""
    if not tensors:
        return {}
    return dict(zip(tensors, torch._foreach_mul([tensor.detach() for tensor in tensors.values()], 1.0), strict=True))


PRODUCT_BYTES = 2**29
"""Of clients' tensors that are summed on a GPU at once."""


def weighted_sum(terms: Sequence[Tensors], weights: Tensor) -> Tensors:
    """Return ``sum_k weights[k] * terms[k]``, added in the given order so that the bits repeat."""
    names = list(terms[0])
    if not names:
        return {}
    first = terms[0][names[0]]
    if first.is_cuda and len(terms) > 2 * len(names):
        there = weights.float().to(first.device, non_blocking=True)
        return {name: _product([term[name] for term in terms], there) for name in names}
    total = [torch.zeros_like(terms[0][name]) for name in names]
    for tensors, weight in zip(terms, weights.tolist(), strict=True):
        torch._foreach_add_(total, [tensors[name] for name in names], alpha=weight)
    return dict(zip(names, total, strict=True))


def _product(terms: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the weighted sum of many tensors on a GPU by few kernels, to bits that repeat."""
    like, weights = terms[0], weights.to(terms[0].dtype)
    if (rows := _as_rows(terms)) is not None:
        return torch.mv(rows.T, weights).as_strided(like.shape, like.stride())
    at_once = max(1, PRODUCT_BYTES // max(like.nbytes, 1))
    total = torch.zeros_like(like)
    for first in range(0, len(terms), at_once):
        some = torch.stack(list(terms[first : first + at_once]))
        total += torch.mv(some.flatten(1).T, weights[first : first + at_once]).view(total.shape)
    return total


def _as_rows(terms: Sequence[Tensor]) -> Tensor | None:
    """Return tensors that are adjacent in memory, such as those of stacked clients, as one matrix without a copy."""
    whole, size = terms[0]._base, terms[0].numel()
    if whole is None or whole.shape != (len(terms), *terms[0].shape) or whole.stride(0) != size:
        return None
    begin, step = whole.data_ptr(), size * whole.element_size()
    if any(term._base is not whole or term.data_ptr() != begin + i * step for i, term in enumerate(terms)):
        return None
    return whole.as_strided((len(terms), size), (size, 1))


def mean_change(uploads: Sequence[Upload], weights: Tensor) -> Tensors:
    """Return the weighted sum of the clients' changes."""
    return weighted_sum([upload.change for upload in uploads], weights)


def without(tensors: Tensors, parameters: Collection[str]) -> Tensors:
    """Return the tensors that do not belong to some parameters; a key is a parameter's name, or ends in ``/name``.

    >>> list(without({"w": torch.zeros(1), "drift/w": torch.zeros(1), "b": torch.zeros(1)}, {"w"}))
    ['b']
    """
    return {key: tensor for key, tensor in tensors.items() if key.rpartition("/")[2] not in parameters}


def add(tensors: Tensors, change: Tensors, scale: float = 1.0) -> Tensors:
    """Return ``tensors + scale * change``, name by name."""
    if not tensors:
        return {}
    sums = torch._foreach_add(list(tensors.values()), [change[name] for name in tensors], alpha=scale)
    return dict(zip(tensors, sums, strict=True))


def zeros_like(tensors: Tensors) -> Tensors:
    """Return zeros of the same names and shapes."""
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
