"""FedMix. Yoon et al., FedMix: Approximation of Mixup under Mean Augmented Federated Learning, ICLR 2021.

before training  each client sends means over groups of its examples, inputs x_g and labels y_g; all are pooled
client loss      x' = (1 - lam) x;  mean over the batch of l1 + l2 + l3
                 l1 = (1 - lam) cross-entropy(f(x'), y)
                 l2 = lam cross-entropy(f(x'), y_g)
                 l3 = lam <dl1/dx', x_g>
server           as FedAvg

This is Mixup with x_g, expanded to the first order around x'.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.algorithms.fedmix_tangent import logits_along
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientContext, ClientData
from fedatlas.parts.disclosure import Disclosure, UpTo
from fedatlas.parts.objective import Term
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.types import Batch, ClientInfo, Cohort, Output, Roster, Tensors
from fedatlas.seeds import generator

NAME = "mixed_cross_entropy"


@dataclass(frozen=True, kw_only=True)
class MixedCrossEntropy(Term):
    """Cross-entropy of examples mixed with a mean of other clients' examples, to the first order."""

    name: ClassVar[str] = NAME
    needs_classes: ClassVar[bool] = True
    differentiates_twice: ClassVar[bool] = True
    lam: float = 0.05
    """Share of the mean in the mixture; 0 is plain cross-entropy."""
    per_sample: bool = False
    """Draw a mean for each example and not one for the batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lam < 1:
            raise UsageError(
                f"MixedCrossEntropy(lam) must be in [0, 1), got {self.lam}.",
                code="out-of-range",
                setting="MixedCrossEntropy(lam)",
                got=self.lam,
            )

    def begin(self, local: ClientContext) -> None:
        """Take the means that the server sent."""
        if self.lam > 0 and self.name not in local.notes:
            raise UsageError(
                "MixedCrossEntropy needs the means that a MeanPool among the server's rules sends.",
                code="part-missing",
                part="MeanPool",
            )

    def prepare(self, local: ClientContext, batch: Batch) -> Batch:
        """Draw the step's mean; return the batch with inputs x' = (1 - lam) x, ready for a gradient by them."""
        if self.lam == 0:
            return batch
        means = local.notes[self.name]
        count = len(batch.labels) if self.per_sample else 1
        rng = generator(local.seed, NAME, local.steps)
        chosen = torch.randint(len(means["labels"]), (count,), generator=rng).to(batch.labels.device)
        local.scratch[self.name] = {kind: means[kind][chosen] for kind in ("inputs", "labels")}
        inputs = (1 - self.lam) * batch.inputs
        return batch._replace(inputs=inputs if inputs.is_cuda else inputs.requires_grad_())

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor:
        """Return the mean of l1 + l2 + l3."""
        if self.lam == 0:
            return F.cross_entropy(output.logits, batch.labels)
        inputs, labels = local.scratch[self.name]["inputs"], local.scratch[self.name]["labels"]
        if batch.inputs.requires_grad:
            first = (1 - self.lam) * F.cross_entropy(output.logits, batch.labels)
            second = self.lam * F.cross_entropy(output.logits, labels.expand_as(output.logits))
            (slope,) = torch.autograd.grad(first, batch.inputs, create_graph=True)
            # The mean is already in the slope: l1 is averaged over the batch before the gradient is taken.
            return first + second + self.lam * (slope * inputs).sum()
        return self._in_forward_mode(local, batch, inputs, labels)

    def _in_forward_mode(self, local: ClientContext, batch: Batch, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the same without a second derivative: <dl1/dx', x_g> is the change of l1 along x_g."""
        logits, change = logits_along(local, batch.inputs, inputs)
        first = (1 - self.lam) * F.cross_entropy(logits, batch.labels)
        second = self.lam * F.cross_entropy(logits, labels.expand_as(logits))
        # The gradient of cross-entropy by the logits is softmax - e_y.
        own = change.gather(1, batch.labels[:, None]).squeeze(1)
        along = ((logits.softmax(1) * change).sum(1) - own).mean()
        return first + second + self.lam * (1 - self.lam) * along


