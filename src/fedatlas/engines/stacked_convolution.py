"""``conv2d`` of many clients at once, with the products of their filters as one product of stacked matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.client.precision import products_like_convolutions


def stacked_convolution(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] | str = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Return ``conv2d``, with the products of many clients' filters as one product where vmap stacks them."""
    plain = groups == 1 and not isinstance(padding, str) and tuple(dilation) == (1, 1)
    if not plain or tuple(stride) != (1, 1):
        return torch.conv2d(inputs, weight, bias, stride, padding, dilation, groups)
    if torch.is_autocast_enabled(inputs.device.type):
        dtype = torch.get_autocast_dtype(inputs.device.type)
        inputs, weight = inputs.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    found: Tensor = _Convolution.apply(inputs, weight, bias, tuple(padding))[0]  # type: ignore[no-untyped-call]
    return found


class _Convolution(torch.autograd.Function):
    """A convolution of stride 1 whose stacked form is one product of stacked matrices, as is its filters' gradient.

    cuDNN would take one client's filters after another. The second result is the product's left side: the pixels under
    each filter and a one for the bias, a row for each pixel; it is empty where clients are not stacked.
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the convolution."""
        return torch.conv2d(inputs, weight, bias, 1, padding), inputs.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep the values that the gradients need."""
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], inputs[1], output[1])
        ctx.padding = inputs[3]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients by inputs, weight and bias."""
        inputs, weight, patches = ctx.saved_tensors
        by_inputs, by_weight, by_bias = ctx.needs_input_grad[:3]
        stacked = patches.numel() > 0
        wanted = [by_inputs, by_weight and not stacked, by_bias and not stacked]
        found: list[Tensor | None] = [None, None, None]
        filters, channels, high, wide = weight.shape
        if any(wanted):
            found = torch.ops.aten.convolution_backward(
                slopes[0], inputs, weight, [filters], [1, 1], list(ctx.padding), [1, 1], False, [0, 0], 1, wanted
            )
        if stacked and (by_weight or by_bias):
            with products_like_convolutions():
                product = patches.T @ slopes[0].permute(0, 2, 3, 1).reshape(-1, filters)
            size = high * wide * channels
            found = [found[0], product[:size].view(high, wide, channels, filters).permute(3, 2, 0, 1), None]
            found[2] = product[size] if by_bias else None
        return found[0], found[1], found[2], None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        padding: tuple[int, int],
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int | None]]:
        """Return the convolutions of all clients, the clients first."""
        x, w = (_in_front(one, dim, info.batch_size) for one, dim in zip((inputs, weight), in_dims, strict=False))
        b = None if bias is None else _in_front(bias, in_dims[2], info.batch_size)
        if in_dims[1] is None:
            made = torch.conv2d(x.flatten(0, 1), weight, None, 1, padding).unflatten(0, x.shape[:2])
            return (made if b is None else made + b[:, None, :, None, None], inputs.new_empty(0)), (0, None)
        # Channels last, so that the pixels under a filter are few long rows.
        x = x.permute(0, 1, 3, 4, 2)
        if any(padding):
            x = F.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]))
        x = x.contiguous()
        clients, images, height, width, channels = x.shape
        filters, (high, wide) = w.shape[1], w.shape[3:]
        rows, columns, size = height - high + 1, width - wide + 1, high * wide * channels
        # With a column of ones for the bias, and zeros up to a length that tensor cores like.
        spare = -size % 8 or 8
        patches = x.new_empty(clients, images, rows, columns, size + spare)
        source, target = _in_words(x, patches)
        step, word = source.stride(), source.shape[-1]
        windows = source.as_strided(
            (clients, images, rows, columns, high, wide, word),
            (step[0], step[1], step[2], step[3], step[2], step[3], step[4]),
        )
        target[..., : high * wide * word].unflatten(-1, (high, wide, word)).copy_(windows)
        patches[..., size] = 1
        patches[..., size + 1 :] = 0
        patches = patches.flatten(1, 3)
        table = w.new_zeros(clients, size + spare, filters)
        table[:, :size].view(clients, high, wide, channels, filters).copy_(w.permute(0, 3, 4, 2, 1))
        if b is not None:
            table[:, size] = b
        with products_like_convolutions():
            made = torch.bmm(patches, table).view(clients, images, rows, columns, filters)
        return (made.permute(0, 1, 4, 2, 3), patches), (0, 0)


def _in_words(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return tensors whose last axis can be copied by words of eight bytes as such words: fewer, so quicker to copy."""
    numbers = 8 // source.element_size()
    if numbers < 2 or source.shape[-1] % numbers or source.storage_offset() % numbers:
        return source, target
    return source.view(torch.int64), target.view(torch.int64)


def _in_front(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    return tensor.detach().expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
