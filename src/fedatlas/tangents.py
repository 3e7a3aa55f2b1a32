"""How a model's answer changes along a direction of its inputs, differentiable by the parameters.

In forward mode: the change is computed beside the answer, by the same kinds of kernels. The other way, a gradient by
the inputs that is differentiated once more, needs second derivatives of convolutions, and a GPU has no fast kernel for
those.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from fedatlas.client import Local


def logits_along(local: Local, inputs: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of inputs, and their derivative along a direction; running statistics stay as they are."""
    with forward_ad.dual_level(), _PlainNorms():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, when it first loads this mode
            moved = forward_ad.make_dual(inputs, direction.expand_as(inputs).contiguous())
        logits = local.forward({}, moved).logits
        answer, change = forward_ad.unpack_dual(logits)
    if change is None:
        raise RuntimeError("the logits do not depend on the inputs")
    return answer, change


class _PlainNorms(TorchFunctionMode):
    """Spells norms over the batch or the image out; torch's own take their statistics for constants in this mode."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.batch_norm and func is not F.instance_norm:
            return func(*args, **(kwargs or {}))
        bound = inspect.signature(func).bind(*args, **(kwargs or {}))
        bound.apply_defaults()
        given = bound.arguments
        if not given["training" if func is F.batch_norm else "use_input_stats"]:
            return func(*args, **(kwargs or {}))
        x: Tensor = given["input"]
        over = [*([0] if func is F.batch_norm else []), *range(2, x.ndim)]
        centred = x - x.mean(over, keepdim=True)
        normal = centred * (centred.square().mean(over, keepdim=True) + given["eps"]).rsqrt()
        shape = [1, -1, *[1] * (x.ndim - 2)]
        if given["weight"] is not None:
            normal = normal * given["weight"].view(shape)
        return normal if given["bias"] is None else normal + given["bias"].view(shape)
