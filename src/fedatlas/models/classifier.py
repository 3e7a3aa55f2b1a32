"""What every network here is: a classifier that returns its features beside its logits."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn
from torch._C._functorch import maybe_current_level
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedatlas.errors import UsageError
from fedatlas.models.registry import MODELS

KINDS = {1: ("features", "tokens"), 3: ("image",)}


class Classifier(nn.Module, ABC):
    """A network whose ``forward`` returns ``(features, logits)``, with ``logits == head(features)``.

    A subclass sets ``head``, a linear layer, and computes the features in ``extract``.
    """

    head: nn.Linear

    @property
    def num_features(self) -> int:
        """The width of the features."""
        return self.head.in_features

    @abstractmethod
    def extract(self, inputs: Tensor) -> Tensor:
        """Return the features, (B, num_features)."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features, (B, num_features), and the logits, (B, classes)."""
        features = self.extract(inputs)
        return features, self.head(features)


@dataclass(frozen=True, kw_only=True)
class InputForm:
    """The form of one example: an image (channels, height, width), tokens (length,) or features (width,)."""

    shape: tuple[int, ...]
    vocabulary_size: int = 0
    """How many tokens there are; 0 if the inputs are not tokens."""

    def __post_init__(self) -> None:
        if len(self.shape) not in KINDS or any(side < 1 for side in self.shape):
            raise UsageError(
                "input_shape must be (channels, height, width) of an image, (length,) of tokens or (width,) of "
                f"features, each at least 1; got {self.shape}.",
                code="wrong-shape",
                got=self.shape,
            )
        if self.vocabulary_size < 0 or (self.vocabulary_size and len(self.shape) != 1):
            raise UsageError(
                "vocabulary_size must be 0, or the number of tokens where input_shape is (length,); "
                f"got {self.vocabulary_size} for input_shape {self.shape}.",
                code="vocabulary",
                got=self.vocabulary_size,
            )

    @property
    def kind(self) -> str:
        """``image``, ``tokens`` or ``features``."""
        return KINDS[len(self.shape)][self.vocabulary_size > 0]

    def image(self, model: str) -> tuple[int, int, int]:
        """Return (channels, height, width); raise UsageError if the form is not an image's."""
        if self.kind != "image":
            raise self.mismatch(model, "images, input_shape (channels, height, width)")
        channels, height, width = self.shape
        return channels, height, width

    def mismatch(self, model: str, wanted: str) -> UsageError:
        """Return the error for a model that cannot read this form, with those that can."""
        fitting = ", ".join(name for name, entry in MODELS.entries.items() if self.kind in entry.facts["reads"])
        return UsageError(
            f"model {model!r} reads {wanted}; got {self.kind} of shape {self.shape} with "
            f"vocabulary_size {self.vocabulary_size}. Choose another model ({fitting}) or another data set.",
            code="kind-mismatch",
            got=self.kind,
            model=model,
            fitting=fitting,
        )


def require_positive(model: str, **options: int) -> None:
    """Raise UsageError if an option is not a whole number of at least 1."""
    for option, value in options.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(
                f"{model}: {option} must be a whole number of at least 1, got {value!r}.",
                code="out-of-range",
                got=value,
                setting=option,
            )


def require_probability(model: str, **options: float) -> None:
    """Raise UsageError if an option is not in [0, 1)."""
    for option, value in options.items():
        if not 0 <= value < 1:
            raise UsageError(
                f"{model}: {option} must be in [0, 1), got {value!r}.", code="out-of-range", got=value, setting=option
            )


def dropout(probability: float) -> nn.Module:
    """Return a dropout layer, or nothing at probability 0: ``vmap`` refuses even a dropout that drops nothing."""
    return nn.Dropout(probability) if probability > 0 else nn.Identity()


def inside_transformation() -> bool:
    """Return whether ``vmap`` or another transformation of ``torch.func`` is under way.

    Fused operations that ``vmap`` has no rule for give way to plain ones then. torch has no public way to ask.
    """
    return maybe_current_level() is not None


def attention_kernel() -> AbstractContextManager[None]:
    """Return the context for torch's attention: the fastest kernel, or the plain one that ``vmap`` has rules for."""
    return sdpa_kernel(SDPBackend.MATH) if inside_transformation() else nullcontext()
