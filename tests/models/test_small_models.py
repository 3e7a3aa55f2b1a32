import pytest
import torch

from fedatlas.errors import UsageError
from fedatlas.models import build_model
from raising import raises


def count(model: torch.nn.Module) -> int:
    return sum(value.numel() for value in model.parameters())


def test_mlp_counts_its_layers_on_images_and_on_features() -> None:
    """784 * 200 + 200 + 200 * 10 + 10 = 159,010; 4 * 3 + 3 + 3 * 2 + 2 = 23; without a hidden layer 4 * 2 + 2 = 10."""
    assert count(build_model("mlp", num_classes=10, input_shape=(1, 28, 28))) == 159_010
    assert count(build_model("mlp", num_classes=2, input_shape=(4,), hidden=[3])) == 23
    linear = build_model("mlp", num_classes=2, input_shape=(4,), hidden=())
    assert count(linear) == 10
    inputs = torch.randn(3, 4)
    assert torch.equal(linear(inputs)[0], inputs)


def test_linear_is_one_layer_on_the_inputs() -> None:
    """31 * 2 + 2 = 64; an image is flattened."""
    model = build_model("linear", num_classes=2, input_shape=(31,))
    assert count(model) == 64
    inputs = torch.randn(3, 31)
    torch.testing.assert_close(model(inputs)[1], inputs @ model.head.weight.T + model.head.bias)
    assert count(build_model("linear", num_classes=10, input_shape=(1, 28, 28))) == 7850


def test_cnn_has_the_count_of_the_benchmark_network() -> None:
    """Convolutions 27 * 32 + 32 and 288 * 64 + 64, hidden 64 * 14 * 14 * 128 + 128, head 128 * 10 + 10."""
    model = build_model("cnn", num_classes=10, input_shape=(3, 32, 32))
    assert count(model) == 896 + 18_496 + 1_605_760 + 1_290 == 1_626_442


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 48), (3, 6, 7)])
def test_cnn_fits_itself_to_the_image(shape: tuple[int, int, int]) -> None:
    model = build_model("cnn", num_classes=4, input_shape=shape, width=2, norm="instance")
    features, logits = model(torch.randn(2, *shape))
    assert features.shape == (2, 8)
    assert logits.shape == (2, 4)


def test_cnn_refuses_an_image_that_leaves_nothing_to_pool() -> None:
    with raises(UsageError, "out-of-range", got=5):
        build_model("cnn", num_classes=4, input_shape=(3, 5, 9))
