"""FedGC, the customization of FedGCR. Cheng, Yeh, Chen, Pastor, Chen: FedGCR: Achieving Performance and Fairness for
Federated Learning with Distinct Client Types via Group Customization and Reweighting, AAAI 2024.

model        a frozen ViT with prompts that GC-Net shifts for each image by its type-specific prompt h
client loss  cross-entropy + lambda1 l_GC + lambda2 l_RA                                                      (Eq. 6)
             l_GC = -log( e^{s(h, H_i) / tau} / (e^{s(h, h~_prev) / tau} + sum_t e^{s(h, H_t) / tau}) )       (Eq. 7)
             l_RA = -log( e^{s(z, z_0) / tau} / (e^{s(z, z_0) / tau} + e^{s(z, z_prev) / tau}) )              (Eq. 8)
server       H_t: the means of the clients' h~ over the groups of the last round;   i: the client's group there

s is the cosine. h~_prev is the client's own h~ of its last participation. z are the features under the current
parameters, z_0 under the received ones, z_prev under those with which the client ended its last participation.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.fedgr import TYPE_VECTOR, FixedGroups, Grouped, Grouping, TypeGroups, TypeVector, grouping_by
from fedatlas.algorithms.registry import recipe
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.models.head import head_parameters
from fedatlas.models.prompted import GC_NET_LAYERS, CustomizedClassifier, PromptedClassifier, TypePrompted
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientContext
from fedatlas.parts.extension import Extension
from fedatlas.parts.objective import CLIENT_VECTOR, Term
from fedatlas.parts.optimizer import Adam
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.types import Batch, ClientInfo, Cohort, Output, Tensors, UsualModels

NAME = "group_customization"
Similarity = Literal["cosine", "dot"]
OWN = "model/"
"""Prefix, in a client's memory, of the parameters with which it ended its last participation."""
ADAMW = Adam(lr=1e-3, weight_decay=1e-2, decoupled=True)


@dataclass(frozen=True, kw_only=True)
class Customized(Extension):
    """Adds GC-Net to a model with prompts."""

    mix_in_batch: bool = False
    """Give, in training, an image the shifts of others of its batch, as the authors' code does."""
    layers: int = GC_NET_LAYERS
    """Of GC-Net."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers < 1:
            raise UsageError(
                f"Customized(layers) must be at least 1, got {self.layers}.",
                code="out-of-range",
                setting="Customized(layers)",
                got=self.layers,
            )

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the model with GC-Net; one that makes type-specific prompts already stays as it is."""
        if isinstance(model, TypePrompted):
            return model
        if not isinstance(model, PromptedClassifier):
            raise UsageError(
                f"fedgcr and fedgc need a frozen ViT with prompts, and {type(model).__name__} is none. "
                "Choose the model prompted_vit, or use fedgr, which takes any model.",
                code="model-unfit",
                got=type(model).__name__,
            )
        return CustomizedClassifier(model, mix_in_batch=self.mix_in_batch, layers=self.layers)


