"""One step of many clients at once: what they bring, stacked, and the step of one client under ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode

from fedatlas.client.context import LocalContext, autocast, widened
from fedatlas.client.precision import products_like_convolutions
from fedatlas.engines.captured_step import KINDS, Unknown, parts_of
from fedatlas.engines.cuda_graph import Recorder, UncapturableError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import summands
from fedatlas.parts.optimizer import LocalOptimizer
from fedatlas.parts.types import Batch, Memory, Tensors

Axes = dict[str, dict[str, dict[str, int | None]]]
_Values = tuple[Tensor | None, ...]


@dataclass(kw_only=True, eq=False)
class Stack:
    """What a group of clients brings to a step: stacked along the first axis, or one tensor where all share it."""

    parameters: Tensors
    buffers: Tensors
    state: Tensors
    read: dict[str, Memory]
    """What terms may read, by kind, part and name."""
    axes: Axes
    """Along which axis each of those is stacked; None is shared."""

    @classmethod
    def of(cls, locals: Sequence[LocalContext], states: Sequence[Tensors], buffers: Tensors) -> Stack:
        """Return clients of one structure as a stack."""
        read: dict[str, Memory] = {}
        axes: Axes = {}
        for kind in KINDS:
            read[kind], axes[kind] = {}, {}
            for part, named in parts_of(locals[0], kind).items():
                read[kind][part], axes[kind][part] = {}, {}
                for name in named:
                    read[kind][part][name], axes[kind][part][name] = _stacked(
                        [parts_of(local, kind)[part][name] for local in locals]
                    )
        count = len(locals)
        return cls(
            parameters={k: _expanded(w, count) for k, w in locals[0].start.items()},
            buffers={k: _expanded(b, count) for k, b in buffers.items()},
            state={k: _all_stacked([state[k] for state in states]) for k in states[0]},
            read=read,
            axes=axes,
        )

    def pattern(self) -> Hashable:
        """Return what is stacked and what is shared, for comparing."""
        return tuple(
            (kind, part, name, axis)
            for kind, parts in self.axes.items()
            for part, named in parts.items()
            for name, axis in named.items()
        )

    def own(self) -> Stack:
        """Return the stack with a place of its own for each client's values that change."""
        moving = [
            {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
            for tensors in (self.parameters, self.buffers, self.state)
        ]
        return replace(self, parameters=moving[0], buffers=moving[1], state=moving[2])

    def take(self, other: Stack) -> None:
        """Take over the values of another stack of the same pattern."""
        pairs = [(self.parameters, other.parameters), (self.buffers, other.buffers), (self.state, other.state)]
        pairs += [(self.read[kind][part], other.read[kind][part]) for kind in self.read for part in self.read[kind]]
        for mine, theirs in pairs:
            if mine:
                torch._foreach_copy_([mine[name] for name in mine], [theirs[name] for name in mine])


def _expanded(tensor: Tensor, count: int) -> Tensor:
    return tensor.detach().expand(count, *tensor.shape)


def _stacked(tensors: list[Tensor]) -> tuple[Tensor, int | None]:
    if all(tensor is tensors[0] for tensor in tensors):
        return tensors[0].detach().clone(), None
    return torch.stack([tensor.detach() for tensor in tensors]), 0


def _all_stacked(tensors: list[Tensor]) -> Tensor:
    stacked, axis = _stacked(tensors)
    return _expanded(stacked, len(tensors)) if axis is None else stacked


class StackedStep:
    """One step of a group; its values lie in fixed places, so that a graph can replay it."""

    def __init__(
        self,
        algorithm: Algorithm,
        optimizer: LocalOptimizer,
        local: LocalContext,
        stack: Stack,
        rates: Tensor,
        uneven: bool,
        recorder: Recorder | None,
    ) -> None:
        self.stack, self._recorder, self._uneven = stack.own(), recorder, uneven
        self.rates = rates.to(next(iter(stack.parameters.values())).device)
        self._one = one_step(algorithm, optimizer, local)
        self._warm: set[torch.Size] = set()
        self._graphs: dict[torch.Size, tuple[_Values, Callable[[], Tensor]]] = {}

    def __call__(self, *batch: Tensor | None) -> Tensor:
        """Take a step of all clients, given inputs, labels, weights and who is active; return their losses."""
        assert batch[0] is not None
        shape = batch[0].shape
        if self._recorder is None or shape not in self._warm:
            self._warm.add(shape)
            return self._run(*batch)
        if shape not in self._graphs:
            places = tuple(None if value is None else value.clone() for value in batch)
            self._graphs[shape] = (places, self._recorder.capture(lambda: self._run(*places)))
        places, replay = self._graphs[shape]
        for place, value in zip(places, batch, strict=True):
            if place is not None and value is not None:
                place.copy_(value)
        return replay()

    def _run(self, *batch: Tensor | None) -> Tensor:
        inputs, labels, weights, active = batch
        stack = self.stack
        moving = [*stack.parameters.values(), *stack.buffers.values(), *stack.state.values()]
        kept = [tensor.clone() for tensor in moving] if active is not None else []
        mapped = vmap(
            self._one,
            in_dims=(0, 0, 0, stack.axes, 0, 0, None if weights is None else 0, None),
            randomness="different",
        )
        with _OneByOne():
            losses = mapped(
                stack.parameters, stack.buffers, stack.state, stack.read, inputs, labels, weights, self.rates
            )
        if active is None:
            return losses
        for tensor, old in zip(moving, kept, strict=True):
            tensor.copy_(torch.where(active.view(-1, *[1] * (tensor.ndim - 1)), tensor, old))
        # A client that has ended has no examples: the mean over them is not a number.
        return torch.where(active, losses, 0.0)


def one_step(algorithm: Algorithm, optimizer: LocalOptimizer, local: LocalContext) -> Callable[..., Tensor]:
    """Return one client's step as a function of all that it reads; parameters, buffers and state change in place."""
    model, precision = local.model, local.work.precision
    names = list(local.parameters)
    known = {*local.parameters, *local.buffers}
    counters = {name: buffer for name, buffer in model.named_buffers() if name not in known}
    unknown: dict[str, Any] = {title: Unknown(title) for title in ("data", "round", "seed", "steps", "lr")}

    def one(
        parameters: Tensors,
        buffers: Tensors,
        state: Tensors,
        read: dict[str, Memory],
        inputs: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        rates: Tensor,
    ) -> Tensor:
        batch = Batch(inputs, labels, weights)
        seen = replace(
            local,
            parameters=parameters,
            buffers=buffers,
            start=read["start"][""],
            notes=read["notes"],
            memory=read["memory"],
            scratch=read["scratch"],
            **unknown,
        )
        losses: list[Tensor] = []

        def objective(parameters: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
            moved = {name: buffer.clone() for name, buffer in buffers.items()}
            counted = {name: buffer.clone() for name, buffer in counters.items()}
            with autocast(precision, inputs.device):
                output = widened(functional_call(model, {**parameters, **moved, **counted}, (inputs,)))
            inner = replace(seen, parameters=parameters)
            with _NoSlopes():
                added = summands(algorithm.objective, inner, batch, output)
            loss = sum(added, start=torch.zeros((), device=inputs.device))
            return loss, (loss.detach(), moved)

        def gradient() -> list[Tensor]:
            found, (loss, moved) = grad(objective, has_aux=True)(parameters)
            gradients = [found[name] for name in names]
            for term in algorithm.objective:
                gradients = term.gradient(seen, gradients)
            if not losses:  # only the first look at a batch updates running statistics
                for name, value in moved.items():
                    buffers[name].copy_(value)
            losses.append(loss)
            return gradients

        optimizer.step(list(parameters.values()), optimizer.slots(state, names), gradient, rates)
        return losses[0]

    return one


class _OneByOne(TorchFunctionMode):
    """Takes torch's calls on lists of tensors apart, as vmap knows tensors only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if func is torch.conv2d and not kwargs and isinstance(args[0], Tensor) and args[0].is_cuda:
            return stacked_convolution(*args)
        if not name.startswith("_foreach_"):
            return func(*args, **(kwargs or {}))
        method = _METHODS.get(name) or getattr(torch.Tensor, name.removeprefix("_foreach_"))
        results = []
        for i in range(len(args[0])):
            own = [value[i] if isinstance(value, list | tuple) else value for value in args]
            results.append(method(*own, **(kwargs or {})))
        return None if name.endswith("_") else results


_METHODS: dict[str, Callable[..., Tensor]] = {
    "_foreach_lerp_": lambda mine, other, weight: mine.add_((other - mine) * weight),
    "_foreach_addcmul_": lambda mine, one, other, value=1.0: mine.add_(one * other * value),
    "_foreach_addcdiv_": lambda mine, one, other, value=1.0: mine.add_(one / other * value),
}
"""Spelt out where vmap would go through the clients one by one."""


class _NoSlopes(TorchFunctionMode):
    """Refuses a term that differentiates by itself: under vmap such a slope would lose its own, in silence."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.grad:
            raise UncapturableError("a term differentiates by itself, which vmap does not see")
        return func(*args, **(kwargs or {}))


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

    cuDNN would take one client's filters after another. The second result is the product's left side: what lies under
    each filter and a one for the bias, a row for each pixel; nothing where clients are not stacked.
    """

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the convolution."""
        return torch.conv2d(inputs, weight, bias, 1, padding), inputs.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the gradients need."""
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
    return _expanded(tensor, count) if dim is None else tensor.movedim(dim, 0)
