"""SCAFFOLD. Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, ICML 2020. Option II.

client step  w <- w - eta (gradient of cross-entropy - c_k + c)          as a loss: <c - c_k, w>
after S      c_k' = c_k - c + (w^t - w_k) / (S eta)                      c_k = 0 before its first round
server       w^{t+1} = w^t + eta_g mean_{k in C} (w_k - w^t)
             c <- c + (1/M) sum_{k in C} (c_k' - c_k)                    so c is the mean of all c_k
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientContext
from fedatlas.parts.disclosure import Disclosure, Each
from fedatlas.parts.objective import Term
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.tensor_math import add, weighted_sum, zeros_like
from fedatlas.parts.types import ClientInfo, Cohort, Roster, Tensors
from fedatlas.parts.weighting import Equal


@dataclass(frozen=True, kw_only=True)
class ControlVariate(Term):
    """Corrects every step by the difference between all clients' mean gradient and the client's own."""

    name: ClassVar[str] = "scaffold"
    needs_plain_sgd: ClassVar[bool] = True  # else (w^t - w_k) / (S eta) is not the mean gradient
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure(Each.SHARED, "the change of the client's control variate: its mean gradient", sender="stepping"),
    )

    def begin(self, local: ClientContext) -> None:
        """Fix the correction ``c - c_k`` for the round; only shared parameters have one."""
        if self.name not in local.notes:
            raise UsageError(
                "ControlVariate needs the server rule MeanControl beside it; scaffold() has both.",
                code="part-missing",
                part="MeanControl",
            )
        mean = local.notes[self.name]
        own = local.memory.setdefault(self.name, zeros_like(mean))
        local.scratch[self.name] = {name: c - own[name] for name, c in mean.items()}

    def gradient(self, local: ClientContext, gradients: list[Tensor]) -> list[Tensor]:
        """Add the correction ``c - c_k`` of the shared parameters."""
        corrections = local.scratch[self.name]
        corrected = list(gradients)
        shared = [i for i, name in enumerate(local.parameters) if name in corrections]
        chosen = [corrections[name] for name in local.parameters if name in corrections]
        for i, gradient in zip(shared, torch._foreach_add([gradients[i] for i in shared], chosen), strict=True):
            corrected[i] = gradient
        return corrected

    def finish(self, local: ClientContext) -> Tensors:
        """Remember ``c_k' = c_k - c + (w^t - w_k) / (S eta)`` and send how much it changed."""
        if local.steps == 0:
            return {}  # no step, no gradient: c_k stays
        own, scale, asked = local.memory[self.name], 1 / (local.steps * local.lr), local.relative_rates
        new = {
            name: (local.start[name] - local.parameters[name].detach()) * (scale / asked.get(name, 1.0)) - correction
            for name, correction in local.scratch[self.name].items()
        }
        local.memory[self.name] = new
        return {name: c - own[name] for name, c in new.items()}


@dataclass(frozen=True, kw_only=True)
class MeanControl(ServerRule):
    """Keeps the mean of all clients' control variates, and scales the cohort's mean change."""

    name: ClassVar[str] = "scaffold"
    server_lr: float = 1.0
    """The server's step size eta_g."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.server_lr < math.inf:
            raise UsageError(
                f"MeanControl(server_lr) must be a positive number, got {self.server_lr}.",
                code="out-of-range",
                setting="MeanControl(server_lr)",
                got=self.server_lr,
            )

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return zero control."""
        return zeros_like(shared)

    def note(self, memory: Tensors, client: ClientInfo) -> Tensors:
        """Return ``c``."""
        return memory

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        """Return ``eta_g`` times the change, and ``c + (1/M) sum (c_k' - c_k)``."""
        changes = [upload.notes[self.name] for upload in cohort.uploads if self.name in upload.notes]
        if changes:
            share = torch.full((len(changes),), 1 / cohort.num_training_clients, dtype=torch.float64)
            memory = add(memory, weighted_sum(changes, share))
        return {name: tensor * self.server_lr for name, tensor in change.items()}, memory


@recipe(changes="objective, server", paper="Karimireddy et al. 2020")
def scaffold(server_lr: float = 1.0) -> Algorithm:
    """Clients correct each step by the difference between the federation's mean gradient and their own."""
    return Algorithm(
        name="scaffold",
        objective=(*fedavg().objective, ControlVariate()),
        weighting=(Equal(),),
        server=(MeanControl(server_lr=server_lr),),
    )
