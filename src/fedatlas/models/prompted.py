"""Prompt tuning: a frozen vision transformer, some learnable tokens and a linear head.

Jia et al., "Visual Prompt Tuning", ECCV 2022 (the shallow variant), and the model of Cheng et al., "FedGCR", AAAI 2024:

first pass   e = class token of ViT(x);  h = GC-Net(e), the image's own "type-specific prompt"
second pass  z = class token of ViT(x | p_1 + h, ..., p_n + h);  logits = head(z)

Only the prompts p, GC-Net and the head are trained, and so only they travel.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from fedatlas.errors import UsageError
from fedatlas.models.classifier import (
    Classifier,
    InputForm,
    attention_kernel,
    inside_transformation,
    require_positive,
    require_probability,
)
from fedatlas.models.classifier import dropout as dropout_layer
from fedatlas.models.frozen_outputs import kept_pass
from fedatlas.models.hub import load_backbone
from fedatlas.models.registry import model
from fedatlas.models.vit import TokenEncoder, input_gradients, make_transformer, require_channels

HUB_PREFIX = "hf:"
UNTRAINED = "untrained"
DEFAULT_WEIGHTS = "cifar10"
PROMPT_STD = 0.02
GC_NET_RATIO, GC_NET_LAYERS = 4, 2


@runtime_checkable
class TypePrompted(Protocol):
    """A model that makes a vector of each image's type."""

    def type_prompts(self, inputs: Tensor) -> Tensor:
        """Return h, (B, width), with its gradient."""
        ...


class PromptedClassifier(Classifier):
    """A frozen encoder with learnable tokens after its class token, and a linear head.

    The prompts step at ``prompt_rate`` times the learning rate of the rest, for every algorithm alike.
    """

    def __init__(
        self, encoder: TokenEncoder, prompts: nn.Parameter, head: nn.Linear, *, prompt_rate: float, dropout: nn.Module
    ) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False).eval()
        self.prompts, self.head = prompts, head
        self.relative_rates = {"prompts": prompt_rate}
        self.dropout = dropout

    def train(self, mode: bool = True) -> Self:
        """Set the mode; the frozen encoder stays in evaluation mode."""
        self.training = mode
        for child in self.children():
            if child is not self.encoder:
                child.train(mode)
        return self

    def prompt_tokens(self, inputs: Tensor) -> Tensor:
        """Return the prompts for images, (B or 1, prompts, width)."""
        return self.prompts[None]

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the class token after a pass with prompts."""
        tokens = self.encoder.embed(self.encoder.fit(inputs))
        prompts = self.prompt_tokens(inputs).expand(len(inputs), -1, -1)
        # Prompts have no position, so any place among the tokens is the same.
        with input_gradients(inputs):
            last = self.encoder.encode(torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], dim=1))
        features: Tensor = self.dropout(last)
        return features


class CustomizedClassifier(PromptedClassifier):
    """A prompted classifier whose prompts are shifted, image by image, by what GC-Net makes of a first pass.

    It is built around a plain one and shares its tensors. ``mix_in_batch`` gives, in training, the j-th of n prompts of
    image i the shift of image ``(n i + j) mod B``, as the authors' code does by mistake.
    """

    def __init__(self, plain: PromptedClassifier, *, mix_in_batch: bool = False, layers: int = GC_NET_LAYERS) -> None:
        rate = plain.relative_rates["prompts"]
        super().__init__(plain.encoder, plain.prompts, plain.head, prompt_rate=rate, dropout=plain.dropout)
        width = plain.encoder.width
        sizes = [width, *[GC_NET_RATIO * width] * (layers - 1), width]
        steps = [step for one, other in pairwise(sizes) for step in (nn.Linear(one, other), nn.ReLU())]
        self.gc_net = nn.Sequential(*steps[:-1])
        self.mix_in_batch = mix_in_batch
        self._last_pass = LastPass()

    def first_pass(self, inputs: Tensor) -> Tensor:
        """Return the class token of a pass without prompts, (B, width), without gradient.

        It depends on the image alone. So a client's training examples are passed once in a run; of other batches the
        last result is kept, because the terms of one step use the same batch several times.
        """
        if inside_transformation() or inputs.is_inference():
            return self._first_pass(inputs)
        kept = kept_pass(inputs, self.encoder, self._first_pass)
        if kept is not None:
            return kept
        weights = list(self.encoder.parameters())
        known = self._last_pass.recall(inputs, weights)
        return known if known is not None else self._last_pass.keep(inputs, weights, self._first_pass(inputs))

    @torch.no_grad()
    def _first_pass(self, inputs: Tensor) -> Tensor:
        return self.encoder.encode(self.encoder.embed(self.encoder.fit(inputs)))

    def type_prompts(self, inputs: Tensor) -> Tensor:
        """Return h, (B, width)."""
        prompts: Tensor = self.gc_net(self.first_pass(inputs))
        return prompts

    def prompt_tokens(self, inputs: Tensor) -> Tensor:
        """Return p_i + h, (B, prompts, width)."""
        shift = self.type_prompts(inputs)[:, None]
        if self.mix_in_batch and self.training:
            shift = shift.repeat(len(self.prompts), 1, 1).reshape(len(inputs), *self.prompts.shape)
        return super().prompt_tokens(inputs) + shift


class LastPass:
    """The frozen encoder's output for the last batch, recognised by its unchanged tensors; a copy starts empty."""

    def __init__(self) -> None:
        self._sources: list[Tensor] = []
        self._versions: list[int] = []
        self._result: Tensor | None = None

    def recall(self, inputs: Tensor, weights: Sequence[Tensor]) -> Tensor | None:
        """Return the last result if it was made of these tensors and none has changed since."""
        sources = [inputs, *weights]
        same = len(sources) == len(self._sources) and all(
            one is other and other._version == version
            for one, other, version in zip(self._sources, sources, self._versions, strict=True)
        )
        return self._result if same else None

    def keep(self, inputs: Tensor, weights: Sequence[Tensor], result: Tensor) -> Tensor:
        """Keep a result and return it."""
        self._sources = [inputs, *weights]
        self._versions = [source._version for source in self._sources]
        self._result = result
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> "LastPass":
        return LastPass()

    def __reduce__(self) -> tuple[Any, ...]:
        return LastPass, ()


