"""FedGR, the reweighting of FedGCR. Cheng, Yeh, Chen, Pastor, Chen: FedGCR: Achieving Performance and Fairness for
Federated Learning with Distinct Client Types via Group Customization and Reweighting, AAAI 2024.

client   h~_k = mean over the classes present of the mean of h over the class's examples                       (Eq. 4)
server   groups of clients by their h~;   L~_i = mean of L_k over the members of group i
         beta = delta (1 - gamma^{r-1})                                                             (Eq. 5; r = 1..R)
         a_k  = omega_k [L_k^{1-beta} L~_{c(k)}^beta]^{q+1}, normalised                                        (Eq. 3)

h is the type-specific prompt of an example where the model makes one, else its features. h~_k and L_k are of the model
that the client received.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.grouping import COVARIANCES, METHODS, Groups, group_clients, group_means
from fedatlas.atlas.provenance import made_of, origin_remark
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError, expect, unknown_name
from fedatlas.models.prompted import TypePrompted
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.checks import check_fields
from fedatlas.parts.context import ClientContext
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.objective import ReceivedLoss, Term, received_losses
from fedatlas.parts.types import Cohort, Roster, Tensors
from fedatlas.parts.weighting import Weighting
from fedatlas.seeds import derive

TYPE_VECTOR = "type_vector"


@dataclass(frozen=True, kw_only=True)
class TypeVector(Term):
    """Adds nothing to the loss; sends the server the class-balanced mean of the examples' type-specific prompts."""

    name: ClassVar[str] = TYPE_VECTOR
    needs_features: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure(
            "mean",
            "mean of the type-specific prompts (or features) of the client's training data, each class counting the "
            "same",
            axes=("features",),
        ),
    )
    after_training: bool = False
    """Send the mean under the model that the client has trained; False sends that under the received one."""

    def begin(self, local: ClientContext) -> None:
        """Find the mean under the received model."""
        local.scratch[self.name] = {"mean": class_balanced_mean(local)}

    def finish(self, local: ClientContext) -> Tensors:
        """Send the mean."""
        if self.after_training:
            local.scratch[self.name] = {"mean": class_balanced_mean(local)}
        return local.scratch[self.name]


@torch.no_grad()
def class_balanced_mean(local: ClientContext) -> Tensor:
    """Return h~, (width,), under the model as it is, in evaluation mode and without augmentation."""
    model, counts = local.model, local.data.label_counts
    mode = model.training
    model.eval()
    sums = []
    for batch in local.passes():
        vectors = model.type_prompts(batch.inputs) if isinstance(model, TypePrompted) else model(batch.inputs)[0]
        # As a product: adding by index has no fixed order on a GPU.
        sums.append(F.one_hot(batch.labels, len(counts)).double().T @ vectors.double())
    model.train(mode)
    present = counts > 0
    return (torch.stack(sums).sum(0)[present] / counts[present, None]).mean(0).float()


def type_vectors(cohort: Cohort) -> Tensor:
    """Return the vectors that a round's clients sent, (uploads, width)."""
    if not all(TYPE_VECTOR in upload.notes for upload in cohort.uploads):
        raise UsageError(
            "groups of types need the clients' vectors: add TypeVector() to the objective.",
            code="part-missing",
            part="TypeVector",
        )
    return torch.stack([upload.notes[TYPE_VECTOR]["mean"] for upload in cohort.uploads])


class Grouping(Protocol):
    """Says which of a round's clients belong together."""

    def find(self, cohort: Cohort) -> Groups:
        """Return the groups of a round's uploads and the means of the vectors that their members sent."""
        ...

    def labels(self, cohort: Cohort) -> Tensor:
        """Return the group of each upload's client, (uploads,) int64 on the CPU."""
        ...


