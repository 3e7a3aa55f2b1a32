from typing import Any

import torch
from torch.func import vmap

from fedatlas.models import Classifier, build_model
from fedatlas.models.cct import EncoderLayer, StochasticDepth


def build(shape: tuple[int, int, int] = (3, 32, 32), **options: Any) -> Classifier:
    return build_model("cct_7_3x1", num_classes=10, input_shape=shape, **options)


def test_cct_has_the_published_count() -> None:
    """3.76 M in the paper.

    Tokenizer 27 * 256; positions 16 * 16 * 256; a layer has two norms of 2 * 256, qkv 256 * 768, projection 256 * 257,
    perceptron 256 * 512 + 512 and 512 * 256 + 256; then a norm, the pooling 256 + 1 and the head 2570.
    """
    layer = 4 * 256 + 256 * 768 + 256 * 257 + (256 * 512 + 512) + (512 * 256 + 256)
    expected = 27 * 256 + 256 * 256 + 7 * layer + 512 + 257 + 2570
    assert expected == 3_760_139
    assert sum(p.numel() for p in build().parameters()) == expected


def test_positions_follow_the_image() -> None:
    model = build((1, 7, 10))
    assert model.get_parameter("positions").shape == (1, 4 * 5, 256)
    assert model(torch.randn(2, 1, 7, 10))[0].shape == (2, 256)


def test_with_both_branches_at_zero_a_layer_is_its_second_norm() -> None:
    """x + 0 is normalised, and the normalised tokens are the second shortcut, as in the authors' code."""
    layer = EncoderLayer(0.0, 0.0, 0.0)
    for linear in (layer.attention.projection, layer.linear2):
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    tokens = torch.randn(2, 3, 256)
    torch.testing.assert_close(layer(tokens), torch.nn.functional.layer_norm(tokens, (256,)))


def test_stochastic_depth_drops_whole_examples_and_keeps_the_mean() -> None:
    layer = StochasticDepth(0.25)
    torch.manual_seed(0)
    branch = layer(torch.ones(4000, 2, 3))
    values = branch[:, 0, 0]
    assert torch.equal(branch, values[:, None, None].expand_as(branch))
    torch.testing.assert_close(values.unique(), torch.tensor([0.0, 4 / 3]))
    assert abs(values.mean().item() - 1) < 0.03
    assert torch.equal(layer.eval()(branch), branch)


def test_dropouts_act_in_training_only_also_under_vmap() -> None:
    model = build((3, 8, 8), dropout=0.2, attention_dropout=0.2, stochastic_depth=0.5)
    inputs = torch.randn(2, 3, 8, 8)
    torch.manual_seed(0)
    assert not torch.equal(model(inputs)[0], model(inputs)[0])
    stacked = vmap(model, randomness="different")(inputs.expand(2, -1, -1, -1, -1))[0]
    assert not torch.equal(stacked[0], stacked[1])
    model.eval()
    assert torch.equal(model(inputs)[0], model(inputs)[0])
