"""FedPCE: Federated Personalized Client Embeddings (anonymous submission; the version with learned embeddings).

model   scale and shift of norm layer k are gamma_k(v_n) and beta_k(v_n), made from client n's embedding v_n (Eq. 3, 4)
client  steps on cross-entropy over (shared w, its own v_n); v_n = e^(n) at first, 0 from the E-th client on
server  w <- (1/N) sum_n w_n                 the perceptrons that make gamma and beta are shared, v_n never leaves
later   a new client tunes v alone, w at rest: see fedatlas.adapting
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError, expect_number, unknown_name
from fedatlas.models.conditioned import ClientEmbedding, ConditionedClassifier, NormGenerators, bake
from fedatlas.models.norms import HEAD_NORM, HEAD_NORMS, with_head_norm
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.checks import check_fields
from fedatlas.parts.extension import Extension
from fedatlas.parts.optimizer import Adam, Gradient, LocalOptimizer, Rate, Relative, RoundRate, Wrapper
from fedatlas.parts.split import Split
from fedatlas.parts.types import Tensors, UsualModels
from fedatlas.parts.weighting import ByExamples, Equal

Newcomer = Literal["unit", "mean"]


@dataclass(frozen=True, kw_only=True)
class ConditionedNorms(Extension):
    """Makes the scales and shifts of all norms of a model from one embedding."""

    models: ClassVar[UsualModels] = {
        "image": ("cnn", {"norm": "instance"}),
        "features": ("mlp", {"norm": "layer"}),
    }

    embedding: int = 32
    """How many numbers the embedding has."""
    hidden: int = 64
    """Width of the hidden layer of each perceptron."""
    head_norm: str = "layer"
    """How the norm before the head, if there is one, normalises: over the channels of each vector (``layer``), over the
    batch (``batch``), or not at all (``film``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for title in ("embedding", "hidden"):
            if getattr(self, title) < 1:
                raise UsageError(
                    f"ConditionedNorms({title}) must be at least 1, got {getattr(self, title)}.",
                    code="out-of-range",
                    setting=f"ConditionedNorms({title})",
                    got=getattr(self, title),
                )
        if self.head_norm == "instance":
            raise UsageError(
                "ConditionedNorms(head_norm) cannot be 'instance': after pooling, a channel is one number, whose "
                "variance is 0; before it, the mean of every image would be the shift. Use 'layer', 'batch' or 'film'.",
                code="wrong-value",
                setting="ConditionedNorms(head_norm)",
                got=self.head_norm,
            )
        if self.head_norm not in HEAD_NORMS:
            raise unknown_name("head_norm", self.head_norm, HEAD_NORMS)

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the model with its norms conditioned; it is changed in place."""
        return ConditionedClassifier(
            with_head_norm(model, self.head_norm), embedding=self.embedding, hidden=self.hidden
        )

    def bake(self, network: nn.Module) -> nn.Module:
        """Return the network with plain norms, whose scales and shifts are those of the embedding."""
        return bake(network)

    def baked_options(self) -> dict[str, Any]:
        """Return the kind of the norm before the head."""
        return {HEAD_NORM: self.head_norm}

    def client_vector(self, network: nn.Module) -> str | None:
        """Return the name of the embedding."""
        return next(iter(embeddings(network)), None)


@dataclass(frozen=True, kw_only=True)
class KeepEmbedding(Split):
    """Shares all but the embedding, which starts as a different unit vector for each client."""

    name: ClassVar[str] = "keep_embedding"
    newcomer: Newcomer = "unit"
    """Where a held-out client starts: at its own unit vector, or at the mean of those that trained."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.newcomer not in ("unit", "mean"):
            raise UsageError(
                f"KeepEmbedding(newcomer) must be 'unit' or 'mean', got {self.newcomer!r}.",
                code="wrong-value",
                setting="KeepEmbedding(newcomer)",
                got=self.newcomer,
            )

    def personal_parameters(self, model: nn.Module) -> set[str]:
        """Return the name of the embedding."""
        return set(embeddings(model))

    def initial_personal(self, model: nn.Module, place: int) -> Tensors:
        """Return the unit vector e^(place), or 0 where there are more clients than dimensions."""
        first = {name: torch.zeros_like(vector) for name, vector in embeddings(model).items()}
        for vector in first.values():
            vector[place : place + 1] = 1.0
        return first

    @property
    def newcomers_take_the_mean(self) -> bool:
        """Whether a held-out client starts from the mean of those that trained."""
        return self.newcomer == "mean"


def embeddings(model: nn.Module) -> Tensors:
    """Return the embeddings of a model, found by the type of their module, by name."""
    found = {f"{p}.vector": m.vector.detach() for p, m in model.named_modules() if isinstance(m, ClientEmbedding)}
    if not found:
        raise UsageError(
            f"KeepEmbedding: {type(model).__name__} has no embedding. Add ConditionedNorms() to the algorithm's "
            "extensions, as fedpce() does.",
            code="model-unfit",
            got=type(model).__name__,
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Group:
    """The parameters inside modules of one type, with their own learning rate."""

    of: type[nn.Module]
    lr: float
    min_lr: float = 0.0
    """Where a cosine schedule ends."""
    adapting_lr: float | None = None
    """The first rate when a new client tunes its personal values; None is ``lr``."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Grouped(Wrapper):
    """Another optimizer, with other learning rates for some types of modules; the schedule and all else are its own."""

    name: ClassVar[str] = "grouped"
    elementwise: ClassVar[bool] = True
    groups: tuple[Group, ...] = ()
    places: tuple[int, ...] = field(default=(), repr=False)
    """The group of each parameter, counted from 1, or 0 for none; ``fitted`` looks them up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.base, Wrapper) and not isinstance(self.base, Relative):
            raise UsageError(
                f"Grouped(base) must be a plain optimizer, got {type(self.base).__name__}; put that around Grouped.",
                code="wrong-type",
                setting="Grouped(base)",
                got=type(self.base).__name__,
            )
        for group in self.groups:
            self._of(group)

    def rates_at(self, round: int, rounds: int) -> RoundRate:
        """Return the rate of the parameters outside all groups, then that of each group."""
        return (self.lr_at(round, rounds), *(self._of(group).lr_at(round, rounds) for group in self.groups))

    def fitted(self, model: nn.Module, names: Sequence[str]) -> LocalOptimizer:
        """Return the optimizer that knows each parameter's group."""
        place_of: dict[int, int] = {}
        for place, group in enumerate(self.groups, 1):
            members = (module for module in model.modules() if isinstance(module, group.of))
            place_of |= {id(parameter): place for module in members for parameter in module.parameters()}
        parameters = dict(model.named_parameters())
        places = tuple(place_of.get(id(parameters[name]), 0) for name in names)
        return replace(self, base=self.base.fitted(model, names), places=places)

    def adapting(self, lr: float | None = None, min_lr: float | None = None) -> LocalOptimizer:
        """Return the optimizer for a new client: each group begins at its ``adapting_lr``, or all at ``lr``."""
        changed = []
        for group in self.groups:
            first = (group.adapting_lr or group.lr) if lr is None else lr
            changed.append(replace(group, lr=first, min_lr=min(group.min_lr, first) if min_lr is None else min_lr))
        return replace(self, base=self.base.adapting(lr, min_lr), groups=tuple(changed))

    def step(self, parameters: list[Tensor], state: list[list[Tensor]], gradient: Gradient, lr: Rate) -> None:
        """Take one step, each parameter at the rate of its group."""
        if len(self.places) != len(parameters):
            raise UsageError(
                "Grouped must be fitted to a model before it steps; call fitted(model, ...) first.", code="not-fitted"
            )
        of_group = lr.unbind() if isinstance(lr, Tensor) and lr.ndim else lr
        if not isinstance(of_group, tuple) or len(of_group) != 1 + len(self.groups):
            raise UsageError(
                f"Grouped needs the rates that rates_at(round, rounds) returns, got {lr}.", code="wrong-type"
            )
        rates = [of_group[place] for place in self.places]
        self.base.update(parameters, gradient(), state, rates)

    def _of(self, group: Group) -> LocalOptimizer:
        return self.base.adapting(group.lr, group.min_lr)


@recipe(changes="model, split, optimizer", paper="FedPCE")
def fedpce(
    embedding: int = 32,
    hidden: int = 64,
    head_norm: str = "layer",
    uniform: bool = True,
    newcomer: Newcomer = "unit",
    lr: float = 1e-4,
    generator_lr: float = 1e-2,
    embedding_lr: float = 0.1,
) -> Algorithm:
    """Each client has its own short vector; shared perceptrons make all norms' scales and shifts from them."""
    for title, rate in (("lr", lr), ("generator_lr", generator_lr), ("embedding_lr", embedding_lr)):
        expect_number(rate, f"fedpce({title})")
    groups = (
        Group(of=NormGenerators, lr=generator_lr, min_lr=min(1e-6, generator_lr)),
        Group(of=ClientEmbedding, lr=embedding_lr, min_lr=min(1e-4, embedding_lr), adapting_lr=min(1e-2, embedding_lr)),
    )
    adam = Adam(
        lr=lr, min_lr=min(1e-6, lr), beta1=0.5, beta2=0.9, weight_decay=1e-4, schedule="cosine", keep_state=True
    )
    return Algorithm(
        name="fedpce",
        weighting=(Equal() if uniform else ByExamples(),),
        split=KeepEmbedding(newcomer=newcomer),
        optimizer=Grouped(base=adam, groups=groups),
        extensions=(ConditionedNorms(embedding=embedding, hidden=hidden, head_norm=head_norm),),
    )
