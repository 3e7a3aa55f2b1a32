from typing import Any

import pytest
import torch

from fedatlas.errors import UsageError
from fedatlas.models import Classifier, build_model
from raising import raises


def build(shape: tuple[int, int, int] = (3, 32, 32), **options: Any) -> Classifier:
    return build_model("mobilenet_v2", num_classes=10, input_shape=shape, **options)


def test_mobilenet_has_torchvision_s_count_and_names() -> None:
    """torchvision's has 3,504,872 parameters, 1,281,000 of them in a head of 1000 classes; ours has 1280 * 10 + 10."""
    model = build()
    assert sum(p.numel() for p in model.parameters()) == 3_504_872 - 1_281_000 + 12_810 == 2_236_682
    names = model.state_dict().keys()
    assert {"features.0.0.weight", "features.1.conv.0.0.weight", "features.1.conv.2.bias"} <= names
    assert {"features.2.conv.1.1.running_var", "features.17.conv.3.weight", "features.18.1.weight"} <= names
    assert {"head.weight", "head.bias"} <= names


@pytest.mark.parametrize(("side", "stem_stride", "last"), [(32, 1, 2), (32, 2, 1), (64, 2, 2)])
def test_the_stem_s_stride_sets_the_last_map(side: int, stem_stride: int, last: int) -> None:
    model = build((3, side, side), stem_stride=stem_stride, width=0.1)
    maps: list[torch.Size] = []
    layer = model.get_submodule("features")
    layer.register_forward_hook(lambda module, inputs, output: maps.append(output.shape))
    model(torch.randn(2, 3, side, side))
    assert maps == [torch.Size([2, 1280, last, last])]


def test_width_multiplies_the_channels_in_eights() -> None:
    """16 * 0.75 = 12 rounds to 16; 24 * 0.75 = 18 would round to 16, which loses over a tenth: 24; 320 to 240."""
    shapes = {name: value.shape for name, value in build(width=0.75).state_dict().items()}
    assert shapes["features.1.conv.1.weight"][0] == 16
    assert shapes["features.2.conv.2.weight"][0] == 24
    assert shapes["features.17.conv.2.weight"][0] == 240
    assert shapes["head.weight"] == (10, 1280)


def test_dropout_drops_features_in_training_only() -> None:
    model = build(dropout=0.5, width=0.1, norm="group")
    inputs = torch.randn(2, 3, 32, 32)
    torch.manual_seed(0)
    features, logits = model(inputs)
    torch.testing.assert_close(logits, model.head(features))
    model.eval()
    kept, _ = model(inputs)
    assert (features == 0).sum() > (kept == 0).sum() + 500


def test_instance_norm_on_a_single_pixel_is_refused() -> None:
    with raises(UsageError, "model-unfit", reason="one-pixel") as caught:
        build(norm="instance")
    assert "stem_stride=1" in str(caught.value)
