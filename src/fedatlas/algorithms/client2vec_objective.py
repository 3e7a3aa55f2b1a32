"""Client2Vec on the clients: local training that ignores how clients differ (Eq. 4). The recipe is in client2vec.py.

z_P  = z P;  z: the features, the input of the classifier h;  P, G: trained with the model
loss = the base's + lambda_o mean over batch and clients of |cos(z_P, beta_i)| + lambda_d KL(h(z) || G(z_P))

beta_i are the feature halves of the clients that train. The KL is of the two softmax distributions, batch mean.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.algorithms.client2vec_sampling import VECTOR, check_half, positions
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.provenance import atlas_remarks
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError, unknown_name
from fedatlas.models.head import find_head
from fedatlas.parts.context import ClientContext
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.extension import Extension
from fedatlas.parts.objective import Term
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.split import ShareAll, Split
from fedatlas.parts.types import Batch, ClientInfo, Output, Roster, Tensors

NAME, VECTORS = "index_orthogonality", "vectors"
Mode = Literal["mean_cos", "mean_dot", "sum_dot"]
MODES = ("mean_cos", "mean_dot", "sum_dot")
Direction = Literal["forward", "reverse"]
DIRECTIONS = ("forward", "reverse")
Through = Literal["h", "g"]


class ProjectedModel(nn.Module):
    """A model with a projection of its features and a classifier of the projection beside its own."""

    def __init__(self, model: nn.Module, num_features: int, width: int, num_classes: int, test_through: Through):
        super().__init__()
        self.model = model
        self.projection = nn.Linear(num_features, width, bias=False)
        self.projection_classifier = nn.Linear(width, num_classes)
        self.test_through = test_through

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's features and logits; in test the logits may be those of the projection."""
        features, logits = self.model(inputs)
        # Not where something is differentiated in test mode (FedIIR's survey): there the base means its own classifier.
        if self.test_through == "g" and not self.training and not torch.is_grad_enabled():
            logits = self.projection_classifier(self.projection(features))
        return features, logits


@dataclass(frozen=True, kw_only=True)
class Projected(Extension):
    """Builds the projection P and its classifier G around a model."""

    width: int
    """The width of the vectors that the projection is compared with."""
    num_features: int | None = None
    """The width of the model's features; None takes it from the model's head."""
    num_classes: int | None = None
    """How many classes there are; None takes them from the model's head."""
    test_through: Through = "h"
    """Which classifier is tested: the model's own, ``h``, or that of the projection, ``g``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for title in ("width", "num_features", "num_classes"):
            value = getattr(self, title)
            if value is not None and value < 1:
                raise UsageError(
                    f"Projected({title}) must be at least 1, got {value}.",
                    code="out-of-range",
                    setting=f"Projected({title})",
                    got=value,
                )
        if self.test_through not in ("h", "g"):
            raise unknown_name("test_through of Projected", self.test_through, ("h", "g"))

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the model with the projection; its first values come from the seed of the run's model."""
        num_features, num_classes = self.num_features, self.num_classes
        if num_features is None or num_classes is None:
            head = find_head(model)
            if not isinstance(head, nn.Linear):
                raise UsageError(
                    f"the head of {type(model).__name__} is a {type(head).__name__}, so the width of the "
                    "features is unknown. Make it an nn.Linear, or give Projected num_features and num_classes.",
                    code="head-unfit",
                    got=type(head).__name__,
                )
            num_features, num_classes = num_features or head.in_features, num_classes or head.out_features
        return ProjectedModel(model, num_features, self.width, num_classes, self.test_through)


def projection_parameters(model: nn.Module) -> list[str]:
    """Return the names of P and of G's weight and bias, under however many extensions."""
    # The projection is most often the outermost module, so the search ends where it begins.
    paths = (path for path, module in model.named_modules() if isinstance(module, ProjectedModel))
    path = next(paths, None)
    if path is None:
        raise UsageError(
            f"{type(model).__name__} has no projection; wrap it by algorithm.extend(model).",
            code="model-unfit",
            got=type(model).__name__,
        )
    own = ("projection.weight", "projection_classifier.weight", "projection_classifier.bias")
    return [f"{path}.{name}" if path else name for name in own]


@dataclass(frozen=True, kw_only=True)
class KeepProjection(Split):
    """Another split under which P and G also stay with their client."""

    name: ClassVar[str] = "keep_projection"
    base: Split = ShareAll()

    def personal_parameters(self, model: nn.Module) -> set[str]:
        """Return the names that the base keeps, and those of P and G."""
        return self.base.personal_parameters(model) | set(projection_parameters(model))

    def personal_buffers(self, model: nn.Module) -> set[str]:
        """Return the buffers that the base keeps under this split's policy."""
        return replace(self.base, buffers=self.buffers).personal_buffers(model)

    def initial_personal(self, model: nn.Module, place: int) -> Tensors:
        """Return the base's first values of a client; P and G start with the model's values."""
        return self.base.initial_personal(model, place)

    @property
    def newcomers_take_the_mean(self) -> bool:
        """Whether the base lets held-out clients start from the mean of the others."""
        return self.base.newcomers_take_the_mean