class HubEncoder(TokenEncoder):
    """A vision transformer from transformers, in two halves."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        config: Any = backbone.config
        self.backbone = backbone.eval()
        self.channels, self.image_size = int(config.num_channels), int(config.image_size)
        self.width = int(config.hidden_size)

    def embed(self, images: Tensor) -> Tensor:
        """Return the backbone's embeddings."""
        tokens: Tensor = self.backbone.get_submodule("embeddings")(images)
        return tokens

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the class token after the backbone's layers and last norm."""
        parts = dict(self.backbone.named_children())
        with attention_kernel():
            if "encoder" in parts:  # transformers 4
                tokens = parts["encoder"](tokens)[0]
            else:
                for layer in parts["layers"].children():
                    tokens = layer(tokens)
        last: Tensor = parts["layernorm"](tokens[:, 0])
        return last


def hub_encoder(source: str) -> HubEncoder:
    """Return a ViT of a folder or hub name in two halves; check that together they give the output of the whole."""
    backbone, _ = load_backbone(source)
    unfit = UsageError(
        f"backbone='hf:{source}' is a {type(backbone).__name__}, which cannot take prompts. "
        "Give a ViT, such as google/vit-base-patch16-224-in21k, or a model of the same form.",
        code="pretrained-unfit",
        got=source,
    )
    try:
        encoder = HubEncoder(backbone)
        example = torch.linspace(-1, 1, encoder.image_size).expand(1, encoder.channels, encoder.image_size, -1)
        with torch.no_grad():
            tokens = encoder.embed(example)
            halves = encoder.encode(tokens)
            encoder.encode(torch.cat([tokens, tokens[:, -1:]], dim=1))  # takes more tokens than the image's own
            whole = backbone(pixel_values=example).last_hidden_state[:, 0]
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise unfit from error
    has_class_token = any(name.endswith("cls_token") for name, _ in backbone.named_parameters())
    if not has_class_token or halves.shape != whole.shape or not torch.allclose(halves, whole, rtol=1e-3, atol=1e-4):
        raise unfit
    return encoder


@model(reads=("image",))
def prompted_vit(
    num_classes: int,
    form: InputForm,
    *,
    backbone: str | None = None,
    weights: str | None = None,
    num_prompts: int = 4,
    gc_net: bool = False,
    prompt_rate: float = 10.0,
    dropout: float = 0.0,
    patch: int = 4,
    width: int = 192,
    depth: int = 6,
    heads: int = 3,
) -> PromptedClassifier:
    """Frozen vision transformer with learnable prompts and head, on images; pretrained weights ship.

    Args:
        backbone: ``hf:NAME_OR_FOLDER``, a ViT on the Hugging Face hub or in a folder; None is the built-in small ViT.
        weights: of the built-in ViT: ``cifar10`` (the default, which ships with the package), a file, or ``untrained``.
        gc_net: shift the prompts by GC-Net, as FedGCR does; the algorithms that need it add it themselves.
        prompt_rate: learning rate of the prompts, as a multiple of the rate of the rest.
        dropout: of the features in training; the authors of FedGCR have 0.1.
        patch, width, depth, heads: of the built-in ViT.
    """
    title = "prompted_vit"
    channels = form.image(title)[0]
    require_positive(title, num_prompts=num_prompts)
    require_probability(title, dropout=dropout)
    if not 0 < prompt_rate < float("inf"):
        raise UsageError(
            f"{title}: prompt_rate must be above 0, got {prompt_rate}.",
            code="out-of-range",
            setting="prompt_rate",
            got=prompt_rate,
        )
    encoder: TokenEncoder
    if backbone is not None:
        if not backbone.startswith(HUB_PREFIX) or weights is not None:
            raise UsageError(
                f"{title}: backbone must be {HUB_PREFIX}NAME_OR_FOLDER, and weights must then be left out; "
                f"got backbone={backbone!r}, weights={weights!r}.",
                code="settings-conflict",
                got=backbone,
                weights=weights,
            )
        encoder = hub_encoder(backbone.removeprefix(HUB_PREFIX))
        require_channels(title, encoder.channels, channels)
    else:
        source = None if weights == UNTRAINED else weights or DEFAULT_WEIGHTS
        encoder = make_transformer(title, form, patch=patch, width=width, depth=depth, heads=heads, weights=source)
    model = PromptedClassifier(
        encoder,
        nn.Parameter(torch.randn(num_prompts, encoder.width) * PROMPT_STD),
        nn.Linear(encoder.width, num_classes),
        prompt_rate=prompt_rate,
        dropout=dropout_layer(dropout),
    )
    return CustomizedClassifier(model) if gc_net else model