@dataclass(frozen=True, kw_only=True)
class MeanPool(ServerRule):
    """Pools the clients' means and sends each client of a round some of them."""

    name: ClassVar[str] = NAME
    leaves_change: ClassVar[bool] = True
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure(
            "inputs",
            "means of groups of the client's training inputs",
            "introduction",
            (UpTo("max_groups"), "inputs"),
            sender="some",
        ),
        Disclosure(
            "labels",
            "means of the labels of those groups",
            "introduction",
            (UpTo("max_groups"), "classes"),
            sender="some",
        ),
    )
    group: int | None = 2
    """Examples that are averaged into one mean; None averages all that a client has."""
    max_groups: int = 32
    """The most means that a client shares."""
    sent: int = 64
    """The most means that a client receives in a round, drawn again from the pool each time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group is not None and self.group < 2:
            raise UsageError(
                f"MeanPool(group) must be at least 2 (a mean of one is the example), got {self.group}.",
                code="out-of-range",
                setting="MeanPool(group)",
                got=self.group,
            )
        for title, value in (("max_groups", self.max_groups), ("sent", self.sent)):
            if value < 1:
                raise UsageError(
                    f"MeanPool({title}) must be at least 1, got {value}.",
                    code="out-of-range",
                    setting=f"MeanPool({title})",
                    got=value,
                )

    def introduce(self, data: ClientData) -> Tensors:
        """Return means over disjoint random groups of a training client; examples that fill no group are not sent."""
        if data.federation.data.kind == "tokens":
            raise UsageError(
                f"fedmix averages inputs; {data.federation.name} holds tokens. Choose another algorithm.",
                code="kind-mismatch",
                got="tokens",
            )
        size = self.group or data.num_examples
        if data.client.held_out or data.num_examples < max(size, 2):
            return {}
        device = data.labels.device
        rng = generator(0, NAME, data.name, device=device)
        order = torch.randperm(data.num_examples, generator=generator(0, NAME, "groups", data.name)).to(device)
        count = min(len(order) // size, self.max_groups)
        batches = [data.batch(own, rng) for own in data.client.train[order[: count * size]].split(size)]
        classes = len(data.federation.data.classes)
        return {
            "inputs": torch.stack([batch.inputs.mean(0) for batch in batches]),
            "labels": torch.stack([F.one_hot(batch.labels, classes).float().mean(0) for batch in batches]),
        }

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Pool the means."""
        introductions = [client.introduction[self.name] for client in roster if self.name in client.introduction]
        if not introductions:
            raise UsageError(
                f"fedmix: no client has the {self.group or 2} examples of a group. Lower group.",
                code="too-few-examples",
                wanted=self.group or 2,
            )
        pool = {kind: torch.cat([means[kind] for means in introductions]) for kind in ("inputs", "labels")}
        return pool | {"rounds": torch.zeros((), dtype=torch.int64)}

    def note(self, memory: Tensors, client: ClientInfo) -> Tensors:
        """Send a client some means, all of them where the pool is small."""
        rng = generator(0, NAME, "sent", int(memory["rounds"]), client.name)
        chosen = torch.randperm(len(memory["labels"]), generator=rng)[: self.sent].to(memory["labels"].device)
        return {kind: memory[kind][chosen] for kind in ("inputs", "labels")}

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        """Count the rounds, so that the next one draws other means."""
        return change, memory | {"rounds": memory["rounds"] + 1}


@recipe(changes="objective, server", paper="Yoon et al. 2021")
def fedmix(
    lam: float = 0.05, group: int | None = 2, max_groups: int = 32, sent: int = 64, per_sample: bool = False
) -> Algorithm:
    """FedAvg whose clients mix their examples with means of other clients' examples, to the first order."""
    pool = MeanPool(group=group, max_groups=max_groups, sent=sent)
    return Algorithm(
        name="fedmix",
        objective=(MixedCrossEntropy(lam=lam, per_sample=per_sample),),
        server=(pool,) if lam > 0 else (),
    )