@dataclass(frozen=True, kw_only=True)
class IndexOrthogonality(Term):
    """Holds projected features across all clients' vectors, while a classifier of them agrees with the model's own."""

    name: ClassVar[str] = NAME
    needs_features: ClassVar[bool] = True
    lambda_o: float = 1.0
    """Weight of the orthogonality."""
    lambda_d: float = 1.0
    """Weight of the divergence between the two classifiers."""
    mode: Mode = "mean_cos"
    """What is small: the mean |cosine| with all vectors, the mean |inner product|, or its sum over clients."""
    kl: Direction = "forward"
    """``forward`` is KL(h || G), ``reverse`` is KL(G || h)."""
    temperature: float = 1.0
    """Divides the logits of both classifiers; the loss is not scaled to make up for it."""
    detach_teacher: bool = False
    """Whether the divergence leaves h as it is, and acts through G alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for title in ("lambda_o", "lambda_d"):
            if not 0 <= getattr(self, title) < math.inf:
                raise UsageError(
                    f"IndexOrthogonality({title}) must not be negative, got {getattr(self, title)}.",
                    code="out-of-range",
                    setting=f"IndexOrthogonality({title})",
                    got=getattr(self, title),
                )
        if not self.temperature > 0:
            raise UsageError(
                f"IndexOrthogonality(temperature) must be above 0, got {self.temperature}.",
                code="out-of-range",
                setting="IndexOrthogonality(temperature)",
                got=self.temperature,
            )
        for title, known in (("mode", MODES), ("kl", DIRECTIONS)):
            if getattr(self, title) not in known:
                raise unknown_name(f"{title} of IndexOrthogonality", getattr(self, title), known)

    def begin(self, local: ClientContext) -> None:
        """Take the vectors from the server's note; cosines need their directions only."""
        if self.lambda_o == 0:
            return
        if self.name not in local.notes:
            raise UsageError(
                "IndexOrthogonality needs the server rule AtlasVectors beside it; client2vec() has both.",
                code="part-missing",
                part="AtlasVectors",
            )
        vectors = local.notes[self.name][VECTORS].to(local.data.labels.device)
        local.scratch[self.name] = {VECTORS: F.normalize(vectors, dim=1) if self.mode == "mean_cos" else vectors}

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor | None:
        """Return the weighted orthogonality and divergence of the batch."""
        if self.lambda_o == 0 and self.lambda_d == 0:
            return None
        projection, weight, bias = (local.parameters[name] for name in projection_parameters(local.model))
        projected = F.linear(output.features, projection)
        total = projected.new_zeros(())
        if self.lambda_o > 0:
            total = total + self.lambda_o * self._overlap(projected, local.scratch[self.name][VECTORS])
        if self.lambda_d > 0:
            logits = output.logits.detach() if self.detach_teacher else output.logits
            total = total + self.lambda_d * self._divergence(logits, F.linear(projected, weight, bias))
        return total

    def _overlap(self, projected: Tensor, vectors: Tensor) -> Tensor:
        if self.mode == "mean_cos":
            projected = F.normalize(projected, dim=1)
        overlap = (projected @ vectors.T).abs()
        # The literal norm of Eq. 4 sums over the clients; over the batch it is a mean as the base's loss is.
        return overlap.sum(1).mean() if self.mode == "sum_dot" else overlap.mean()

    def _divergence(self, main: Tensor, projected: Tensor) -> Tensor:
        h, g = (F.log_softmax(logits / self.temperature, dim=1) for logits in (main, projected))
        first, second = (h, g) if self.kl == "forward" else (g, h)
        return F.kl_div(second, first, reduction="batchmean", log_target=True)  # KL(first || second)


@dataclass(frozen=True, kw_only=True)
class AtlasVectors(ServerRule):
    """Tells every client of a round one half of the vectors of all clients that train; changes nothing else."""

    name: ClassVar[str] = NAME
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        VECTOR,
        Disclosure(VECTORS, "one half of that vector, sent to the clients of every round", "note", (None, None)),
    )
    atlas: Atlas
    half: str = "feature"
    """The half that clients receive."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_half(self.atlas, self.half, "AtlasVectors")

    def check_clients(self, federation: Federation) -> list[str]:
        """Return a remark where the atlas was made of other clients."""
        return atlas_remarks(self.atlas, federation)

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return the vectors in the order of client ids, without those of held-out clients."""
        rows = positions(self.atlas, roster)
        vectors = self.atlas.half(self.half)[rows[rows >= 0]]
        return {VECTORS: vectors.to(next((w.device for w in shared.values()), vectors.device))}

    def note(self, memory: Tensors, client: ClientInfo) -> Tensors:
        """Tell the vectors."""
        return memory
