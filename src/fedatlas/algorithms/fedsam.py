"""FedSAM. Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022.

local step: g1 = gradient at w;  w' = w + rho g1 / (||g1|| + 1e-12);  w <- step of the base optimizer at w with the
            gradient at w'
server      as FedAvg
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithm import Algorithm
from fedatlas.errors import UsageError
from fedatlas.optimizers import SGD, Gradient, LocalOptimizer, Schedule
from fedatlas.types import Tensors


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(LocalOptimizer):
    """Steps with the gradient at the worst point nearby; learning rate, momenta and decay are those of ``base``."""

    name: ClassVar[str] = "sharpness_aware"
    base: LocalOptimizer = SGD()
    """The optimizer that turns the gradient into a step."""
    rho: float = 0.05
    """How far away, in the norm over all parameters, the gradient is taken; 0 is the base optimizer."""
    lr: float = field(init=False, repr=False)
    weight_decay: float = field(init=False, repr=False)
    schedule: Schedule = field(init=False, repr=False)
    min_lr: float = field(init=False, repr=False)
    keep_state: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.rho >= 0:
            raise UsageError(f"SharpnessAware(rho) must not be negative, got {self.rho}.")
        if isinstance(self.base, SharpnessAware):
            raise UsageError("SharpnessAware(base) must not itself be SharpnessAware; give it that one's base.")
        for shared in fields(LocalOptimizer):
            object.__setattr__(self, shared.name, getattr(self.base, shared.name))

    def lr_at(self, round: int, rounds: int) -> float:
        """Return the base optimizer's learning rate of a round."""
        return self.base.lr_at(round, rounds)

    def rebased(self, base: LocalOptimizer) -> LocalOptimizer:
        """Return the same perturbation over another optimizer."""
        return replace(self, base=base)

    def init(self, parameters: Tensors) -> Tensors:
        """Return the base optimizer's state before the first step."""
        return self.base.init(parameters)

    def slots(self, state: Tensors, names: list[str]) -> list[list[Tensor]]:
        """Return the base optimizer's state as lists."""
        return self.base.slots(state, names)

    def update(self, parameters: list[Tensor], gradients: list[Tensor], state: list[list[Tensor]], lr: float) -> None:
        """Change the parameters in place, as the base optimizer does."""
        self.base.update(parameters, gradients, state, lr)

    def step(self, parameters: list[Tensor], state: list[list[Tensor]], gradient: Gradient, lr: float) -> None:
        """Look at w and at w', and step from w."""
        if self.rho == 0:
            self.base.step(parameters, state, gradient, lr)
            return
        first = gradient()
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(first)))
        # A copy: adding and subtracting the same number does not give the parameters back bit for bit.
        kept = [parameter.detach().clone() for parameter in parameters]
        torch._foreach_add_(parameters, torch._foreach_mul(first, self.rho / (norm + 1e-12)))
        second = gradient()
        torch._foreach_copy_(parameters, kept)
        self.base.step(parameters, state, lambda: second, lr)


def fedsam(rho: float = 0.05) -> Algorithm:
    """FedAvg whose clients seek flat minima: each step uses the gradient at the worst point within ``rho``."""
    return Algorithm(name="fedsam", optimizer=SharpnessAware(rho=rho))
