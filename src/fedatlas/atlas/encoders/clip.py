"""CLIP through transformers: images and texts in one space, from the hub or from a folder."""

import hashlib
import importlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor

from fedatlas.atlas.encoders.base import BatchEncoder
from fedatlas.atlas.encoders.inputs import class_texts, example_texts, pictures
from fedatlas.atlas.encoders.registry import encoder
from fedatlas.data.dataset import Dataset
from fedatlas.errors import UsageError

DEFAULT_MODEL = "openai/clip-vit-base-patch32"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""The scaling that CLIP was trained with, where a folder does not say its own."""


class LoadedClip(NamedTuple):
    """A CLIP that is ready to encode."""

    model: Any
    tokenizer: Any
    size: int
    max_tokens: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str


@encoder("clip")
@dataclass(frozen=True, kw_only=True)
class Clip(BatchEncoder):
    """CLIP (any size in transformers): images and class prompts, or texts, in one space; needs the extra hub."""

    name: ClassVar[str] = "clip"

    model: str = DEFAULT_MODEL
    """A name on the Hugging Face hub, or a folder with weights, configuration and tokenizer."""

    def identity(self) -> str:
        """Return the model's name and a hash of its weights."""
        return f"clip {self.model.rstrip('/').rpartition('/')[2]} ({self._loaded.digest})"

    def embed(self, data: Dataset, inputs: Tensor) -> Tensor:
        """Return CLIP's image features, or the text features of a text, as they are: not normalised."""
        if data.kind == "tokens":
            return self._embed_texts(example_texts(data, inputs), inputs.device)
        loaded = self._loaded
        pixels = fit_square(pictures(inputs, f"model {self.model!r}"), loaded.size)
        mean, std = (pixels.new_tensor(values).view(1, -1, 1, 1) for values in (loaded.mean, loaded.std))
        outputs = loaded.model.to(inputs.device).get_image_features(pixel_values=(pixels - mean) / std)
        return features_of(outputs)

    def embed_classes(self, data: Dataset) -> Tensor:
        """Return the text features of each class's prompt."""
        return self._embed_texts(class_texts(data), torch.device(self.device or data.inputs.device))

    def _embed_texts(self, texts: list[str], device: torch.device) -> Tensor:
        loaded = self._loaded
        coded = loaded.tokenizer(
            texts, padding=True, truncation=True, max_length=loaded.max_tokens, return_tensors="pt"
        ).to(device)
        outputs = loaded.model.to(device).get_text_features(
            input_ids=coded["input_ids"], attention_mask=coded["attention_mask"]
        )
        return features_of(outputs)

    @cached_property
    def _loaded(self) -> LoadedClip:
        return load_clip(self.model)


def fit_square(images: Tensor, size: int) -> Tensor:
    """Return pictures as squares: the shorter side resized to ``size`` (bicubic), then the middle cut out."""
    height, width = images.shape[2:]
    shorter = min(height, width)
    target = (round(height * size / shorter), round(width * size / shorter))
    if target != (height, width):
        images = F.interpolate(images, size=target, mode="bicubic", align_corners=False, antialias=True).clamp(0, 1)
    top, left = (target[0] - size) // 2, (target[1] - size) // 2
    return images[:, :, top : top + size, left : left + size]


def features_of(outputs: Any) -> Tensor:
    """Return the features, which transformers hands out bare before its version 5 and as a pooled output after."""
    found: Tensor = outputs if isinstance(outputs, Tensor) else outputs.pooler_output
    return found


def load_clip(source: str) -> LoadedClip:
    """Return a CLIP from a folder or the hub, or say the two ways to get one."""
    ways = (
        "Two ways to have one: a folder with the model's files (weights, config.json and tokenizer, as save_pretrained "
        "writes them), or a name on the Hugging Face hub and a network to reach it once."
    )
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            f"encoder 'clip' needs transformers: pip install 'fedatlas[hub]'. {ways}",
            code="package-missing",
            package="transformers",
        ) from error
    # Broken or missing files show in many ways; to each the user needs the same answer: the two ways, and the reason.
    broken = (ImportError, LookupError, OSError, RuntimeError, SafetensorError, TypeError, ValueError)
    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        if config.model_type == "clip":
            model, report = transformers.CLIPModel.from_pretrained(source, output_loading_info=True)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except broken as error:
        reason = f"{type(error).__name__}: {error}"
        raise _unusable(source, f"cannot be loaded ({reason}) {ways}") from error
    if config.model_type != "clip":
        raise _unusable(source, f"holds a model of type {config.model_type!r}, not a CLIP.")
    if report["missing_keys"]:
        raise _unusable(source, f"lacks {len(report['missing_keys'])} of the weights. {ways}")
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise _unusable(source, f"has no tokenizer files. {ways}")
    model = model.float().eval().requires_grad_(False)
    mean, std = read_scaling(source)
    return LoadedClip(
        model=model,
        tokenizer=tokenizer,
        size=config.vision_config.image_size,
        max_tokens=config.text_config.max_position_embeddings,
        mean=mean,
        std=std,
        digest=weights_digest(model),
    )


def _unusable(source: str, why: str) -> UsageError:
    return UsageError(f"encoder 'clip': {source!r} {why}", code="pretrained-unusable", got=source)


def read_scaling(source: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation that a model's image processor states, else CLIP's own."""
    base = importlib.import_module("transformers.image_processing_base")
    try:
        stated, _ = base.ImageProcessingMixin.get_image_processor_dict(source)
    except OSError:
        return MEAN, STD
    return tuple(stated.get("image_mean", MEAN)), tuple(stated.get("image_std", STD))


def weights_digest(model: torch.nn.Module) -> str:
    """Return a short hash of a model's weights."""
    digest = hashlib.blake2b(digest_size=4)
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()
