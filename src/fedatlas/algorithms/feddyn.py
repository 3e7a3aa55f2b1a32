"""FedDyn. Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

alpha_k     = alpha (mean n) / n_k                                                   adaptive; else alpha
client loss = cross-entropy + alpha_k (1/2 ||w - w^t||^2 + <w - w^t, g_k>),   gradient clipped at norm 10
client      g_k <- g_k + (w_k - w^t)                                                 0 before its first round
server      h = (1/M) sum_{all k} g_k;   w^{t+1} = mean_{k in C} w_k + h

The authors' code writes the loss as alpha_k <w, g_k - w^t> with alpha_k as extra weight decay: the same gradient,
alpha_k (w - w^t + g_k). Here g_k is the paper's -(gradient of L_k) / alpha, and h its -h / alpha.
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
from fedatlas.parts.objective import Term
from fedatlas.parts.optimizer import SGD, Gradient, Rate, Wrapper
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.tensor_math import add, weighted_sum
from fedatlas.parts.types import ClientInfo, Cohort, Roster, Tensors
from fedatlas.parts.weighting import Equal


@dataclass(frozen=True, kw_only=True)
class DynamicPull(Term):
    """Pulls a client to the received model, and away from where its own rounds have led it so far."""

    name: ClassVar[str] = "feddyn"
    alpha: float = 0.01
    """Strength of the pull."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < math.inf:
            raise UsageError(
                f"DynamicPull(alpha) must be a positive number, got {self.alpha}.",
                code="out-of-range",
                setting="DynamicPull(alpha)",
                got=self.alpha,
            )

    @property
    def regulariser_weight(self) -> float:
        """The weight ``alpha``."""
        return self.alpha

    def begin(self, local: ClientContext) -> None:
        """Begin with no drift in the client's first round."""
        if self.name not in local.notes:
            raise UsageError(
                "DynamicPull needs the server rule DynamicDrift beside it; feddyn() has both.",
                code="part-missing",
                part="DynamicDrift",
            )
        if self.name not in local.memory:
            local.memory[self.name] = {k: torch.zeros_like(local.start[k]) for k in local.notes[self.name]}

    def gradient(self, local: ClientContext, gradients: list[Tensor]) -> list[Tensor]:
        """Add ``alpha_k (w - w^t + g_k)``, the gradient of the pull, for the shared parameters."""
        drift = local.memory[self.name]
        shared = [i for i, name in enumerate(local.parameters) if name in drift]
        names = [name for name in local.parameters if name in drift]
        scale = self.alpha * next(iter(local.notes[self.name].values()))
        pull = torch._foreach_sub([local.parameters[name] for name in names], [local.start[name] for name in names])
        pull = torch._foreach_mul(torch._foreach_add(pull, [drift[name] for name in names]), scale)
        pulled = list(gradients)
        for i, gradient in zip(shared, torch._foreach_add([gradients[i] for i in shared], pull), strict=True):
            pulled[i] = gradient
        return pulled

    def finish(self, local: ClientContext) -> Tensors:
        """Add this round's change to the client's drift: ``g_k <- g_k + (w_k - w^t)``."""
        local.memory[self.name] = {
            k: g + (local.parameters[k].detach() - local.start[k]) for k, g in local.memory[self.name].items()
        }
        return {}


@dataclass(frozen=True, kw_only=True)
class DynamicDrift(ServerRule):
    """Moves the mean of the cohort on by the mean drift of all clients."""

    name: ClassVar[str] = "feddyn"
    reads_uploads: ClassVar[bool] = True
    adaptive: bool = True
    """Scale ``alpha`` by (mean n) / n_k: clients with little data are held more tightly."""

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return no drift, and the mean number of examples of the clients that may train."""
        sizes = [client.num_examples for client in roster if not client.held_out]
        drift = {f"drift/{name}": torch.zeros_like(tensor) for name, tensor in shared.items()}
        return {"mean_examples": torch.tensor(sum(sizes) / len(sizes), dtype=torch.float64), **drift}

    def note(self, memory: Tensors, client: ClientInfo) -> Tensors:
        """Return the scale of the pull on each shared parameter; personal ones have none and are not pulled."""
        drift = _drift(memory)
        scale = float(memory["mean_examples"]) / client.num_examples if self.adaptive else 1.0
        # One tensor for all names, on the parameters' device.
        return dict.fromkeys(drift, torch.tensor(scale, device=next(iter(drift.values())).device))

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        """Return the change plus ``h``, after each client that answered has moved ``h`` by 1/M of its own change."""
        uploads = cohort.uploads
        share = torch.full((len(uploads),), 1 / cohort.num_training_clients, dtype=torch.float64)
        drift = add(_drift(memory), weighted_sum([upload.change for upload in uploads], share))
        return add(change, drift), memory | {f"drift/{name}": tensor for name, tensor in drift.items()}


def _drift(memory: Tensors) -> Tensors:
    return {key.removeprefix("drift/"): tensor for key, tensor in memory.items() if key.startswith("drift/")}


@dataclass(frozen=True, kw_only=True)
class Clipped(Wrapper):
    """Another optimizer whose gradients are first scaled down to a norm of at most ``max_norm`` over all parameters.

    Weight decay is added after clipping, as with ``torch.nn.utils.clip_grad_norm_``.
    """

    name: ClassVar[str] = "clipped"
    max_norm: float = 10.0
    """The largest norm of a gradient; ``inf`` clips nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.max_norm > 0:
            raise UsageError(
                f"Clipped(max_norm) must be positive, got {self.max_norm}.",
                code="out-of-range",
                setting="Clipped(max_norm)",
                got=self.max_norm,
            )

    def step(self, parameters: list[Tensor], state: list[list[Tensor]], gradient: Gradient, lr: Rate) -> None:
        """Take one step of the base; every gradient it looks at is clipped."""
        self.base.step(parameters, state, lambda: self._clip(gradient()), lr)

    def _clip(self, gradients: list[Tensor]) -> list[Tensor]:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return list(torch._foreach_mul(gradients, (self.max_norm / (norm + 1e-6)).clamp(max=1.0)))


@recipe(changes="objective, server, optimizer", paper="Acar et al. 2021")
def feddyn(alpha: float = 0.01, adaptive: bool = True, max_norm: float = 10.0) -> Algorithm:
    """Clients remember how far they drifted; it shifts their loss and the server's mean so that the optima agree."""
    return Algorithm(
        name="feddyn",
        objective=(*fedavg().objective, DynamicPull(alpha=alpha)),
        weighting=(Equal(),),
        server=(DynamicDrift(adaptive=adaptive),),
        optimizer=Clipped(base=SGD(), max_norm=max_norm),
    )