@dataclass(frozen=True, kw_only=True)
class TypeGroups:
    """Groups the clients of each round again, by the vectors that they sent."""

    num_groups: int = 5
    """T', the most groups; FINCH finds their number itself."""
    method: str = "gmm"
    """``gmm``, ``kmeans`` or ``finch``."""
    covariance: str = "diag"
    """Of the mixture: ``diag``, ``spherical`` or ``full``."""
    n_init: int = 10
    """Starts of which the best is taken."""
    seed: int = 0
    """Of the starts, with the round."""
    by_run: bool = False
    """Let the run's seed draw the starts, and not ``seed``."""

    def __post_init__(self) -> None:
        check_fields(self)
        for title, value in (("num_groups", self.num_groups), ("n_init", self.n_init)):
            if value < 1:
                raise UsageError(
                    f"TypeGroups({title}) must be at least 1, got {value}.",
                    code="out-of-range",
                    setting=f"TypeGroups({title})",
                    got=value,
                )
        if self.method not in METHODS:
            raise unknown_name("method of grouping", self.method, METHODS)
        if self.covariance not in COVARIANCES:
            raise unknown_name("covariance", self.covariance, COVARIANCES)

    def find(self, cohort: Cohort) -> Groups:
        """Return the groups of a round's uploads; asked twice, the same ones."""
        return group_clients(
            type_vectors(cohort),
            self.num_groups,
            method=self.method,
            covariance=self.covariance,
            n_init=self.n_init,
            seed=derive(cohort.seed, TYPE_VECTOR) if self.by_run else derive(self.seed, TYPE_VECTOR, cohort.round),
        )

    def labels(self, cohort: Cohort) -> Tensor:
        """Return the group of each upload's client."""
        return self.find(cohort).labels


@dataclass(frozen=True, kw_only=True)
class FixedGroups:
    """Groups that were known before training."""

    clients: tuple[str, ...]
    """The clients, by name."""
    groups: tuple[int, ...]
    """The group of each."""
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The provenance of the atlas that they were made from, if there is one."""

    def __post_init__(self) -> None:
        if len(self.clients) != len(self.groups):
            raise UsageError(
                f"FixedGroups needs one group a client, got {len(self.groups)} for {len(self.clients)}.",
                code="wrong-count",
                got=len(self.groups),
                wanted=len(self.clients),
            )

    def find(self, cohort: Cohort) -> Groups:
        """Return the known groups, and the groups' centres by the vectors of this round's clients."""
        labels = self.labels(cohort).unique(return_inverse=True)[1]
        return Groups(labels, group_means(type_vectors(cohort), labels))

    def labels(self, cohort: Cohort) -> Tensor:
        """Return the group of each upload's client."""
        known = dict(zip(self.clients, self.groups, strict=True))
        names = [cohort.roster[upload.client].name for upload in cohort.uploads]
        self.check(names)
        return torch.tensor([known[name] for name in names])

    def remarks(self, federation: Federation) -> list[str]:
        """Return a remark where the groups have a federation's clients, but were made of others."""
        if not {federation.clients[i].name for i in federation.training_ids} <= set(self.clients):
            return []  # an error before the first round
        names = [client.name for client in federation]
        remark = origin_remark(self.provenance, made_of(federation), names)
        return [] if remark is None else [remark]

    def check(self, names: Sequence[str]) -> None:
        """Raise UsageError if a client has no group."""
        known = set(self.clients)
        if missing := [name for name in names if name not in known]:
            raise UsageError(
                f"FixedGroups: client {missing[0]!r} has no group among the {len(known)} that have one. "
                "Make the groups from the same federation.",
                code="client-missing",
                client=missing[0],
            )


