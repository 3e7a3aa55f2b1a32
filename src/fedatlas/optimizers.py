"""How a client turns gradients into steps. Updates are in place and fused over all parameters; state is explicit.

The rules are those of ``torch.optim`` (a test compares them); own code because state must be plain named tensors that
a checkpoint or a message can hold, and because building a torch optimizer for every client of every round costs more
than a small client's training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor, maybe_get_bdim

from fedatlas.errors import UsageError, expect_settings
from fedatlas.types import Tensors

Gradient = Callable[[], list[Tensor]]
"""Computes the gradient of the local objective at the parameters' current values."""
Schedule = Literal["constant", "cosine"]
RoundRate = float | tuple[float, ...]
"""The learning rate of a round, or one for each group of parameters."""
Rate = RoundRate | Tensor
"""What a step gets of it; on a GPU a tensor there, so that a captured step serves every value."""
Rates = float | Tensor | Sequence[float | Tensor]
"""One learning rate for all parameters, or one for each."""


@dataclass(frozen=True, kw_only=True)
class LocalOptimizer:
    """What all local optimizers share: a learning rate by round, and whether state outlives the round."""

    name: ClassVar[str]
    lr: float = 0.05
    weight_decay: float = 0.0
    """Coupled (added to the gradient), as in torch's SGD and Adam."""
    schedule: Schedule = "constant"
    """``cosine`` falls from ``lr`` to ``min_lr`` over the run, one step a round."""
    min_lr: float = 0.0
    keep_state: bool = False
    """Keep the state (momenta) per client between rounds, or start anew each round."""

    def __post_init__(self) -> None:
        where = type(self).__name__
        expect_settings(self)
        if not self.lr > 0 or not math.isfinite(self.lr):
            raise UsageError(f"{where}(lr) must be a positive number, got {self.lr}.")
        if self.weight_decay < 0:
            raise UsageError(f"{where}(weight_decay) must not be negative, got {self.weight_decay}.")
        if self.schedule not in ("constant", "cosine"):
            raise UsageError(f"{where}(schedule) must be 'constant' or 'cosine', got {self.schedule!r}.")
        if not 0 <= self.min_lr <= self.lr:
            raise UsageError(f"{where}(min_lr) must be in [0, lr={self.lr}], got {self.min_lr}.")

    def lr_at(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round (counted from 1)."""
        if self.schedule == "constant":
            return self.lr
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2

    def rates_at(self, round: int, rounds: int) -> RoundRate:
        """Return what a step of a round gets: its learning rate, or one for each group if groups differ in rate."""
        return self.lr_at(round, rounds)

    def rebased(self, base: LocalOptimizer) -> LocalOptimizer:
        """Return this optimizer over another base; a plain one is replaced, a wrapper keeps its own rule."""
        return base

    def fitted(self, model: nn.Module, names: Sequence[str]) -> LocalOptimizer:
        """Return the optimizer for a model; one whose layers differ in rate looks up here which they are.

        ``names`` are the parameters that it will step, in order. Nothing of a round may enter: clients and rounds of
        equal optimizers share captured steps.
        """
        return self

    def adapting(self, lr: float | None = None, min_lr: float | None = None) -> LocalOptimizer:
        """Return the optimizer with which a new client tunes what is its own while the shared model rests."""
        first = self.lr if lr is None else lr
        return replace(self, lr=first, min_lr=min(self.min_lr, first) if min_lr is None else min_lr)

    def init(self, parameters: Tensors) -> Tensors:
        """Return the state before the first step."""
        return {}

    def update(self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], lr: Rates) -> None:
        """Change the parameters (and the state) in place, given their gradients; weights decay here."""
        raise TypeError(f"{type(self).__name__} must define update()")

    def step(self, parameters: list[Tensor], state: list[list[Tensor]], gradient: Gradient, lr: Rate) -> None:
        """Take one step; an optimizer that looks at several points calls ``gradient`` more than once."""
        self.update(parameters, gradient(), state, lr)

    def slots(self, state: Tensors, names: list[str]) -> list[list[Tensor]]:
        """Return the state as one list per kind (kinds sorted), each in the parameters' order or a single tensor."""
        kinds = sorted({key.split("/", 1)[0] for key in state})
        return [[state[kind]] if kind in state else [state[f"{kind}/{name}"] for name in names] for kind in kinds]

    def _decayed(self, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        if self.weight_decay:
            return list(torch._foreach_add(gradients, parameters, alpha=self.weight_decay))
        return gradients


@dataclass(frozen=True, kw_only=True)
class SGD(LocalOptimizer):
    """Stochastic gradient descent: ``v <- momentum v + g; w <- w - lr v`` (or nesterov's ``g + momentum v``)."""

    name: ClassVar[str] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise UsageError(f"SGD(momentum) must be in [0, 1), got {self.momentum}.")

    def init(self, parameters: Tensors) -> Tensors:
        """Return zero momenta, or nothing without momentum."""
        return {f"momentum/{k}": torch.zeros_like(w) for k, w in parameters.items()} if self.momentum else {}

    def update(self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], lr: Rates) -> None:
        """Change the parameters and momenta in place."""
        if _can_be_fused(parameters):
            _update_fused(self._fused, parameters, gradients, state, lr)
            return
        gradients = self._decayed(parameters, gradients)
        if self.momentum:
            (velocity,) = state
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = (
                list(torch._foreach_add(gradients, velocity, alpha=self.momentum)) if self.nesterov else velocity
            )
        if isinstance(lr, Sequence):
            torch._foreach_sub_(parameters, torch._foreach_mul(gradients, _listed(lr)))
        elif isinstance(lr, Tensor) and is_batchedtensor(parameters[0]):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                # In one pass over all clients' values, for which vmap has no rule.
                _unstacked(parameter).addcmul_(_unstacked(gradient), lr, value=-1)
        elif isinstance(lr, Tensor):
            torch._foreach_sub_(parameters, torch._foreach_mul(gradients, lr))
        else:
            torch._foreach_add_(parameters, gradients, alpha=-lr)

    def _fused(
        self, weights: list[Tensor], gradients: list[Tensor], *velocity: list[Tensor], lr: float | Tensor
    ) -> None:
        torch._fused_sgd_(
            weights,
            gradients,
            velocity[0] if velocity else [],
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=False,
        )


def _listed(rates: Rates) -> Any:
    """Return rates as torch's functions on lists take them, which have an overload for each kind."""
    return list(rates) if isinstance(rates, Sequence) else rates


def _unstacked(tensor: Tensor) -> Tensor:
    """Return what vmap shows as one client's tensor as the tensor of all clients, the clients first."""
    whole: Tensor = get_unwrapped(tensor)
    return whole.movedim(maybe_get_bdim(tensor), 0)


@dataclass(frozen=True, kw_only=True)
class Adam(LocalOptimizer):
    """Adam, or AdamW with ``decoupled=True``.

    ``m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; w <- w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)``
    """

    name: ClassVar[str] = "adam"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decoupled: bool = False
    """Decay the weights directly (AdamW) and not through the gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for title, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise UsageError(f"Adam({title}) must be in [0, 1), got {value}.")

    def init(self, parameters: Tensors) -> Tensors:
        """Return zero moments and a step count."""
        return {
            **{f"first/{k}": torch.zeros_like(w) for k, w in parameters.items()},
            **{f"second/{k}": torch.zeros_like(w) for k, w in parameters.items()},
            "steps": torch.zeros((), device=next((w.device for w in parameters.values()), None)),
        }

    def update(self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], lr: Rates) -> None:
        """Change the parameters and moments in place."""
        first, second, (steps,) = state
        steps += 1
        if _can_be_fused([*parameters, steps]):
            _update_fused(partial(self._fused, steps), parameters, gradients, [first, second], lr)
            return
        if not self.decoupled:
            gradients = self._decayed(parameters, gradients)
        elif self.weight_decay:
            if isinstance(lr, Sequence):
                torch._foreach_mul_(parameters, _listed([1 - one * self.weight_decay for one in lr]))
            else:
                torch._foreach_mul_(parameters, 1 - lr * self.weight_decay)
        torch._foreach_lerp_(first, gradients, 1 - self.beta1)
        torch._foreach_mul_(second, self.beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - self.beta2)
        # Plain numbers are quicker on a CPU; on a GPU reading the count would make the host wait.
        captured = isinstance(lr[0] if isinstance(lr, Sequence) else lr, Tensor)
        count = steps if captured or steps.is_cuda else float(steps)
        correction1, correction2 = 1 - self.beta1**count, 1 - self.beta2**count
        denominator = torch._foreach_sqrt(second)
        torch._foreach_div_(denominator, correction2**0.5)
        torch._foreach_add_(denominator, self.eps)
        if isinstance(correction1, Tensor):
            update = torch._foreach_div(first, denominator)
            torch._foreach_mul_(update, _listed(lr))
            torch._foreach_div_(update, correction1)
            torch._foreach_sub_(parameters, update)
        elif isinstance(lr, Sequence):
            torch._foreach_addcdiv_(parameters, first, denominator, _listed([-one / correction1 for one in lr]))
        else:
            torch._foreach_addcdiv_(parameters, first, denominator, value=-lr / correction1)

    def _fused(
        self,
        steps: Tensor,
        weights: list[Tensor],
        gradients: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        *,
        lr: float | Tensor,
    ) -> None:
        fused = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        fused(
            weights,
            gradients,
            first,
            second,
            [],
            [steps] * len(weights),
            lr=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


def _update_fused(
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


def _can_be_fused(tensors: list[Tensor]) -> bool:
    """Tell whether torch has one kernel for all of an update: on a GPU, unless vmap stacks the tensors.

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
    """Tell whether a tensor has a parameter's strides, except where there is only one place to go."""
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


@dataclass(frozen=True, kw_only=True)
class Wrapper(LocalOptimizer):
    """An optimizer that changes what another one, its ``base``, sees; rate, momenta and decay are the base's."""

    elementwise: ClassVar[bool] = False
    """Whether a number's step depends on nothing but its own gradients, as in the plain optimizers."""
    base: LocalOptimizer = SGD()
    """The optimizer that turns gradients into steps."""
    lr: float = field(init=False, repr=False)
    weight_decay: float = field(init=False, repr=False)
    schedule: Schedule = field(init=False, repr=False)
    min_lr: float = field(init=False, repr=False)
    keep_state: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        expect_settings(self)
        for setting in fields(LocalOptimizer):
            object.__setattr__(self, setting.name, getattr(self.base, setting.name))

    def lr_at(self, round: int, rounds: int) -> float:
        """Return the base's learning rate of a round."""
        return self.base.lr_at(round, rounds)

    def rates_at(self, round: int, rounds: int) -> RoundRate:
        """Return the base's rates of a round."""
        return self.base.rates_at(round, rounds)

    def rebased(self, base: LocalOptimizer) -> LocalOptimizer:
        """Return the same rule over another base."""
        return replace(self, base=self.base.rebased(base))

    def fitted(self, model: nn.Module, names: Sequence[str]) -> LocalOptimizer:
        """Return the same rule over the fitted base."""
        base = self.base.fitted(model, names)
        return self if base is self.base else replace(self, base=base)

    def adapting(self, lr: float | None = None, min_lr: float | None = None) -> LocalOptimizer:
        """Return the same rule over the base's optimizer for a new client."""
        return replace(self, base=self.base.adapting(lr, min_lr))

    def init(self, parameters: Tensors) -> Tensors:
        """Return the base's state before the first step."""
        return self.base.init(parameters)

    def slots(self, state: Tensors, names: list[str]) -> list[list[Tensor]]:
        """Return the base's state as lists."""
        return self.base.slots(state, names)

    def update(self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], lr: Rates) -> None:
        """Change the parameters in place, as the base does."""
        self.base.update(parameters, gradients, state, lr)


OPTIMIZERS: dict[str, type[LocalOptimizer]] = {"sgd": SGD, "adam": Adam}
