"""A vision transformer for small images. Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.

The image's patches become tokens, a class token is put before them, and layers of attention mix them all. Tokens can be
put in between (``embed``, then ``encode``), which prompt tuning needs.
"""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedatlas.errors import UsageError
from fedatlas.models.classifier import Classifier, InputForm, attention_kernel, require_positive
from fedatlas.models.pretrained import listed, read_weights
from fedatlas.models.registry import model

MLP_RATIO = 4
INITIAL_STD = 0.02
POSITIONS, PATCHES = "positions", "patches.weight"
"""The tensors that tell a published file's image size and channels."""
SHIPPED = {"cifar10": Path(__file__).parent / "weights" / "cifar10-vit.safetensors"}
"""Weights in the package, by name; each has its card beside it."""


class TokenEncoder(nn.Module, ABC):
    """A transformer in two halves, so that tokens can be put in between.

    ``channels`` and ``image_size`` (the side of a square) are what its images must have, ``width`` is that of a token.
    """

    channels: int
    image_size: int
    width: int

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens of images, (B, tokens, width): the class token first, positions added."""

    @abstractmethod
    def encode(self, tokens: Tensor) -> Tensor:
        """Return the class token after all layers, (B, width)."""

    def fit(self, images: Tensor) -> Tensor:
        """Return images in the form that ``embed`` reads: grey ones repeated, all resized."""
        images = images.expand(-1, self.channels, -1, -1)
        size = (self.image_size, self.image_size)
        if images.shape[-2:] == size:
            return images
        return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


def input_gradients(inputs: Tensor) -> AbstractContextManager[None]:
    """Return the context for a pass: where the inputs' gradient is asked for, attention that can be derived twice."""
    return sdpa_kernel(SDPBackend.MATH) if inputs.requires_grad else nullcontext()


class Attention(nn.Module):
    """Self-attention over (B, tokens, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor, count: int | None = None) -> Tensor:
        """Return the mixed tokens, or only the first ``count`` of them."""
        batch, length, width = tokens.shape
        joint = self.qkv(tokens).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        queries, keys, values = joint.unbind(0)
        with attention_kernel():
            mixed = F.scaled_dot_product_attention(queries[:, :, :count], keys, values)
        projected: Tensor = self.projection(mixed.transpose(1, 2).reshape(batch, -1, width))
        return projected


class EncoderLayer(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.linear1 = nn.Linear(width, MLP_RATIO * width)
        self.linear2 = nn.Linear(MLP_RATIO * width, width)

    def forward(self, tokens: Tensor, count: int | None = None) -> Tensor:
        """Return the next layer's tokens, or only the first ``count`` of them."""
        x = tokens[:, :count] + self.attention(self.norm1(tokens), count)
        y: Tensor = x + self.linear2(F.gelu(self.linear1(self.norm2(x))))
        return y


class VisionTransformer(TokenEncoder):
    """A plain vision transformer without a classifier, for square images."""

    def __init__(self, *, channels: int, image_size: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.channels, self.image_size, self.width = channels, image_size, width
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (image_size // patch) ** 2, width))
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        for name, value in self.named_parameters():
            if value.ndim > 1:
                nn.init.trunc_normal_(value, std=INITIAL_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(value)

    def embed(self, images: Tensor) -> Tensor:
        """Return the class token and the patches, with their positions."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1) + self.positions

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the class token after all layers and the last norm."""
        *others, final = self.layers
        for layer in others:
            tokens = layer(tokens)
        tokens = final(tokens, 1)  # the other tokens are not needed
        last: Tensor = self.norm(tokens[:, 0])
        return last


class TransformerClassifier(Classifier):
    """A vision transformer with a linear head, all of it trained."""

    def __init__(self, encoder: TokenEncoder, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.width, num_classes)

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the class token after all layers."""
        with input_gradients(inputs):
            return self.encoder.encode(self.encoder.embed(self.encoder.fit(inputs)))


def make_transformer(
    model: str, form: InputForm, *, patch: int, width: int, depth: int, heads: int, weights: str | Path | None
) -> VisionTransformer:
    """Return an encoder for images of a form, untrained or filled from a file or from weights in the package.

    The number of channels and the size of images come from the file; without a file, from ``form``.
    """
    channels, *sides = form.image(model)
    require_positive(model, patch=patch, width=width, depth=depth, heads=heads)
    if width % heads:
        raise UsageError(
            f"{model}: width must be a multiple of heads, got {width} and {heads}.",
            code="out-of-range",
            got=width,
            setting="width",
            heads=heads,
        )
    state: dict[str, Tensor] = {}
    size = patch * math.ceil(max(sides) / patch)
    wanted = channels
    if weights is not None:
        # The file may be of the encoder alone or of a whole classifier.
        file = SHIPPED.get(str(weights), weights)
        found = {name.removeprefix("encoder."): value for name, value in read_weights(file).items()}
        state = {name: value for name, value in found.items() if not name.startswith("head.")}
        if POSITIONS in state and PATCHES in state:
            size = patch * math.isqrt(state[POSITIONS].shape[1] - 1)
            wanted = state[PATCHES].shape[1]
    require_channels(model, wanted, channels)
    encoder = VisionTransformer(channels=wanted, image_size=size, patch=patch, width=width, depth=depth, heads=heads)
    if weights is not None:
        fill(encoder, state, f"{model}: weights={str(weights)!r}")
    return encoder


def require_channels(model: str, wanted: int, got: int) -> None:
    """Raise UsageError if images have another number of channels; grey images can be repeated."""
    if got not in (1, wanted):
        raise UsageError(
            f"model {model!r} reads images of {wanted} channels, got {got}. Convert the images.",
            code="kind-mismatch",
            got=got,
            model=model,
            wanted=wanted,
        )


def fill(encoder: VisionTransformer, state: dict[str, Tensor], where: str) -> None:
    """Fill an encoder with all of its tensors, or say which do not fit."""
    expected = encoder.state_dict()
    complaints = [
        listed("missing", (name for name in expected if name not in state)),
        listed("unexpected", (name for name in state if name not in expected)),
        listed(
            "of another shape",
            (
                f"{name} is {tuple(state[name].shape)}, the model's is {tuple(expected[name].shape)}"
                for name in expected
                if name in state and state[name].shape != expected[name].shape
            ),
        ),
    ]
    if any(complaints):
        raise UsageError(
            f"{where} does not fit: {'; '.join(filter(None, complaints))}. "
            "Set patch, width and depth to those that the file was made with.",
            code="pretrained-unfit",
            source=where,
        )
    encoder.load_state_dict(state)


@model(reads=("image",))
def vit(
    num_classes: int,
    form: InputForm,
    *,
    patch: int = 4,
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
    weights: str | None = None,
) -> TransformerClassifier:
    """Vision transformer of six layers, on images; ``weights=cifar10`` starts from those that ship.

    All of it is trained. ``weights`` may also be a file; without any it starts untrained.
    """
    encoder = make_transformer("vit", form, patch=patch, width=width, depth=depth, heads=heads, weights=weights)
    return TransformerClassifier(encoder, num_classes)
