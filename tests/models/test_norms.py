import pytest
import torch
from torch import nn

from fedatlas.errors import UsageError
from fedatlas.models import NORM_LAYERS, NORMS, make_norm, without_running_statistics
from raising import raises


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (32, 32), (62, 2), (124, 4), (496, 16), (8, 8), (3, 1)])
def test_group_norm_takes_as_many_groups_up_to_32_as_divide_the_channels(channels: int, groups: int) -> None:
    norm = make_norm("group", channels)
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups


@pytest.mark.parametrize("kind", sorted(set(NORMS) - {"none"}))
def test_every_norm_is_a_norm_layer_with_a_scale_and_a_shift(kind: str) -> None:
    norm = make_norm(kind, 6)
    assert isinstance(norm, NORM_LAYERS)
    assert {name: value.shape for name, value in norm.named_parameters()} == {"weight": (6,), "bias": (6,)}


def test_layer_norm_is_one_group_and_instance_norm_keeps_no_statistics() -> None:
    layer, instance = make_norm("layer", 6), make_norm("instance", 6)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == 1
    assert not list(instance.buffers())


def test_an_unknown_norm_lists_the_known_ones() -> None:
    with raises(UsageError, "unknown-name", known=["batch", "group", "instance", "layer", "none"]):
        make_norm("batchnorm1", 4)


def test_without_running_statistics_the_batch_decides_in_training_and_in_test() -> None:
    """Inputs 1 and 3 have mean 2 and variance 1, so they come out as -1 and 1 (but for epsilon) in either mode."""
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Identity())
    assert {name for name, _ in model.named_buffers()} >= {"0.running_mean", "0.running_var"}
    assert without_running_statistics(model) is model
    assert not list(model.buffers())
    assert set(model.state_dict()) == {"0.weight", "0.bias"}
    inputs, expected = torch.tensor([[1.0], [3.0]]), torch.tensor([[-1.0], [1.0]])
    torch.testing.assert_close(model.train()(inputs), expected)
    torch.testing.assert_close(model.eval()(inputs), expected)


def test_without_running_statistics_batch_norm_works_under_vmap() -> None:
    model = without_running_statistics(nn.BatchNorm2d(2))
    inputs = torch.randn(3, 4, 2, 5, 5)
    together = torch.func.vmap(model)(inputs)
    torch.testing.assert_close(together[1], model(inputs[1]))
