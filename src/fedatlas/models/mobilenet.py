"""MobileNetV2: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, table 2.

Parameters have torchvision's names, except that the classifier is ``head`` and not ``classifier.1``.
"""

import re

from torch import Tensor, nn

from fedatlas.errors import UsageError
from fedatlas.models.classifier import Classifier, InputForm, dropout, require_probability
from fedatlas.models.norms import check_map_size, make_norm
from fedatlas.models.pretrained import load_pretrained
from fedatlas.models.registry import model

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks and the first block's stride of each stage."""


class InvertedResidual(nn.Module):
    """Widen by a 1x1 convolution, filter each channel by a 3x3 one, narrow by a 1x1 one; add where shapes agree."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int, norm: str) -> None:
        super().__init__()
        middle = channels_in * expansion
        widen = [] if expansion == 1 else [convolution(channels_in, middle, 1, 1, 1, norm)]
        self.conv = nn.Sequential(
            *widen,
            convolution(middle, middle, 3, stride, middle, norm),
            nn.Conv2d(middle, channels_out, 1, bias=False),
            make_norm(norm, channels_out),
        )
        self.adds = stride == 1 and channels_in == channels_out

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's map."""
        x: Tensor = self.conv(inputs)
        return inputs + x if self.adds else x


class MobileNetV2(Classifier):
    """Seventeen inverted residuals between two convolutions; the features are the mean of the last map."""

    def __init__(self, channels: int, num_classes: int, *, width: float, stem_stride: int, norm: str, p: float) -> None:
        super().__init__()
        current = scaled(32, width)
        layers: list[nn.Module] = [convolution(channels, current, 3, stem_stride, 1, norm)]
        for expansion, stage_channels, blocks, stride in STAGES:
            wanted = scaled(stage_channels, width)
            for block in range(blocks):
                layers.append(InvertedResidual(current, wanted, stride if block == 0 else 1, expansion, norm))
                current = wanted
        last = scaled(1280, max(1.0, width))
        self.features = nn.Sequential(*layers, convolution(current, last, 1, 1, 1, norm))
        self.dropout = dropout(p)
        self.head = nn.Linear(last, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
        nn.init.normal_(self.head.weight, 0, 0.01)
        nn.init.zeros_(self.head.bias)

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the mean of the last map."""
        features: Tensor = self.dropout(self.features(inputs).mean((2, 3)))
        return features


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int, groups: int, norm: str) -> nn.Sequential:
    """Return a convolution with its norm and ReLU6."""
    layer = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, make_norm(norm, channels_out), nn.ReLU6())


def scaled(channels: int, width: float) -> int:
    """Return the channels times the width, to the nearest multiple of 8 that loses at most a tenth."""
    rounded = max(8, int(channels * width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels * width else rounded


@model(reads=("image",))
def mobilenet_v2(
    num_classes: int,
    form: InputForm,
    *,
    width: float = 1.0,
    stem_stride: int = 2,
    norm: str = "batch",
    dropout: float = 0.0,
    pretrained: str | None = None,
) -> MobileNetV2:
    """MobileNetV2, on images of 64 pixels or, with ``stem_stride=1``, of 32.

    Args:
        width: multiplies the channels.
        stem_stride: 2 as published, for images of 64 pixels and more; 1 keeps a 2x2 last map at 32 pixels.
        dropout: of the features, while training; torchvision's is 0.2.
        pretrained: a file or folder of weights with torchvision's or timm's names, or a Hugging Face name such as
            ``timm/mobilenetv2_100.ra_in1k``.
    """
    channels, height, breadth = form.image("mobilenet_v2")
    require_probability("mobilenet_v2", dropout=dropout)
    if stem_stride not in (1, 2):
        raise UsageError(
            f"mobilenet_v2: stem_stride must be 1 or 2, got {stem_stride!r}.",
            code="out-of-range",
            got=stem_stride,
            setting="stem_stride",
        )
    if width <= 0:
        raise UsageError(
            f"mobilenet_v2: width must be above 0, got {width!r}.", code="out-of-range", got=width, setting="width"
        )
    scale = 16 * stem_stride
    remedy = "use larger images, stem_stride=1 or another norm"
    check_map_size("mobilenet_v2", norm, -(-height // scale), -(-breadth // scale), remedy)
    model = MobileNetV2(channels, num_classes, width=width, stem_stride=stem_stride, norm=norm, p=dropout)
    if pretrained is not None:
        load_pretrained(model, pretrained, published_name)
    return model


def published_name(name: str) -> str:
    """Return this model's name of a parameter that torchvision or timm names so."""
    owner, _, rest = name.rpartition(".")
    if owner in ("classifier.1", "classifier"):
        return f"head.{rest}"
    outer = {"conv_stem": "features.0.0", "bn1": "features.0.1", "conv_head": "features.18.0", "bn2": "features.18.1"}
    if owner in outer:
        return f"{outer[owner]}.{rest}"
    inner = re.fullmatch(r"blocks\.([0-6])\.(\d)\.(\w+)", owner)
    if inner is None:
        return name
    stage, block, layer = int(inner[1]), int(inner[2]), inner[3]
    position = 1 + sum(blocks for _, _, blocks, _ in STAGES[:stage]) + block
    narrow = {"conv_dw": "0.0", "bn1": "0.1", "conv_pw": "1", "bn2": "2"}
    wide = {"conv_pw": "0.0", "bn1": "0.1", "conv_dw": "1.0", "bn2": "1.1", "conv_pwl": "2", "bn3": "3"}
    places = narrow if stage == 0 else wide
    return f"features.{position}.conv.{places[layer]}.{rest}" if layer in places else name
