"""Weights as bfloat16, all at once: on a GPU a kernel or two for a network, where autocast has two for each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

HALVED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
"""Layers of which autocast takes weights and biases as bfloat16."""


class _Cast(torch.autograd.Function):
    """Casts tensors to a type, and their gradients back, each all at once."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.before = tensors[0].dtype
        cast = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
        torch._foreach_copy_(cast, tensors)
        return cast

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, *_Cast.apply(ctx.before, *gradients)  # type: ignore[no-untyped-call]


def halving(model: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return the model as a function for use under autocast, to the same bits; autocast handles frozen parameters."""
    elsewhere = {
        id(parameter)
        for module in model.modules()
        if type(module) not in HALVED
        for parameter in module.parameters(recurse=False)
    }
    layers = [name for name, module in model.named_modules() if type(module) in HALVED]
    named = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name.rpartition(".")[0] in layers and id(parameter) not in elsewhere
    }

    def call(inputs: Tensor) -> tuple[Tensor, Tensor]:
        halves = _Cast.apply(torch.bfloat16, *named.values())  # type: ignore[no-untyped-call]
        result: tuple[Tensor, Tensor] = functional_call(model, dict(zip(named, halves, strict=True)), (inputs,))
        return result

    return call if named else model


@contextmanager
def products_like_convolutions() -> Iterator[None]:
    """Let products of float32 be rounded as cuDNN rounds convolutions, to TF32 unless a user forbids it."""
    matmul, conv = torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv", None)
    before = getattr(matmul, "fp32_precision", None)
    if before is None or getattr(conv, "fp32_precision", None) != "tf32":  # the first: older than torch 2.9
        yield
        return
    matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before
