"""Updates in one pass over all numbers, by torch's own kernels, where a device has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

Rates = float | Tensor | Sequence[float | Tensor]
"""One learning rate for all parameters, or one for each."""


def update_fused(
    kernel: Callable[..., None],
    parameters: list[Tensor],
    gradients: list[Tensor],
    moments: list[list[Tensor]],
    lr: Rates,
) -> None:
    """Let torch's kernel of a rule change parameters and moments in one pass over all numbers of one rate."""
    used = [_laid_out_as(parameters, tensors) for tensors in (gradients, *moments)]
    for rate, places in _by_rate(lr, len(parameters)):
        kernel(*([tensors[i] for i in places] for tensors in (parameters, *used)), lr=rate)
    for own, changed in zip(chain(*moments), chain(*used[1:]), strict=True):
        if changed is not own:
            own.copy_(changed)


def can_be_fused(tensors: list[Tensor]) -> bool:
    """Return whether torch has one kernel for all of an update: on a GPU, unless vmap stacks the tensors.

    A CPU keeps to one way of rounding.
    """
    return all(
        tensor.is_cuda
        and tensor.dtype == torch.float32
        and not is_batchedtensor(tensor)
        and torch.ops.aten.is_non_overlapping_and_dense(tensor)
        for tensor in tensors
    )


def _laid_out_as(parameters: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors with the strides of their parameters, as a fused kernel wants them; copies of those without."""
    return [
        tensor if _lies_as(parameter, tensor) else torch.empty_like(parameter).copy_(tensor)
        for parameter, tensor in zip(parameters, tensors, strict=True)
    ]


def _lies_as(parameter: Tensor, tensor: Tensor) -> bool:
    """Return whether a tensor has a parameter's strides; strides of axes of length 1 do not count."""
    one, other = parameter.stride(), tensor.stride()
    return one == other or all(
        mine == theirs for size, mine, theirs in zip(parameter.shape, one, other, strict=True) if size != 1
    )


def _by_rate(lr: Rates, count: int) -> list[tuple[Any, list[int]]]:
    """Return each rate with the positions of the parameters that step at it."""
    if not isinstance(lr, Sequence):
        return [(lr, list(range(count)))]
    found: dict[int, tuple[Any, list[int]]] = {}
    for position, rate in enumerate(lr):
        found.setdefault(id(rate), (rate, []))[1].append(position)
    return list(found.values())
