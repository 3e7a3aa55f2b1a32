"""Small networks: a multi-layer perceptron, a linear classifier and a two-convolution network."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.errors import UsageError
from fedatlas.models.classifier import Classifier, InputForm, require_positive
from fedatlas.models.norms import make_flat_norm, make_norm
from fedatlas.models.registry import model


class MultiLayerPerceptron(Classifier):
    """Linear layers with ReLU between; images are flattened. The features are the last hidden layer."""

    def __init__(self, num_inputs: int, hidden: Sequence[int], num_classes: int, norm: str = "none") -> None:
        super().__init__()
        widths = (num_inputs, *hidden)
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(widths))
        self.norms = nn.ModuleList(make_flat_norm(norm, width) for width in hidden)
        self.head = nn.Linear(widths[-1], num_classes)

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the last hidden layer, or the flat inputs where there is none."""
        x = inputs.flatten(1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = F.relu(norm(layer(x)))
        return x


class ConvolutionalNetwork(Classifier):
    """Two 3x3 convolutions without padding, a 2x2 max-pool and a hidden linear layer: pfl-research's benchmark CNN."""

    def __init__(self, image: tuple[int, int, int], num_classes: int, width: int, norm: str) -> None:
        super().__init__()
        channels, height, breadth = image
        self.conv1 = nn.Conv2d(channels, width, 3)
        self.norm1 = make_norm(norm, width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3)
        self.norm2 = make_norm(norm, 2 * width)
        self.hidden = nn.Linear(2 * width * ((height - 4) // 2) * ((breadth - 4) // 2), 4 * width)
        self.head = nn.Linear(4 * width, num_classes)

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the hidden layer."""
        x = F.relu(self.norm1(self.conv1(inputs)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.max_pool2d(x, 2)
        return F.relu(self.hidden(x.flatten(1)))


@model(reads=("features", "image"))
def mlp(
    num_classes: int, form: InputForm, *, hidden: Sequence[int] = (200,), norm: str = "none"
) -> MultiLayerPerceptron:
    """Linear layers with ReLU between, on images or features; ``hidden=()`` is a linear classifier.

    ``norm`` is ``batch``, ``layer`` or ``none``, before each ReLU.
    """
    if form.kind == "tokens":
        raise form.mismatch("mlp", "images or features")
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise UsageError(
            f"mlp: hidden must be a sequence of widths such as (200, 200), got {hidden!r}.",
            code="wrong-type",
            got=hidden,
            setting="hidden",
        )
    for width in hidden:
        require_positive("mlp", hidden=width)
    return MultiLayerPerceptron(math.prod(form.shape), hidden, num_classes, norm)


@model(reads=("features", "image"))
def linear(num_classes: int, form: InputForm) -> MultiLayerPerceptron:
    """One linear layer: logistic regression, on images or features."""
    if form.kind == "tokens":
        raise form.mismatch("linear", "images or features")
    return MultiLayerPerceptron(math.prod(form.shape), (), num_classes)


@model(reads=("image",))
def cnn(num_classes: int, form: InputForm, *, width: int = 32, norm: str = "none") -> ConvolutionalNetwork:
    """Two 3x3 convolutions, a max-pool and a hidden layer: small and fast, on images.

    The convolutions have ``width`` and ``2 * width`` channels; there are ``4 * width`` features.
    """
    image = form.image("cnn")
    require_positive("cnn", width=width)
    if min(image[1:]) < 6:
        raise UsageError(
            f"cnn: images must be at least 6x6, got {image[1]}x{image[2]}.",
            code="out-of-range",
            got=image[1],
            what="images",
        )
    return ConvolutionalNetwork(image, num_classes, width, norm)
