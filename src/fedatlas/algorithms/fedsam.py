"""FedSAM. Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022.

local step: g1 = gradient at w;  w' = w + rho g1 / (||g1|| + 1e-12);  w <- step of the base optimizer at w with the
            gradient at w'
server      as FedAvg
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.optimizer import Gradient, Rate, Wrapper


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(Wrapper):
    """Steps with the gradient at the worst point nearby; learning rate, momenta and decay are those of ``base``."""

    name: ClassVar[str] = "sharpness_aware"
    rho: float = 0.05
    """How far away, in the norm over all parameters, the gradient is taken; 0 is the base optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rho >= 0:
            raise UsageError(
                f"SharpnessAware(rho) must not be negative, got {self.rho}.",
                code="out-of-range",
                setting="SharpnessAware(rho)",
                got=self.rho,
            )
        if isinstance(self.base, SharpnessAware):
            raise UsageError(
                "SharpnessAware(base) must not itself be SharpnessAware; give it that one's base.",
                code="wrong-type",
                setting="SharpnessAware(base)",
                got=type(self.base).__name__,
            )

    def step(self, parameters: list[Tensor], state: list[list[Tensor]], gradient: Gradient, lr: Rate) -> None:
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


@recipe(changes="optimizer", paper="Qu et al. 2022")
def fedsam(rho: float = 0.05) -> Algorithm:
    """FedAvg whose clients seek flat minima: each step uses the gradient at the worst point within ``rho``."""
    return Algorithm(name="fedsam", optimizer=SharpnessAware(rho=rho))
