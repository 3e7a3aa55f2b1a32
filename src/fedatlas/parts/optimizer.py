"""How a client turns gradients into steps. Updates are in place and fused over all parameters; state is explicit.

The rules are those of ``torch.optim`` (a test compares them); own code because state must be plain named tensors that
a checkpoint or a message can hold, and because building a torch optimizer for every client of every round costs more
than a small client's training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor, maybe_get_bdim

from fedatlas.errors import UsageError, expect, expect_number
from fedatlas.parts.checks import check_fields
from fedatlas.parts.fused_step import Rates, can_be_fused, update_fused
from fedatlas.parts.registry import optimizer
from fedatlas.parts.types import Tensors

Gradient = Callable[[], list[Tensor]]
"""Computes the gradient of the local objective at the parameters' current values."""
Schedule = Literal["constant", "cosine"]
RoundRate = float | tuple[float, ...]
"""The learning rate of a round, or one for each group of parameters."""
Rate = RoundRate | Tensor
"""The rate that a step gets; on a GPU it is a tensor, so that a captured step serves every value."""


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
    """Keep the state (momenta) per client between rounds, or start again in each round."""

    def __post_init__(self) -> None:
        where = type(self).__name__
        check_fields(self)
        if not self.lr > 0 or not math.isfinite(self.lr):
            raise UsageError(
                f"{where}(lr) must be a positive number, got {self.lr}.",
                code="out-of-range",
                setting=f"{where}(lr)",
                got=self.lr,
            )
        if self.weight_decay < 0:
            raise UsageError(
                f"{where}(weight_decay) must not be negative, got {self.weight_decay}.",
                code="out-of-range",
                setting=f"{where}(weight_decay)",
                got=self.weight_decay,
            )
        if not 0 <= self.min_lr <= self.lr:
            raise UsageError(
                f"{where}(min_lr) must be in [0, lr={self.lr}], got {self.min_lr}.",
                code="out-of-range",
                setting=f"{where}(min_lr)",
                got=self.min_lr,
            )

    def lr_at(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round (counted from 1)."""
        if self.schedule == "constant":
            return self.lr
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2

    def rates_at(self, round: int, rounds: int) -> RoundRate:
        """Return a round's learning rate, or one for each group if the groups' rates differ."""
        return self.lr_at(round, rounds)

    def rebased(self, base: LocalOptimizer) -> LocalOptimizer:
        """Return this optimizer over another base; a plain one is replaced, a wrapper keeps its own rule."""
        return base

    def fitted(self, model: nn.Module, names: Sequence[str]) -> LocalOptimizer:
        """Return the optimizer for a model, at the rates that the model's modules ask for.

        ``names`` are the parameters that it will step, in order. Nothing of a round may enter: clients and rounds of
        equal optimizers share captured steps.
        """
        asked = relative_rates(model)
        multiples = tuple(asked.get(name, 1.0) for name in names)
        return self if set(multiples) <= {1.0} else Relative(base=self, multiples=multiples)

    def adapting(self, lr: float | None = None, min_lr: float | None = None) -> LocalOptimizer:
        """Return the optimizer with which a new client tunes its personal values while the shared model is fixed."""
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


@optimizer("sgd")
@dataclass(frozen=True, kw_only=True)
class SGD(LocalOptimizer):
    """Stochastic gradient descent: ``v <- momentum v + g; w <- w - lr v`` (or nesterov's ``g + momentum v``)."""

    name: ClassVar[str] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise UsageError(
                f"SGD(momentum) must be in [0, 1), got {self.momentum}.",
                code="out-of-range",
                setting="SGD(momentum)",
                got=self.momentum,
            )

    def init(self, parameters: Tensors) -> Tensors:
        """Return zero momenta, or nothing without momentum."""
        return {f"momentum/{k}": torch.zeros_like(w) for k, w in parameters.items()} if self.momentum else {}

    def update(self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], lr: Rates) -> None:
        """Change the parameters and momenta in place."""
        if can_be_fused(parameters):
            update_fused(self._fused, parameters, gradients, state, lr)
            return
        gradients = self._decayed(parameters, gradients)
        if self.momentum:
            (velocity,) = state
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = (
                list(torch._foreach_add(gradients, velocity, alpha=self.momentum)) if self.nesterov else velocity
            )
        rates = lr if isinstance(lr, Sequence) else [lr] * len(parameters)
        if parameters and isinstance(rates[0], Tensor) and is_batchedtensor(parameters[0]):
            for parameter, gradient, rate in zip(parameters, gradients, rates, strict=True):
                # In one pass over all clients' values, for which vmap has no rule.
                _unstacked(parameter).addcmul_(_unstacked(gradient), torch.as_tensor(rate), value=-1)
        elif isinstance(lr, Sequence | Tensor):
            torch._foreach_sub_(parameters, torch._foreach_mul(gradients, _listed(lr)))
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


@optimizer("adam")
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
                raise UsageError(
                    f"Adam({title}) must be in [0, 1), got {value}.",
                    code="out-of-range",
                    setting=f"Adam({title})",
                    got=value,
                )

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
        if can_be_fused([*parameters, steps]):
            update_fused(partial(self._fused, steps), parameters, gradients, [first, second], lr)
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
        check_fields(self)
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


@dataclass(frozen=True, kw_only=True)
class Relative(Wrapper):
    """Another optimizer, with a factor of its rate for each parameter; ``fitted`` makes it if a model asks for it."""

    name: ClassVar[str] = "relative"
    elementwise: ClassVar[bool] = True
    multiples: tuple[float, ...] = ()
    """How many times the rate each parameter steps at, in order."""

    def update(self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], lr: Rates) -> None:
        """Change the parameters in place, each at its own rate."""
        rates = lr if isinstance(lr, Sequence) else [lr] * len(parameters)
        # Equal rates are one object: what steps at one rate, a GPU updates in one call.
        products: dict[tuple[int, float], float | Tensor] = {}
        for rate, multiple in zip(rates, self.multiples, strict=True):
            if (id(rate), multiple) not in products:
                products[id(rate), multiple] = rate if multiple == 1 else rate * multiple
        each = [products[id(rate), multiple] for rate, multiple in zip(rates, self.multiples, strict=True)]
        self.base.update(parameters, gradients, state, each)


def relative_rates(model: nn.Module) -> dict[str, float]:
    """Return how many times the learning rate parameters step at, by name, where modules ask for it.

    A module asks with an attribute ``relative_rates``: the names of its own parameters, and a number for each.
    """
    found: dict[str, float] = {}
    # By identity: a parameter that two modules share has the name of the first, whichever asks.
    whole_names = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in model.modules():
        asked = getattr(module, "relative_rates", {})
        where = f"{type(module).__name__}.relative_rates"
        expect(asked, Mapping, f"{where} must be a dictionary", "Give the names of parameters and a number for each.")
        own = dict(module.named_parameters(recurse=False))
        for name, multiple in asked.items():
            if name not in own:
                raise UsageError(
                    f"{where} names {name!r}, which is not a parameter of the module itself. Known: {sorted(own)}.",
                    code="unknown-name",
                    got=name,
                    known=sorted(own),
                )
            if not 0 < expect_number(multiple, f"{where}[{name!r}]") < math.inf:
                raise UsageError(
                    f"{where}[{name!r}] must be a positive number, got {multiple}.", code="out-of-range", got=multiple
                )
            found[whole_names[id(own[name])]] = float(multiple)
    return found
