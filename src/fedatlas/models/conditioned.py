"""Normalisation layers whose scales and shifts are made from one vector, the client's embedding (FedPCE).

y = (x - mean(x)) / sqrt(var(x) + eps) * gamma_k(v) + beta_k(v)
gamma_k(v) = 1 + MLP(v),  beta_k(v) = MLP(v),  MLP: E -> hidden, ReLU, hidden -> channels of layer k

Two perceptrons for each of K layers, never one of both: only so do the paper's counts of parameters come out. All of
them are evaluated together, one product for the hidden layers and one for each width of a layer.
"""

import copy
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.errors import UsageError
from fedatlas.models.classifier import inside_transformation
from fedatlas.models.norms import NORM_LAYERS, ScaleAndShift


class ClientEmbedding(nn.Module):
    """The vector from which all scales and shifts are made."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))


class NormGenerators(nn.Module):
    """Two perceptrons for each layer, one that makes its scale and one that makes its shift."""

    def __init__(self, embedding: int, hidden: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.members = {w: [k for k, width in enumerate(widths) if width == w] for w in dict.fromkeys(widths)}
        """Which layers have a width; their scales come first, then their shifts."""
        counts = [2 * len(layers) for layers in self.members.values()]
        self.bounds = list(pairwise(accumulate(counts, initial=0)))
        self.hidden = hidden
        self.hidden_weight = nn.Parameter(torch.empty(2 * len(widths) * hidden, embedding))
        self.hidden_bias = nn.Parameter(torch.empty(2 * len(widths) * hidden))
        self.weights = nn.ParameterList(
            torch.empty(count, width, hidden) for width, count in zip(self.members, counts, strict=True)
        )
        self.biases = nn.ParameterList(
            torch.empty(count, 1, width) for width, count in zip(self.members, counts, strict=True)
        )
        # As nn.Linear starts: uniform in +-1/sqrt(inputs), weights and biases alike.
        for tensors, inputs in (
            ((self.hidden_weight, self.hidden_bias), embedding),
            ((*self.weights, *self.biases), hidden),
        ):
            for tensor in tensors:
                nn.init.uniform_(tensor, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))

    def forward(self, vector: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return scale and shift of each layer, in the layers' order."""
        hidden = F.relu(F.linear(vector, self.hidden_weight, self.hidden_bias)).view(-1, 1, self.hidden)
        made: dict[int, tuple[Tensor, Tensor]] = {}
        parts = zip(self.members.values(), self.bounds, self.weights, self.biases, strict=True)
        for layers, (first, last), weight, bias in parts:
            scales, shifts = torch.baddbmm(bias, hidden[first:last], weight.transpose(1, 2)).squeeze(1).chunk(2)
            made |= {k: (1 + scales[i], shifts[i]) for i, k in enumerate(layers)}
        return [made[k] for k in range(len(self.widths))]


