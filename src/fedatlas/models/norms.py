"""Normalisation layers: which module types they are, how one is made by name, and batch norm without a memory."""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedatlas.errors import UsageError, unknown_name

BATCH_NORM_LAYERS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

NORM_LAYERS: tuple[type[nn.Module], ...] = (
    *BATCH_NORM_LAYERS,
    nn.GroupNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LayerNorm,
    nn.RMSNorm,
)
"""The module types whose parameters count as normalisation (FedBN keeps them at home)."""

NORMS = ("batch", "group", "instance", "layer", "none")
FLAT_NORMS = ("batch", "layer", "none")
HEAD_NORM = "head_norm"
"""The exact name of a norm right before the head."""
HEAD_NORMS = ("layer", "batch", "film")

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def make_norm(kind: str, channels: int) -> nn.Module:
    """Return a normalisation layer for (B, channels, height, width), with a scale and a shift for each channel.

    ``group`` has up to 32 groups, as many as divide the channels; ``layer`` is one group of all channels;
    ``instance`` always uses the image's own statistics; ``none`` does nothing.
    """
    match kind:
        case "batch":
            return nn.BatchNorm2d(channels)
        case "group":
            return nn.GroupNorm(math.gcd(32, channels), channels)
        case "instance":
            return nn.InstanceNorm2d(channels, affine=True)
        case "layer":
            return nn.GroupNorm(1, channels)
        case "none":
            return nn.Identity()
    raise unknown_name("norm", kind, NORMS)


def make_flat_norm(kind: str, width: int) -> nn.Module:
    """Return a normalisation layer for (B, width), with a scale and a shift for each feature."""
    match kind:
        case "batch":
            return nn.BatchNorm1d(width)
        case "layer":
            return nn.LayerNorm(width)
        case "none":
            return nn.Identity()
    raise unknown_name("norm", kind, FLAT_NORMS)


def check_map_size(model: str, norm: str, height: int, width: int, remedy: str) -> None:
    """Raise UsageError for instance norm on a map of one pixel: its variance is zero, so the image would be lost."""
    if norm == "instance" and height * width == 1:
        raise UsageError(
            f"{model}: norm='instance' needs more than one pixel, but the last map is 1x1; {remedy}.",
            code="model-unfit",
            model=model,
            reason="one-pixel",
            setting="norm",
        )


def without_running_statistics(model: AnyModule) -> AnyModule:
    """Make every batch norm use its batch's statistics, in training and in test, and keep none; return the model."""
    for module in model.modules():
        if isinstance(module, BATCH_NORM_LAYERS):
            module.track_running_stats = False  # type: ignore[assignment]
            module.running_mean = None  # type: ignore[assignment]
            module.running_var = None  # type: ignore[assignment]
            module.num_batches_tracked = None  # type: ignore[assignment]
    return model


class ScaleAndShift(nn.Module):
    """Scales and shifts channels without normalising them (FiLM)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.num_features = channels
        self.weight: Tensor | None = nn.Parameter(torch.ones(channels))
        self.bias: Tensor | None = nn.Parameter(torch.zeros(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the changed channels; without scale and shift, the inputs."""
        return inputs if self.weight is None or self.bias is None else inputs * self.weight + self.bias


def with_head_norm(model: nn.Module, kind: str) -> nn.Module:
    """Return the model with the norm before its head, the layer named ``head_norm``, of another kind."""
    if kind == "layer":
        return model
    found = getattr(model, HEAD_NORM, None)
    if not isinstance(found, nn.LayerNorm):
        raise UsageError(
            f"head_norm={kind!r} needs a norm before the head, and {type(model).__name__} has none. "
            "Use a model that does (resnet18 with head_norm=true), or leave head_norm at 'layer'.",
            code="model-unfit",
            got=kind,
            reason="no-norm",
        )
    channels = found.normalized_shape[-1]
    norm = nn.BatchNorm1d(channels) if kind == "batch" else ScaleAndShift(channels)
    setattr(model, HEAD_NORM, norm)
    return model
