"""FedIIR. Guo et al., Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships,
ICML 2023.

before training  g <- ema g + (1 - ema) mean over the cohort's examples of the gradient of cross-entropy by phi at w^t
client loss      cross-entropy + penalty * sum || gradient of cross-entropy by phi - g ||^2
server           the mean of the clients' models, each counting the same

phi are the parameters of the classifier; g starts at zero.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.models.head import head_parameters
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientContext
from fedatlas.parts.disclosure import Disclosure, Each
from fedatlas.parts.objective import Term
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.tensor_math import weighted_sum
from fedatlas.parts.types import Batch, ClientInfo, Output, Roster, Tensors
from fedatlas.parts.weighting import Equal

NAME = "head_gradient"


@dataclass(frozen=True, kw_only=True)
class GradientAlignment(Term):
    """Holds the classifier's gradient on each batch near the federation's."""

    name: ClassVar[str] = NAME
    needs_features: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    differentiates_twice: ClassVar[bool] = True
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure(Each.HEAD, "gradient of the received classifier on the client's training data", "survey"),
    )
    surveys: ClassVar[bool] = True
    penalty: float = 1e-3
    """Weight of the squared distance between the gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.penalty >= 0:
            raise UsageError(
                f"GradientAlignment(penalty) must not be negative, got {self.penalty}.",
                code="out-of-range",
                setting="GradientAlignment(penalty)",
                got=self.penalty,
            )

    @property
    def regulariser_weight(self) -> float:
        """The weight ``penalty``."""
        return self.penalty

    def check_model(self, model: nn.Module, personal: Collection[str]) -> None:
        """Raise UsageError if clients keep their classifiers: a mean over gradients of different ones means nothing."""
        if kept := sorted(set(head_parameters(model)) & set(personal)):
            raise UsageError(
                f"GradientAlignment compares gradients of one classifier, but {kept[0]} stays with each client. "
                "Use fediir with a split that shares the classifier, or a base such as fedavg with this split.",
                code="split-unfit",
                part=type(self).__name__,
                got=kept[0],
            )

    def survey(self, local: ClientContext) -> Tensors:
        """Return the mean gradient of cross-entropy by the classifier's parameters at the received model."""
        names = head_parameters(local.model)
        # Detached, the body builds no graph: a large batch then costs no more than a test pass.
        body = {name: w.detach() for name, w in local.parameters.items() if name not in names}
        total = [torch.zeros_like(local.parameters[name]) for name in names]
        for batch in local.passes():
            with torch.enable_grad():
                output = local.forward(body, batch.inputs)
                loss = F.cross_entropy(output.logits, batch.labels, reduction="sum")
                gradients = torch.autograd.grad(loss, [local.parameters[name] for name in names])
            torch._foreach_add_(total, gradients)
        torch._foreach_div_(total, float(local.data.num_examples))
        return dict(zip(names, total, strict=True))

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor | None:
        """Return ``penalty * sum || gradient - g ||^2``, differentiable through the gradient."""
        note = local.notes.get(self.name)
        if self.penalty == 0 or note is None:
            return None
        gradients = torch.autograd.grad(
            F.cross_entropy(output.logits, batch.labels), [local.parameters[name] for name in note], create_graph=True
        )
        squares = [(own - mean).square().sum() for own, mean in zip(gradients, note.values(), strict=True)]
        return self.penalty * torch.stack(squares).sum()


@dataclass(frozen=True, kw_only=True)
class MeanHeadGradient(ServerRule):
    """Keeps the moving average of the classifier's gradient and sends it to the clients."""

    name: ClassVar[str] = NAME
    ema: float = 0.95
    """How much of the old average stays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ema < 1:
            raise UsageError(
                f"MeanHeadGradient(ema) must be in [0, 1), got {self.ema}.",
                code="out-of-range",
                setting="MeanHeadGradient(ema)",
                got=self.ema,
            )

    def gather(self, memory: Tensors, surveys: Mapping[int, Tensors], roster: Roster) -> Tensors:
        """Move the average towards the mean over the cohort's examples."""
        sizes = torch.tensor([float(roster[client].num_examples) for client in surveys], dtype=torch.float64)
        mean = weighted_sum(list(surveys.values()), sizes / sizes.sum())
        # As in the authors' code the average starts at zero and is not corrected for it.
        return {
            name: self.ema * memory.get(name, torch.zeros_like(now)) + (1 - self.ema) * now
            for name, now in mean.items()
        }

    def note(self, memory: Tensors, client: ClientInfo) -> Tensors:
        """Tell every client the average."""
        return memory


@recipe(changes="objective, server", paper="Guo et al. 2023")
def fediir(penalty: float = 1e-3, ema: float = 0.95) -> Algorithm:
    """Clients align the gradient of their classifier with the federation's; the server averages all alike."""
    return Algorithm(
        name="fediir",
        objective=(*fedavg().objective, GradientAlignment(penalty=penalty)),
        weighting=(Equal(),),
        server=(MeanHeadGradient(ema=ema),),
    )
