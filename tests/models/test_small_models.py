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


def test_mlp_normalises_before_each_relu_if_asked() -> None:
    """Two rows (0, 2) and (2, 0) through an identity: layer norm gives -1 and 1, of which ReLU leaves one."""
    model = build_model("mlp", num_classes=2, input_shape=(2,), hidden=[2], norm="layer")
    assert count(model) == 2 * 2 + 2 + 2 + 2 + 2 * 2 + 2
    with torch.no_grad():
        model.layers[0].weight.copy_(torch.eye(2))
        model.layers[0].bias.zero_()
        features = model(torch.tensor([[0.0, 2.0], [2.0, 0.0]]))[0]
    torch.testing.assert_close(features, torch.tensor([[0.0, 1.0], [1.0, 0.0]]), atol=1e-4, rtol=0)
    batch = build_model("mlp", num_classes=2, input_shape=(2,), hidden=[3, 2], norm="batch")
    assert [type(norm) for norm in batch.norms] == [torch.nn.BatchNorm1d] * 2
    with raises(UsageError, "unknown-name", got="instance"):
        build_model("mlp", num_classes=2, input_shape=(2,), norm="instance")


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