@dataclass(frozen=True, kw_only=True)
class GroupLoss(Weighting):
    """Gives more weight to clients with a high loss, and to clients of groups with a high loss."""

    name: ClassVar[str] = "group_loss"
    groups: Grouping = TypeGroups()
    """Who belongs together."""
    q: float = 1.0
    """How much the loss counts; -1 leaves the weights as they come."""
    delta: float = 0.5
    """The share of the group's loss against the client's own, in the end."""
    gamma: float = 0.5
    """What is left of the way to ``delta`` after each round."""
    delay: int = 1
    """Rounds before the group's loss begins to count."""
    by_examples: bool = False
    """Weigh the members of a group by their examples in its loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -1 <= self.q < math.inf:
            raise UsageError(
                f"GroupLoss(q) must be at least -1, got {self.q}.",
                code="out-of-range",
                setting="GroupLoss(q)",
                got=self.q,
            )
        for title, value in (("delta", self.delta), ("gamma", self.gamma)):
            if not 0 <= value <= 1:
                raise UsageError(
                    f"GroupLoss({title}) must be in [0, 1], got {value}.",
                    code="out-of-range",
                    setting=f"GroupLoss({title})",
                    got=value,
                )
        if self.delay < 0:
            raise UsageError(
                f"GroupLoss(delay) must not be negative, got {self.delay}.",
                code="out-of-range",
                setting="GroupLoss(delay)",
                got=self.delay,
            )

    def check_clients(self, federation: Federation) -> list[str]:
        """Return a remark where known groups were made of other clients."""
        return self.groups.remarks(federation) if isinstance(self.groups, FixedGroups) else []

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Look for clients without a group before the first round; return the memory, which is empty."""
        if isinstance(self.groups, FixedGroups):
            self.groups.check([client.name for client in roster if not client.held_out])
        return {}

    def beta(self, round: int) -> float:
        """Return the share of the group's loss in a round, counted from 1."""
        return self.delta * (1 - self.gamma ** max(round - self.delay, 0))  # Eq. 5

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Multiply the weights by ``[L_k^{1-beta} L~_{c(k)}^beta]^{q+1}``."""
        if self.q == -1:
            return weights, memory
        # A loss of exactly 0 has no logarithm; the floor is far below any that matters.
        losses = received_losses(cohort, type(self).__name__).clamp(min=1e-10)
        beta = self.beta(cohort.round)
        exponents = (1 - beta) * losses.log()
        if beta > 0:
            member = F.one_hot(self.groups.labels(cohort).unique(return_inverse=True)[1]).double()
            sizes = [float(upload.num_examples) if self.by_examples else 1.0 for upload in cohort.uploads]
            share = member * torch.tensor(sizes, dtype=torch.float64)[:, None]
            group_losses = (share / share.sum(0)).T @ losses
            exponents = exponents + beta * (member @ group_losses).log()
        exponents = (self.q + 1) * exponents
        return weights * (exponents - exponents.max()).exp(), memory  # relative to the largest: no overflow


class Grouped(Protocol):
    """Vectors of named clients that can be grouped, such as an atlas."""

    @property
    def names(self) -> Sequence[str]:
        """The clients."""
        ...

    def groups(self, count: int, *, method: str, seed: int) -> Tensor:
        """Return the group of each client, (clients,)."""
        ...


def grouping_by(atlas: Grouped | str | Path | None, types: TypeGroups) -> Grouping:
    """Return groups that are found in each round, or those of an atlas (or of the file that holds one)."""
    if atlas is None:
        return types
    opened = Atlas.load(atlas) if isinstance(atlas, str | Path) else atlas
    found = opened.groups(min(types.num_groups, len(opened.names)), method=types.method, seed=0).tolist()
    groups = tuple(int(group) for group in found)
    provenance = opened.provenance if isinstance(opened, Atlas) else {}
    return FixedGroups(clients=tuple(opened.names), groups=groups, provenance=provenance)


@recipe(changes="weighting", over="base", paper="FedGCR")
def fedgr(
    base: Algorithm | None = None,
    num_groups: int = 5,
    method: str = "gmm",
    q: float = 1.0,
    delta: float = 0.5,
    gamma: float = 0.5,
    atlas: Grouped | str | Path | None = None,
    covariance: str = "diag",
    after_training: bool = False,
    by_run: bool = False,
) -> Algorithm:
    """Any base algorithm (FedAvg if none is given) in which clients and groups of clients with a high loss count more.

    Groups are found in each round from what the clients' examples look like to the model, or once from an ``atlas``,
    given itself or as its file.
    """
    groups = grouping_by(atlas, TypeGroups(num_groups=num_groups, method=method, covariance=covariance, by_run=by_run))
    weighting = GroupLoss(groups=groups, q=q, delta=delta, gamma=gamma)
    return reweight(base if base is not None else fedavg(), weighting, TypeVector(after_training=after_training))


def reweight(base: Algorithm, weighting: GroupLoss, vector: TypeVector) -> Algorithm:
    """Return the base with group reweighting and with the terms that it needs on clients."""
    expect(base, Algorithm, "fedgr(base) must be an algorithm", "Write fedgr(fedatlas.algorithms.fedavg()).")
    if any(link.name == GroupLoss.name for link in base.weighting):
        raise UsageError(
            f"fedgr over {base.name}: it already weighs by the groups' losses; change its settings there.",
            code="base-unfit",
            base=base.name,
            part=GroupLoss.__name__,
        )
    if deaf := [type(rule).__name__ for rule in base.server if rule.ignores_weights]:
        raise UsageError(
            f"fedgr over {base.name}: its server rule {deaf[0]} ignores weights, so weighing has no effect. "
            "Use another base.",
            code="base-unfit",
            base=base.name,
            part=deaf[0],
        )
    asked: list[Term] = [ReceivedLoss()]
    if isinstance(weighting.groups, TypeGroups):
        asked.insert(0, vector)
    known = {term.name for term in base.objective}
    name = "fedgr" if base.name == "fedavg" else f"fedgr+{base.name}"
    named = replace(base, name=name).with_terms(*(term for term in asked if term.name not in known))
    return named.with_weighting(weighting)
