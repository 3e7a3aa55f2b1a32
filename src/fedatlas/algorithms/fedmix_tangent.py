"""How a model's answer changes along a direction of its inputs, differentiable by the parameters.

In forward mode: the change is computed beside the answer, by the same kinds of kernels. The other way, a gradient by
the inputs that is differentiated once more, needs second derivatives of convolutions, and a GPU has no fast kernel for
those.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from fedatlas.algorithms.moving_norm import moving_batch_norm
from fedatlas.parts.context import ClientContext


def logits_along(local: ClientContext, inputs: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of inputs, and their derivative along a direction; running statistics stay as they are."""
    with forward_ad.dual_level(), _PlainForms():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, when it first loads this mode
            moved = forward_ad.make_dual(inputs, direction.expand_as(inputs).contiguous())
        logits = local.forward({}, moved).logits
        answer, change = forward_ad.unpack_dual(logits)
    if change is None:
        raise RuntimeError("the logits do not depend on the inputs")
    return answer, change


class _PlainForms(TorchFunctionMode):
    """Spells out what torch's own kernels cannot in this mode, or do with much to spare.

    Its norms take their statistics for constants where the change is differentiated, and attention has no such mode.
    Its convolutions and linear maps add a product with the weights' change, which is zero here, and differentiate it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LINEAR and len(args) > 1:
            return _linear_map(func, *args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.layer_norm:
            return _layer_norm(*args, **kwargs)
        if func is not F.batch_norm and func is not F.instance_norm:
            return func(*args, **kwargs)
        bound = inspect.signature(func).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if not given["training" if func is F.batch_norm else "use_input_stats"]:
            return func(*args, **kwargs)
        x, weight, bias, eps = (given[name] for name in ("input", "weight", "bias", "eps"))
        value, change = forward_ad.unpack_dual(x)
        if func is F.batch_norm and change is not None and not _moves(weight, bias):
            return forward_ad.make_dual(*moving_batch_norm(value, change, weight, bias, eps))
        return _norm(x, weight, bias, eps, over_batch=func is F.batch_norm)


_LINEAR = (F.linear, F.conv1d, F.conv2d, F.conv3d)


def _moves(*tensors: Tensor | None) -> bool:
    """Return whether a tensor changes along the direction."""
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def _linear_map(func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Return what a map that is linear in ``x`` gives: its change is the same map of the change of ``x``."""
    value, change = forward_ad.unpack_dual(x)
    if change is None or _moves(weight, bias):
        plain: Tensor = func(x, weight, bias, *args, **kwargs)
        return plain
    answer = func(value, weight, bias, *args, **kwargs)
    moved: Tensor = forward_ad.make_dual(answer, func(change, weight, None, *args, **kwargs))
    return moved


def _norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, over_batch: bool) -> Tensor:
    over = [*([0] if over_batch else []), *range(2, x.ndim)]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    # As one scale and one shift: the fewer passes over the maps the better, for each is taken many times.
    variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
    scale = (variance + eps).rsqrt()
    if weight is not None:
        scale = scale * weight.view(shape)
    shift = -mean * scale if bias is None else bias.view(shape) - mean * scale
    return torch.addcmul(shift, x, scale)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    over = list(range(x.ndim - len(shape), x.ndim))
    variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
    normal = (x - mean) * (variance + eps).rsqrt()
    if weight is not None:
        normal = normal * weight
    return normal if bias is None else normal + bias


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    scale = kwargs.get("scale") or query.shape[-1] ** -0.5
    others = [*args, *(value for name, value in kwargs.items() if name != "scale")]
    if any(isinstance(other, Tensor) or other for other in others):  # a mask, or dropout
        masked: Tensor = F.scaled_dot_product_attention(query, key, value, *args, **kwargs)
        return masked
    scores = (query @ key.transpose(-2, -1)) * scale
    # torch's softmax, too, overwrites a value that its tangent needs.
    shares = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    mixed: Tensor = shares / shares.sum(-1, keepdim=True) @ value
    return mixed