@dataclass(frozen=True, kw_only=True)
class GroupCustomization(Term):
    """Draws type-specific prompts to the client's group and features to the received model's."""

    name: ClassVar[str] = NAME
    needs_features: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    models: ClassVar[UsualModels] = {"image": ("prompted_vit", {})}
    lambda1: float = 0.5
    """Weight of the group customization, l_GC."""
    lambda2: float = 0.1
    """Weight of the representation alignment, l_RA."""
    tau: float = 0.5
    """Temperature of l_GC."""
    tau_alignment: float = 0.5
    """Temperature of l_RA."""
    ramp: bool = False
    """Let ``lambda1`` grow from half its value to the whole over the run, as the authors' code does."""
    similarity: Similarity = "cosine"
    """``s``: the cosine, as in the authors' code, or the ``dot`` product of the paper's text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for title in ("lambda1", "lambda2"):
            if not 0 <= getattr(self, title) < math.inf:
                raise UsageError(
                    f"GroupCustomization({title}) must not be negative, got {getattr(self, title)}.",
                    code="out-of-range",
                    setting=f"GroupCustomization({title})",
                    got=getattr(self, title),
                )
        for title in ("tau", "tau_alignment"):
            if not getattr(self, title) > 0:
                raise UsageError(
                    f"GroupCustomization({title}) must be above 0, got {getattr(self, title)}.",
                    code="out-of-range",
                    setting=f"GroupCustomization({title})",
                    got=getattr(self, title),
                )

    def begin(self, local: ClientContext) -> None:
        """Set the centres beside the client's own last mean, if there are any yet."""
        if not isinstance(local.model, TypePrompted):
            raise UsageError(
                f"GroupCustomization needs a model that makes type-specific prompts, got {type(local.model).__name__}: "
                "no other extension may stand around it.",
                code="model-unfit",
                got=type(local.model).__name__,
            )
        if self.lambda1 == 0:
            return
        if TYPE_VECTOR not in local.scratch:
            raise UsageError(
                "GroupCustomization needs the client's own mean: put TypeVector() before it.",
                code="part-missing",
                part="TypeVector",
            )
        if self.name not in local.notes:
            return
        note, mean = local.notes[self.name], local.scratch[TYPE_VECTOR]["mean"]
        centres = note["centres"]
        # Who did not take part in the last round has no group there: it takes the nearest.
        nearest = (centres - mean).square().sum(1).argmin()
        previous = local.memory.get(self.name, {}).get(CLIENT_VECTOR)
        anchors = centres if previous is None else torch.cat([centres, previous[None]])
        growth = (1 + note["progress"]) / 2 if self.ramp else torch.ones_like(note["progress"])
        local.scratch[self.name] = {
            "anchors": self._scaled(anchors),
            "group": torch.where(note["group"] < 0, nearest, note["group"]),
            "weight": self.lambda1 * growth,
        }

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor | None:
        """Return the weighted terms that apply: neither in the first round."""
        terms = (self._customization(local, batch), self._alignment(local, batch, output))
        found = [term for term in terms if term is not None]
        return torch.stack(found).sum() if found else None

    def _scaled(self, vectors: Tensor) -> Tensor:
        """Return vectors whose products are the similarity."""
        return F.normalize(vectors, dim=1) if self.similarity == "cosine" else vectors

    def _customization(self, local: ClientContext, batch: Batch) -> Tensor | None:
        known = local.scratch.get(self.name)
        if known is None:
            return None
        assert isinstance(local.model, TypePrompted)
        prompts = self._scaled(local.model.type_prompts(batch.inputs))
        # Eq. 7 is the cross-entropy of choosing the own group's centre among all centres and the own last mean.
        logits = prompts @ known["anchors"].T / self.tau
        return known["weight"] * F.cross_entropy(logits, known["group"].expand(len(logits)))

    def _alignment(self, local: ClientContext, batch: Batch, output: Output) -> Tensor | None:
        remembered = local.memory.get(self.name, {})
        previous = {name.removeprefix(OWN): w for name, w in remembered.items() if name.startswith(OWN)}
        if self.lambda2 == 0 or not previous:
            return None
        mode = local.model.training
        local.model.eval()  # without dropout, whose draws would hide how near the three are
        with torch.no_grad():
            references = [local.forward(parameters, batch.inputs).features for parameters in (local.start, previous)]
        local.model.train(mode)
        if self.similarity == "cosine":
            similarities = [F.cosine_similarity(output.features, z, dim=1) for z in references]
        else:
            similarities = [(output.features * z).sum(1) for z in references]
        # Eq. 8 is the cross-entropy of choosing the received model (class 0) over the previous one.
        logits = torch.stack(similarities, dim=1) / self.tau_alignment
        return self.lambda2 * F.cross_entropy(logits, torch.zeros_like(logits[:, 0], dtype=torch.int64))

    def finish(self, local: ClientContext) -> Tensors:
        """Remember this round's mean, and the parameters that the features depend on."""
        memory: Tensors = {}
        if self.lambda1 > 0:
            memory[CLIENT_VECTOR] = local.scratch[TYPE_VECTOR]["mean"]
        if self.lambda2 > 0:
            idle = set(head_parameters(local.model))
            memory |= {OWN + name: w.detach().clone() for name, w in local.parameters.items() if name not in idle}
        if memory:
            local.memory[self.name] = memory
        return {}


@dataclass(frozen=True, kw_only=True)
class GroupCentres(ServerRule):
    """Groups the clients of each round, and sends the groups' centres to the clients of the next round."""

    name: ClassVar[str] = NAME
    leaves_change: ClassVar[bool] = True
    groups: Grouping = TypeGroups()
    """How they are grouped."""

    def check_clients(self, federation: Federation) -> list[str]:
        """Return a remark where known groups were made of other clients."""
        return self.groups.remarks(federation) if isinstance(self.groups, FixedGroups) else []

    def note(self, memory: Tensors, client: ClientInfo) -> Tensors:
        """Send the centres and the client's group, -1 where it has none; nothing in the first round."""
        if not memory:
            return {}
        return {"centres": memory["centres"], "progress": memory["progress"], "group": memory["group"][client.id]}

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        """Leave the change as it is, and group the clients that answered."""
        labels, centres = self.groups.find(cohort)
        groups = torch.full((len(cohort.roster),), -1)
        groups[[upload.client for upload in cohort.uploads]] = labels
        progress = torch.tensor(cohort.round / cohort.rounds)
        return change, {
            "centres": centres,
            "group": groups.to(centres.device),
            "progress": progress.to(centres.device),
        }


@recipe(changes="model, objective, server, optimizer", model="prompted_vit", paper="FedGCR")
def fedgc(
    num_groups: int = 5,
    method: str = "gmm",
    lambda1: float = 0.5,
    lambda2: float = 0.1,
    tau: float = 0.5,
    atlas: Grouped | str | Path | None = None,
    similarity: Similarity = "cosine",
    covariance: str = "diag",
    after_training: bool = False,
    by_run: bool = False,
    gc_layers: int = GC_NET_LAYERS,
) -> Algorithm:
    """FedAvg over a frozen ViT whose prompts are customized to each image's type, drawn to those of its group.

    Groups are found in each round from the clients' type-specific prompts, or once from an ``atlas``.
    """
    groups = grouping_by(atlas, TypeGroups(num_groups=num_groups, method=method, covariance=covariance, by_run=by_run))
    term = GroupCustomization(lambda1=lambda1, lambda2=lambda2, tau=tau, tau_alignment=tau, similarity=similarity)
    customized = customizing(groups, term, TypeVector(after_training=after_training))
    return replace(customized, extensions=(Customized(layers=gc_layers),))


def customizing(groups: Grouping, term: GroupCustomization, vector: TypeVector) -> Algorithm:
    """Return FedGC from its parts."""
    base = fedavg()
    return Algorithm(
        name="fedgc",
        objective=(*base.objective, vector, term),
        weighting=base.weighting,
        server=(GroupCentres(groups=groups),),
        optimizer=ADAMW,
        extensions=(Customized(),),
    )
