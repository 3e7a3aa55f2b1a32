"""Any Hugging Face image backbone as a classifier: pooled output as features, and a linear head."""

import importlib
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.errors import UsageError, unknown_name
from fedatlas.models.classifier import Classifier, InputForm, attention_kernel, require_positive
from fedatlas.models.pretrained import why_unreadable

POOLINGS = ("auto", "cls", "mean", "pooler")


class HubClassifier(Classifier):
    """A backbone from transformers with a linear head.

    Grey images are repeated for a backbone that reads colour; images are resized to ``image_size`` where it is given.
    """

    def __init__(
        self, backbone: nn.Module, *, channels: int, pooling: str, image_size: int | None, frozen: bool
    ) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(not frozen)
        self.channels, self.pooling, self.image_size, self.frozen = channels, pooling, image_size, frozen

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a frozen backbone stays in evaluation mode, so that its batch norms learn nothing."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the pooled output of the backbone."""
        return pool(self.outputs(inputs), self.pooling)

    def outputs(self, inputs: Tensor) -> Any:
        """Return the backbone's outputs for the images."""
        x = inputs.expand(-1, self.channels, -1, -1)
        if self.image_size is not None and x.shape[-2:] != (self.image_size, self.image_size):
            x = F.interpolate(x, size=(self.image_size, self.image_size), mode="bilinear", align_corners=False)
        with attention_kernel():
            return self.backbone(pixel_values=x)


def pool(outputs: Any, pooling: str) -> Tensor:
    """Return one vector for each image: the pooler's, the first token's, or the mean over tokens or pixels."""
    if pooling == "pooler":
        pooled: Tensor = outputs.pooler_output
        return pooled.flatten(1)
    hidden: Tensor = outputs.last_hidden_state
    if pooling == "cls":
        return hidden[:, 0]
    return hidden.mean(1) if hidden.ndim == 3 else hidden.mean((2, 3))


def hub_backbone(
    num_classes: int,
    form: InputForm,
    *,
    source: str,
    pooling: str = "auto",
    image_size: int | None = None,
    frozen: bool = False,
) -> HubClassifier:
    """Build a classifier on a Hugging Face backbone.

    Args:
        source: a name on the hub, or a folder that ``save_pretrained`` wrote.
        pooling: ``pooler``, ``cls`` (the first token), ``mean``, or ``auto``: the pooler where the weights have one,
            else the first token where it is a class token, else the mean.
        image_size: the side that images are resized to; by default the one in the backbone's configuration, if
            it has one.
        frozen: train only the head.
    """
    title = f"hf:{source}"
    channels, height, width = form.image(title)
    if pooling not in POOLINGS:
        raise unknown_name("pooling", pooling, POOLINGS)
    if image_size is not None:
        require_positive(title, image_size=image_size)
    backbone, missing = load_backbone(source)
    wanted = int(getattr(backbone.config, "num_channels", channels))
    if channels not in (1, wanted):
        raise UsageError(
            f"model {title!r} reads images of {wanted} channels, got {channels}. Convert the images.",
            code="kind-mismatch",
            got=channels,
            model=title,
            wanted=wanted,
        )
    expected = getattr(backbone.config, "image_size", None)
    size = expected if image_size is None and isinstance(expected, int) else image_size
    model = HubClassifier(backbone, channels=wanted, pooling=pooling, image_size=size, frozen=frozen)
    add_head(model, torch.zeros(1, channels, height, width), num_classes, missing, title)
    return model


def load_backbone(source: str) -> tuple[Any, set[str]]:
    """Return the image encoder of a folder or hub name, and the names of its parameters that the weights lack."""
    ways = "Give a folder that save_pretrained wrote, or a name on the hub and a network to reach it."
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            f"model 'hf:{source}' needs transformers: pip install 'fedatlas[hub]'. {ways}",
            code="package-missing",
            package="transformers",
        ) from error
    try:
        backbone, report = transformers.AutoModel.from_pretrained(
            source, output_loading_info=True, trust_remote_code=False
        )
    # Broken or missing files show in many ways; to each the user needs the same answer: the two ways, and the reason.
    except Exception as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"model 'hf:{source}' cannot be loaded: {why_unreadable(error)} {ways}",
            code="source-unavailable",
            source=source,
        ) from error
    # A text and image model (CLIP, SigLIP) holds its image encoder as a part.
    backbone = getattr(backbone, "vision_model", backbone).float()
    if getattr(backbone, "main_input_name", "pixel_values") != "pixel_values":
        raise UsageError(
            f"model 'hf:{source}' is a {type(backbone).__name__}, which reads no images.",
            code="kind-mismatch",
            model=f"hf:{source}",
            wanted="images",
        )
    return backbone, {str(name) for name in report["missing_keys"]}


def add_head(model: HubClassifier, example: Tensor, num_classes: int, missing: set[str], title: str) -> None:
    """Choose the pooling and the head's width from one pass, and stop the training of what the pass never used."""
    model.eval()
    with torch.enable_grad():
        try:
            outputs = model.outputs(example)
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"model {title!r} cannot read images of {tuple(example.shape[1:])} with image_size="
                f"{model.image_size}: {error}. Set image_size to what it expects.",
                code="wrong-shape",
                model=title,
                setting="image_size",
                shape=tuple(example.shape[1:]),
            ) from error
        if model.pooling == "auto":
            model.pooling = choose_pooling(model.backbone, outputs, missing)
        if model.pooling == "pooler" and getattr(outputs, "pooler_output", None) is None:
            raise UsageError(
                f"model {title!r} has no pooler; use pooling='cls', 'mean' or 'auto'.",
                code="kind-mismatch",
                model=title,
                setting="pooling",
            )
        if model.pooling == "cls" and outputs.last_hidden_state.ndim != 3:
            raise UsageError(
                f"model {title!r} makes maps, not tokens; use pooling='mean' or 'auto'.",
                code="kind-mismatch",
                model=title,
                setting="pooling",
            )
        features = pool(outputs, model.pooling)
        model.head = nn.Linear(features.shape[1], num_classes)
        parameters = [value for value in model.backbone.parameters() if value.requires_grad]
        gradients = torch.autograd.grad(features.sum(), parameters, allow_unused=True) if parameters else ()
    for value, gradient in zip(parameters, gradients, strict=True):
        value.requires_grad_(gradient is not None)
    model.train()


def choose_pooling(backbone: nn.Module, outputs: Any, missing: set[str]) -> str:
    """Return the pooling that the weights were trained for."""
    if getattr(outputs, "pooler_output", None) is not None and not any("pooler" in name for name in missing):
        return "pooler"
    names = [name.rpartition(".")[2] for name, _ in backbone.named_parameters()]
    return "cls" if "cls_token" in names or "class_embedding" in names else "mean"
