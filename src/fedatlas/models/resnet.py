"""ResNet-18: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.

Parameters have torchvision's names, except that the classifier is ``head`` and not ``fc``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.errors import unknown_name
from fedatlas.models.classifier import Classifier, InputForm, require_positive
from fedatlas.models.norms import check_map_size, make_norm
from fedatlas.models.pretrained import load_pretrained
from fedatlas.models.registry import model

STEMS = ("cifar", "cifar-pool", "imagenet")
BLOCKS_PER_STAGE = 2
EIGHT = 8
"""A GPU is quick with a multiple of so many channels."""


class Shortcut(nn.Sequential):
    """A convolution and a norm."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalised map."""
        convolution, norm = self
        assert isinstance(convolution, nn.Conv2d)
        result: Tensor = norm(convolve(convolution, inputs))
        return result


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = make_norm(norm, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = make_norm(norm, channels_out)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
            self.downsample = Shortcut(shortcut, make_norm(norm, channels_out))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's map."""
        x = F.relu(self.bn1(convolve(self.conv1, inputs)))
        x = self.bn2(convolve(self.conv2, x))
        return F.relu(x + self.downsample(inputs))


class ResNet(Classifier):
    """Four stages of two blocks; the features are the mean of the last map, normalised if ``head_norm``."""

    def __init__(self, channels: int, num_classes: int, *, stem: str, norm: str, width: int, head_norm: bool) -> None:
        super().__init__()
        kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv1 = nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = make_norm(norm, width)
        self.maxpool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, 2, 1)
        self.layer1 = stage(width, width, 1, norm)
        self.layer2 = stage(width, 2 * width, 2, norm)
        self.layer3 = stage(2 * width, 4 * width, 2, norm)
        self.layer4 = stage(4 * width, 8 * width, 2, norm)
        self.head_norm = nn.LayerNorm(8 * width) if head_norm else nn.Identity()
        self.head = nn.Linear(8 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the mean of the last map."""
        x = self.maxpool(F.relu(self.bn1(convolve(self.conv1, inputs))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        features: Tensor = self.head_norm(x.mean((2, 3)))
        return features


def convolve(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return a layer's map."""
    odd = layer.out_channels % EIGHT or (layer.in_channels > EIGHT and layer.in_channels % EIGHT)
    # Compiled code pads while it copies anyway; otherwise it would be a separate pass.
    if odd and inputs.is_cuda and torch.compiler.is_compiling():
        return filled_up(layer, inputs)
    result: Tensor = layer(inputs)
    return result


def filled_up(layer: nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return the map of a layer without a bias, with channels of zeros up to a multiple of eight while it is made."""
    after = -layer.out_channels % EIGHT
    before = -layer.in_channels % EIGHT if layer.in_channels > EIGHT else 0
    weight = F.pad(layer.weight, (0, 0, 0, 0, 0, before, 0, after))
    maps = F.conv2d(F.pad(inputs, (0, 0, 0, 0, 0, before)), weight, None, layer.stride, layer.padding)
    return maps[:, : layer.out_channels]


def stage(channels_in: int, channels_out: int, stride: int, norm: str) -> nn.Sequential:
    """Return one stage; its first block changes the shape."""
    rest = [BasicBlock(channels_out, channels_out, 1, norm) for _ in range(BLOCKS_PER_STAGE - 1)]
    return nn.Sequential(BasicBlock(channels_in, channels_out, stride, norm), *rest)


@model(reads=("image",))
def resnet18(
    num_classes: int,
    form: InputForm,
    *,
    stem: str = "cifar",
    norm: str = "batch",
    width: int = 64,
    head_norm: bool = False,
    pretrained: str | None = None,
) -> ResNet:
    """ResNet-18 with a choice of stem, norm and width, on images.

    Args:
        stem: ``cifar`` is a 3x3 convolution of stride 1; ``cifar-pool`` adds a 3x3 max-pool of stride 2; ``imagenet``
            is a 7x7 convolution of stride 2 and the same max-pool.
        width: channels of the first stage; each stage doubles them.
        head_norm: standardise the pooled vector across its channels, with a scale and a shift, before the head.
        pretrained: a file or folder of weights with torchvision's names, or a Hugging Face name such as
            ``timm/resnet18.a1_in1k``; needs ``stem="imagenet"``.
    """
    channels, height, breadth = form.image("resnet18")
    require_positive("resnet18", width=width)
    if stem not in STEMS:
        raise unknown_name("stem", stem, STEMS)
    scale = {"cifar": 8, "cifar-pool": 16, "imagenet": 32}[stem]
    other = "" if stem == "cifar" else ", stem='cifar'"
    remedy = f"use images of more than {scale} pixels{other} or another norm"
    check_map_size("resnet18", norm, -(-height // scale), -(-breadth // scale), remedy)
    model = ResNet(channels, num_classes, stem=stem, norm=norm, width=width, head_norm=head_norm)
    if pretrained is not None:
        load_pretrained(model, pretrained, torchvision_name)
    return model


def torchvision_name(name: str) -> str:
    """Return this model's name of a parameter that torchvision (and timm) names so."""
    return f"head.{name.removeprefix('fc.')}" if name.startswith("fc.") else name
