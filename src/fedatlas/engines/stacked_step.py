"""One step of many clients at once: their values, stacked, and a step over them with ``torch.func.vmap``.

Two kinds of step: each client's whole step under vmap, for any optimizer; or only the gradients under vmap, and one
update of all stacked values, for an optimizer that treats every number by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.overrides import TorchFunctionMode

from fedatlas.client.context import LocalContext, autocast, widen
from fedatlas.engines.capture import Captured, Recorder, UncapturableError
from fedatlas.engines.captured_step import KINDS, Unknown, parts_of
from fedatlas.engines.stacked_convolution import stacked_convolution
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import summands
from fedatlas.parts.optimizer import LocalOptimizer, Rate, RoundRate
from fedatlas.parts.types import Batch, Memory, Tensors

Axes = dict[str, dict[str, dict[str, int | None]]]
Gradients = Callable[..., tuple[Tensors, Tensor]]
"""Returns all clients' gradients and losses, given their parameters, inputs, labels and weights, all stacked."""


@dataclass(kw_only=True, eq=False)
class Stack:
    """The values of a group of clients in a step: stacked along the first axis, or one tensor where all share it."""

    parameters: Tensors
    buffers: Tensors
    state: Tensors
    read: dict[str, Memory] = field(default_factory=dict)
    """What terms may read, by kind, part and name."""
    axes: Axes = field(default_factory=dict)
    """Along which axis each of those is stacked; None is shared."""

    @classmethod
    def of(cls, locals: Sequence[LocalContext], states: Sequence[Tensors], buffers: Sequence[Tensors]) -> Stack:
        """Return clients of one structure as a stack, given each one's optimizer state and received buffers."""
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
        return cls(
            parameters=stacked_values([local.start for local in locals]),
            buffers=stacked_values(buffers),
            state={k: _all_stacked([state[k] for state in states]) for k in states[0]},
            read=read,
            axes=axes,
        )

    def pattern(self) -> Hashable:
        """Return the stacked and the shared values, for comparing."""
        return tuple(
            (kind, part, name, axis)
            for kind, parts in self.axes.items()
            for part, named in parts.items()
            for name, axis in named.items()
        )

    def own(self) -> Stack:
        """Return the stack with separate memory for the values of each client that change."""
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


def stacked_values(values: Sequence[Tensors]) -> Tensors:
    """Return the values of clients as a stack of them; without a copy where all clients have the same."""
    first = values[0]
    if all(own is first for own in values):
        return {name: _expanded(tensor, len(values)) for name, tensor in first.items()}
    return {name: torch.stack([own[name].detach() for own in values]) for name in first}


def _expanded(tensor: Tensor, count: int) -> Tensor:
    return tensor.detach().expand(count, *tensor.shape)


def _stacked(tensors: list[Tensor]) -> tuple[Tensor, int | None]:
    if all(tensor is tensors[0] for tensor in tensors):
        return tensors[0].detach().clone(), None
    return torch.stack([tensor.detach() for tensor in tensors]), 0


def _all_stacked(tensors: list[Tensor]) -> Tensor:
    stacked, axis = _stacked(tensors)
    return _expanded(stacked, len(tensors)) if axis is None else stacked


Step = Callable[[Stack, Rate, Batch], Tensor]
"""Takes a step of all clients of a stack, in place, and returns the losses before it."""


class StackedStep:
    """One step of a group; its values are at fixed places, so that a capture can replay it.

    ``refused`` counts the reasons why steps were not captured; without it, such a step is an error.
    """

    def __init__(
        self,
        stack: Stack,
        step: Step,
        rates: RoundRate,
        recorder: Recorder | None,
        *,
        rates_on_device: bool = True,
        refused: dict[str, int] | None = None,
    ) -> None:
        self.stack, self._step = stack.own(), step
        self.device = next(iter(stack.parameters.values())).device
        self.rates: Rate = torch.tensor(rates).to(self.device) if rates_on_device else rates
        self._captured = Captured(recorder, self.device, refused)

    def set_rates(self, rates: RoundRate) -> None:
        """Step at these rates from now on."""
        if isinstance(self.rates, Tensor):
            self.rates.copy_(torch.tensor(rates), non_blocking=True)
        else:
            self.rates = rates

    def __call__(
        self, inputs: Tensor, labels: Tensor, weights: Tensor | None = None, active: Tensor | None = None
    ) -> Tensor:
        """Take a step of all clients; return their losses before it.

        ``weights`` are the examples' where some are padding, ``active`` marks the clients that take the step.
        """
        return self._captured(inputs.shape, (inputs, labels, weights, active), self._run)

    def _run(self, inputs: Tensor, labels: Tensor, weights: Tensor | None, active: Tensor | None) -> Tensor:
        stack = self.stack
        moving = [*stack.parameters.values(), *stack.buffers.values(), *stack.state.values()]
        kept = [tensor.clone() for tensor in moving] if active is not None else []
        losses = self._step(stack, self.rates, Batch(inputs, labels, weights))
        if active is None:
            return losses
        for tensor, old in zip(moving, kept, strict=True):
            tensor.copy_(torch.where(active.view(-1, *[1] * (tensor.ndim - 1)), tensor, old))
        # A client that has ended has no examples: the mean over them is not a number.
        return torch.where(active, losses, 0.0)


def steps_of_each(algorithm: Algorithm, optimizer: LocalOptimizer, local: LocalContext) -> Step:
    """Return the step in which vmap runs each client's whole step, its optimizer's too."""
    one = one_step(algorithm, optimizer, local)

    def step(stack: Stack, rates: Rate, batch: Batch) -> Tensor:
        weights = None if batch.weights is None else 0
        in_dims = (0, 0, 0, stack.axes, 0, 0, weights, None)
        mapped = vmap(one, in_dims=in_dims, randomness="different")
        with _OneByOne():
            return mapped(stack.parameters, stack.buffers, stack.state, stack.read, *batch, rates)

    return step


def step_of_all(gradients: Gradients, optimizer: LocalOptimizer, names: list[str]) -> Step:
    """Return the step in which the optimizer moves all clients' values at once.

    ``names`` are the parameters in the optimizer's order. Each number's step must depend on its own gradients only.
    """

    def step(stack: Stack, rates: Rate, batch: Batch) -> Tensor:
        by_name, losses = gradients(stack.parameters, *batch)
        found = [by_name[name] for name in names]
        slots = optimizer.slots(stack.state, names)
        optimizer.step([stack.parameters[name] for name in names], slots, lambda: found, rates)
        return losses

    return step


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
                output = widen(functional_call(model, {**parameters, **moved, **counted}, (inputs,)))
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
    """Raises if a term differentiates by itself: under vmap such a gradient would lose its own gradient, in silence."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.autograd.grad:
            raise UncapturableError("a term differentiates by itself, which vmap does not see", code="not-stackable")
        return func(*args, **(kwargs or {}))
