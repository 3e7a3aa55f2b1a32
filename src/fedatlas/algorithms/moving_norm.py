"""Batch norm of values and of their change along a direction, with its derivatives written out.

y  = w x^ + b,                         x^ = r (x - mean x),  r = (var x + eps)^-1/2
y' = J x',                             J v = w r (v - mean v - x^ mean(x^ v))

J is also what batch norm's backward pass applies, since it is symmetric: so one kernel of torch's gives y', and another
call of it the gradient by x'. With g the gradient by y', sums over the n numbers of a channel, and

G = sum x^ g,  T = sum x^ x',  A = sum g x' - (sum g)(sum x') / n:

gradient by w  r (A - G T / n)
gradient by x  -(w r^2 / n) (x^ (A - 3 G T / n) + T (g - mean g) + G (x' - mean x'))

to which those by y are added. Left to torch, the same takes three times as many passes over the maps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def moving_batch_norm(
    x: Tensor, change: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return batch norm by the batch's own statistics, and its change where ``x`` changes by ``change``."""
    found: tuple[Tensor, Tensor] = _MovingBatchNorm.apply(x, change, weight, bias, eps)  # type: ignore[no-untyped-call]
    return found


class _MovingBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, change: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        y, mean, scale = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
        moved, with_change, of_change = _pulled(change, x, weight, mean, scale, eps)
        ctx.save_for_backward(x, change, weight, mean, scale, with_change, of_change)
        ctx.eps, ctx.has_bias = eps, bias is not None
        return y, moved

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, change, weight, mean, scale, with_change, of_change = ctx.saved_tensors
        by_y, by_moved = gradients
        by_x, by_weight, by_bias = _pulled(by_y, x, weight, mean, scale, ctx.eps)
        by_change, with_own, of_own = _pulled(by_moved, x, weight, mean, scale, ctx.eps)
        count = x.numel() // x.shape[1]
        shape = [1, -1, *[1] * (x.ndim - 2)]
        over = [0, *range(2, x.ndim)]
        both = (by_moved * change).sum(over, dtype=scale.dtype) - of_own * of_change / count
        product = with_own * with_change / count
        factor = -scale.square() / count if weight is None else -weight * scale.square() / count
        along = factor * scale * (both - 3 * product)
        own, others = factor * with_change, factor * with_own
        rest = -along * mean - (own * of_own + others * of_change) / count
        for values, share in ((x, along), (by_moved, own), (change, others)):
            by_x.addcmul_(values, share.view(shape))
        by_x.add_(rest.view(shape))
        if weight is not None:
            by_weight = by_weight + scale * (both - product)
        return by_x, by_change, by_weight if weight is not None else None, by_bias if ctx.has_bias else None, None


def _pulled(
    values: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return J applied to values, and the sums over each channel of the values times x^ and of the values."""
    ones = torch.ones_like(scale) if weight is None else weight
    found = torch.ops.aten.native_batch_norm_backward(
        values.contiguous(memory_format=_form(x)), x, ones, None, None, mean, scale, True, eps, [True, True, True]
    )
    moved, with_own, sums = found
    return moved, with_own, sums


def _form(x: Tensor) -> torch.memory_format:
    """Return how the numbers of a tensor lie."""
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format