class ConditionedClassifier(nn.Module):
    """A classifier whose norms take scale and shift from its embedding; they have no such parameters of their own."""

    def __init__(self, model: nn.Module, *, embedding: int, hidden: int) -> None:
        super().__init__()
        self.model = model
        kinds: tuple[type[nn.Module], ...] = (*NORM_LAYERS, ScaleAndShift)
        found = {path: module for path, module in model.named_modules() if isinstance(module, kinds)}
        if not found:
            raise UsageError(
                f"FedPCE: {type(model).__name__} has no normalisation layer to make from an embedding. Choose a model "
                "with norms (--model cnn --set model.norm=instance; norm='instance' in model_options), or another "
                "algorithm.",
                code="model-unfit",
                got=type(model).__name__,
                reason="no-norm",
            )
        self._norms: list[nn.Module] = list(found.values())
        self._shapes = [_affine_shape(path, norm) for path, norm in found.items()]
        self.embedding = ClientEmbedding(embedding)
        self.generators = NormGenerators(embedding, hidden, [math.prod(shape) for shape in self._shapes])
        for norm in self._norms:
            del norm.weight, norm.bias
            _set_affine(norm, None, None)
        self._checks_maps = True
        self._checks_features = any(isinstance(norm, nn.modules.instancenorm._InstanceNorm) for norm in self._norms)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the logits for the embedding at hand."""
        # Checked once each: every batch has maps of the same size. Each check would compile the code again.
        looks = not torch.compiler.is_compiling()
        watched = self._norms if self._checks_maps and looks else []
        hooks = [norm.register_forward_pre_hook(_check_map_sizes) for norm in watched]
        for norm, (scale, shift) in zip(self._norms, self.affine(), strict=True):
            _set_affine(norm, scale, shift)
        try:
            features, logits = self.model(inputs)
        finally:
            # Nothing stays behind: a graph would keep the module from being copied.
            for norm in self._norms:
                _set_affine(norm, None, None)
            for hook in hooks:
                hook.remove()
        if looks:
            self._checks_maps = False
            if self._checks_features and len(inputs) > 1 and not inside_transformation():
                self._checks_features = not _checked_features(type(self.model).__name__, inputs, features)
        return features, logits

    def affine(self) -> list[tuple[Tensor, Tensor]]:
        """Return the scale and the shift of each norm, in the model's order, as the embedding has them now."""
        vector = self.embedding.vector
        # Always in full precision: near 1, where the scales are, bfloat16 has two digits.
        with torch.autocast(vector.device.type, enabled=False):
            made = self.generators(vector)
        return [(s.view(shape), b.view(shape)) for (s, b), shape in zip(made, self._shapes, strict=True)]

    @torch.no_grad()
    def baked(self) -> nn.Module:
        """Return a copy of the plain model in which the scales and shifts of now are parameters like any others."""
        twin = copy.deepcopy(self)
        for norm, (scale, shift) in zip(twin._norms, self.affine(), strict=True):
            for name, value in (("weight", scale), ("bias", shift)):
                delattr(norm, name)
                norm.register_parameter(name, nn.Parameter(value.clone()))
        return twin.model


def bake(model: nn.Module) -> nn.Module:
    """Return a copy of a model for inference: conditioned norms become plain ones, under whatever wraps them."""
    if isinstance(model, ConditionedClassifier):
        return model.baked()
    twin = copy.deepcopy(model)
    for path, module in list(twin.named_modules()):
        if isinstance(module, ConditionedClassifier):
            parent, _, name = path.rpartition(".")
            setattr(twin.get_submodule(parent), name, module.baked())
    return twin


def _affine_shape(path: str, norm: nn.Module) -> tuple[int, ...]:
    """Return the shape of a norm's scale and shift, also for a norm without them."""
    if isinstance(norm, nn.LayerNorm):
        return tuple(norm.normalized_shape)
    if isinstance(norm, nn.GroupNorm):
        return (norm.num_channels,)
    if isinstance(norm, nn.RMSNorm):
        raise UsageError(
            f"FedPCE: {path} is an RMSNorm, which has no shift. Choose a model with other norms.",
            code="model-unfit",
            got=path,
            reason="no-shift",
        )
    width = norm.num_features
    assert isinstance(width, int)
    return (width,)


def _set_affine(norm: nn.Module, scale: Tensor | None, shift: Tensor | None) -> None:
    for name, value in (("weight", scale), ("bias", shift)):
        setattr(norm, name, value)


def _check_map_sizes(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise UsageError if single numbers would be normalised: each would become 0."""
    shape = inputs[0].shape
    if isinstance(norm, nn.modules.instancenorm._InstanceNorm):
        count = shape[2:].numel()
    elif isinstance(norm, nn.GroupNorm):
        count = shape[1] // norm.num_groups * shape[2:].numel()
    else:
        return
    if count == 1:
        raise UsageError(
            f"FedPCE: a {type(norm).__name__} got a map of {'x'.join(map(str, shape[2:])) or 'no'} pixels, where each "
            "number is normalised alone: its variance is 0, so the image would be lost. Use larger "
            "images, a stem that keeps more pixels, or another norm.",
            code="model-unfit",
            got=type(norm).__name__,
            reason="one-pixel",
        )


@torch.no_grad()
def _checked_features(model: str, inputs: Tensor, features: Tensor) -> bool:
    """Raise UsageError if different inputs give equal features; return whether the inputs differ at all."""
    if not bool((inputs != inputs[:1]).any()):
        return False
    spread, size = (features - features[:1]).abs().amax(), features.abs().amax()
    if bool(spread <= 1e-5 * size):
        raise UsageError(
            f"FedPCE: {model} gives all images of a batch the same features. An instance norm right before the pooling "
            "does that: each channel's mean over the image is then its shift. Move it, or use another norm.",
            code="model-unfit",
            got=model,
            reason="same-features",
        )
    return True
