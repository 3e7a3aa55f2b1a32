"""What a client minimises: terms that add."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.data.task import Task
from fedatlas.errors import TrainingError, UsageError
from fedatlas.models.classifier import inside_transformation
from fedatlas.parts.checks import check_fields
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.types import Cohort, Tensors, UsualModels

if TYPE_CHECKING:
    from fedatlas.data.federation import Federation
    from fedatlas.parts.context import ClientContext, ClientData
from fedatlas.parts.types import Batch, Output

CLIENT_VECTOR = "mean"
"""The name in a term's memory of a vector that describes the client's data; an atlas of the run is made of it."""


class Term:
    """One summand of the local loss. Subclasses are frozen dataclasses of hyper-parameters.

    A term's name is the key of its memory, of the server's notes to it and of its messages; a server rule of the
    same name is its other half. Two terms of one algorithm may not share a name.
    """

    name: ClassVar[str]
    discloses: ClassVar[tuple[Disclosure, ...]] = ()
    """What leaves the client beyond the model's change."""
    surveys: ClassVar[bool] = False
    """Whether clients are asked (``survey``) before each round's training."""
    weighs_examples: ClassVar[bool] = False
    """Whether ``loss`` heeds the batch's weights; clients of unequal sizes can then step together."""
    differentiates_twice: ClassVar[bool] = False
    """Whether ``loss`` holds a gradient of the network's output, so that the network must not be compiled."""
    needs_classes: ClassVar[bool] = False
    """Whether each example must have one class."""
    needs_features: ClassVar[bool] = False
    """Whether it looks at the features that a network returns beside its outputs."""
    models: ClassVar[UsualModels] = {}
    """The model that suits it, by kind of data, where not any will do."""
    needs_plain_sgd: ClassVar[bool] = False
    """Whether it takes a client's change for its rate times the sum of its gradients: SGD without momentum."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def regulariser_weight(self) -> float | None:
        """The weight of a regulariser against the loss; None for a term that is not one."""
        return None

    def check_clients(self, federation: Federation) -> list[str]:
        """Return remarks about the clients, to warn of before the first round; raise if they cannot be used."""
        return []

    def check_model(self, model: nn.Module, personal: Collection[str]) -> None:
        """Raise UsageError if the term is wrong for a model whose parameters ``personal`` stay with their client."""

    def introduce(self, data: ClientData) -> Tensors:
        """Return the tensors that the server needs before the first round; sent once."""
        return {}

    def survey(self, local: ClientContext) -> Tensors:
        """Return the tensors that the server needs before this round's training; the model is the received one."""
        return {}

    def begin(self, local: ClientContext) -> None:
        """Prepare ``local.memory`` before the first step; the model is the received one."""

    def prepare(self, local: ClientContext, batch: Batch) -> Batch:
        """Return the batch that the model and all terms shall see in place of this one."""
        return batch

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor | None:
        """Return the summand, a pure function of the current parameters and the batch; None adds nothing."""
        return None

    def gradient(self, local: ClientContext, gradients: list[Tensor]) -> list[Tensor]:
        """Return the gradients, in the parameters' order, with this term's own added.

        In place of ``loss``, for a term of the parameters alone whose gradient is known: autograd then need not walk
        over every parameter twice. What it would add to the loss is not in the recorded training loss.
        """
        return gradients

    def finish(self, local: ClientContext) -> Tensors:
        """Update ``local.memory`` after the last step and return the tensors to send."""
        return {}


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Term):
    """The mean loss of the batch: the cross-entropy, or that of another task than classification."""

    name: ClassVar[str] = "cross_entropy"
    weighs_examples: ClassVar[bool] = True

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor:
        """Return the mean over the batch of ``-log softmax(logits)[label]``, or of the task's loss."""
        return mean_loss(local.task, output.logits, batch)


@dataclass(frozen=True, kw_only=True)
class ReceivedLoss(Term):
    """Adds nothing to the loss; sends the server the received model's loss on the client's training data."""

    name: ClassVar[str] = "received_loss"
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure("loss", "mean loss of the received model on the client's training data"),
    )

    def begin(self, local: ClientContext) -> None:
        """Measure the received model before the first step."""
        local.scratch[self.name] = {"loss": local.received_loss()}

    def finish(self, local: ClientContext) -> Tensors:
        """Send the loss."""
        return local.scratch[self.name]


def summands(objective: Iterable[Term], local: ClientContext, batch: Batch, output: Output) -> list[Tensor]:
    """Return the terms' summands of the loss, one number each."""
    found = []
    for term in objective:
        loss = term.loss(local, batch, output)
        if loss is None:
            continue
        if getattr(loss, "ndim", 0):
            raise UsageError(
                f"the loss of the term {term.name!r} ({type(term).__name__}) must be one number, got a tensor of shape "
                f"{tuple(loss.shape)}. Return the mean over the examples, e.g. loss.mean().",
                code="wrong-shape",
                term=term.name,
                got=tuple(loss.shape),
            )
        found.append(loss)
    return found


def mean_loss(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """Return the mean of the task's loss over the batch, weighted if the batch has weights."""
    if task.has_classes:
        return mean_cross_entropy(outputs, batch)
    losses = task.losses(outputs, batch.labels)
    return losses.mean() if batch.weights is None else (losses * batch.weights).sum() / batch.weights.sum()


def mean_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over the batch, weighted if the batch has weights."""
    if batch.weights is None and not inside_transformation():
        return F.cross_entropy(logits, batch.labels)
    # Under vmap torch's own would be taken apart into many small operations.
    losses = -logits.log_softmax(1).gather(1, batch.labels[:, None]).squeeze(1)
    return losses.mean() if batch.weights is None else (losses * batch.weights).sum() / batch.weights.sum()


def received_losses(cohort: Cohort, part: str) -> Tensor:
    """Return the loss of the received model on each answering client's training data, float64, for a part."""
    name = ReceivedLoss.name
    if not all(name in upload.notes for upload in cohort.uploads):
        raise UsageError(
            f"{part} needs the clients' losses: add ReceivedLoss() to the objective.",
            code="part-missing",
            part="ReceivedLoss",
        )
    losses = torch.stack([upload.notes[name]["loss"] for upload in cohort.uploads]).double().cpu()
    for upload, loss in zip(cohort.uploads, losses.tolist(), strict=True):
        if not math.isfinite(loss):
            raise TrainingError(
                f"the received model's loss is {loss}. Lower the learning rate, or look at this client's data.",
                client=cohort.roster[upload.client].name,
                round=cohort.round,
                stage="aggregation",
                code="not-finite",
                got=loss,
            )
    return losses
