from typing import Any

import pytest
import torch
from torch import nn

from fedatlas.errors import UsageError
from fedatlas.models import NORM_LAYERS, NORMS, Classifier, build_model
from fedatlas.models.resnet import filled_up
from raising import raises

HEAD = 512 * 10 + 10


def build(**options: Any) -> Classifier:
    return build_model("resnet18", num_classes=10, input_shape=(3, 32, 32), **options)


def counts(model: Classifier) -> tuple[int, int, int]:
    norms = sum(p.numel() for m in model.modules() if isinstance(m, NORM_LAYERS) for p in m.parameters())
    return sum(p.numel() for p in model.parameters()), norms, sum(p.numel() for p in model.head.parameters())


def test_resnet18_has_the_counts_of_fedpce() -> None:
    """The three counts from the widths.

    Convolutions, in units of 3 * 3: stem 3 * 64; stage one 4 * 64^2; the others (c/2) * c + 3 * c^2 with c = 128, 256,
    512; shortcuts 64 * 128 + 128 * 256 + 256 * 512, of 1 * 1.
    Norm channels: stem 64, stage one 4 * 64, the others 5 * c, head 512: 5,312 in all, each with a scale and a shift.
    """
    convolutions = 9 * (3 * 64 + 4 * 64**2) + sum(9 * (c * c // 2 + 3 * c * c) + c * c // 2 for c in (128, 256, 512))
    norms = 2 * (64 + 4 * 64 + 5 * (128 + 256 + 512) + 512)
    assert (norms, HEAD, convolutions + norms + HEAD) == (10_624, 5_130, 11_174_986)
    assert counts(build(norm="instance", stem="cifar-pool", head_norm=True)) == (11_174_986, 10_624, 5_130)
    assert counts(build(norm="batch")) == (11_174_986 - 1_024, 10_624 - 1_024, 5_130)


def test_resnet18_with_the_imagenet_stem_has_torchvision_s_count() -> None:
    """torchvision's resnet18 has 11,689,512 parameters for 1000 classes."""
    model = build_model("resnet18", num_classes=1000, input_shape=(3, 64, 64), stem="imagenet")
    assert sum(p.numel() for p in model.parameters()) == 11_689_512


def test_parameters_have_torchvision_s_names() -> None:
    names = build(width=4).state_dict().keys()
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer4.1.bn2.bias"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight", "head.bias"} <= names
    assert not any(name.startswith("layer1.0.downsample") or name.endswith("conv1.bias") for name in names)
    assert len(names) == 122


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("width", [2, 62])
def test_every_norm_works_at_every_width(norm: str, width: int) -> None:
    model = build(norm=norm, width=width, head_norm=True, stem="cifar-pool")
    features, _ = model(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, 8 * width)
    assert bool(features.isfinite().all())


@pytest.mark.parametrize(("stem", "side"), [("cifar", 4), ("cifar-pool", 2), ("imagenet", 1)])
def test_the_stem_sets_the_last_map(stem: str, side: int) -> None:
    model = build(stem=stem, width=2)
    maps: list[torch.Size] = []
    layer = model.get_submodule("layer4")
    layer.register_forward_hook(lambda module, inputs, output: maps.append(output.shape))
    model(torch.randn(2, 3, 32, 32))
    assert maps == [torch.Size([2, 16, side, side])]


def test_head_norm_standardises_each_pooled_vector() -> None:
    model = build(width=2, norm="group", head_norm=True)
    features, _ = model(torch.randn(3, 3, 32, 32))
    torch.testing.assert_close(features.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.var(1, unbiased=False), torch.ones(3), atol=1e-2, rtol=0)


def test_instance_norm_on_a_single_pixel_is_refused() -> None:
    with raises(UsageError, "model-unfit", reason="one-pixel") as caught:
        build(norm="instance", stem="imagenet", width=2)
    assert "more than 32 pixels, stem='cifar'" in str(caught.value)
    with raises(UsageError, "model-unfit", reason="one-pixel") as caught:
        build_model("resnet18", num_classes=10, input_shape=(3, 8, 8), norm="instance", width=2, stem="cifar")
    assert "more than 8 pixels" in str(caught.value)


def test_convolutions_start_with_the_fan_out_variance() -> None:
    """Kaiming with fan out: the variance is 2 / (512 * 3 * 3)."""
    layer = build().get_submodule("layer4.1.conv2")
    assert isinstance(layer, nn.Conv2d)
    assert layer.weight.var().item() == pytest.approx(2 / (512 * 9), rel=0.01)


@pytest.mark.parametrize(("channels_in", "channels_out"), [(3, 62), (62, 62), (62, 124), (124, 64), (12, 16)])
def test_filling_channels_up_changes_neither_map_nor_gradients(channels_in: int, channels_out: int) -> None:
    layer = nn.Conv2d(channels_in, channels_out, 3, 2, 1, bias=False).double()
    inputs = torch.randn(2, channels_in, 8, 8, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, channels_out, 4, 4, dtype=torch.float64)
    plain, filled = layer(inputs), filled_up(layer, inputs)
    torch.testing.assert_close(filled, plain)
    wanted, found = (torch.autograd.grad((maps * weights).sum(), [inputs, layer.weight]) for maps in (plain, filled))
    torch.testing.assert_close(found, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compiled_on_a_gpu_an_odd_width_gives_the_same() -> None:
    model = build(norm="instance", stem="cifar-pool", width=20).double().cuda()
    inputs = torch.randn(4, 3, 32, 32, dtype=torch.float64, device="cuda")
    torch.testing.assert_close(torch.compile(model)(inputs), model(inputs), rtol=1e-6, atol=1e-6)
