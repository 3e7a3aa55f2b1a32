import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedatlas.atlas.client2vec.network import (
    DSAIGN,
    Halves,
    decomposition_losses,
    diversity_loss,
    orthogonality_loss,
    similarity_loss,
)
from fedatlas.atlas.client2vec.settings import LOSSES, IndexSettings
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import generator
from pages import as_told, read, told
from raising import raises

SMALL = IndexSettings(feed_forward=16)


def vectors(count: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=generator(seed, "vectors"))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("sum_dot", 3 + 4 + 0 + 5), ("mean_dot", 12 / 4), ("mean_cos", (0.6 + 0.8 + 0 + 1) / 4)],
)
def test_orthogonality_counts_all_pairs_in_each_mode(mode: str, expected: float) -> None:
    """Z = [(3, 4), (0, -5)], U = [(1, 0), (0, 1)]: Z U^T = [[3, 4], [0, -5]], lengths of Z 5 and 5, of U 1 and 1."""
    z, u = torch.tensor([[3.0, 4.0], [0.0, -5.0]]), torch.eye(2)
    assert float(orthogonality_loss(z, u, mode)) == pytest.approx(expected)  # type: ignore[arg-type]


def test_similarity_is_one_minus_the_mean_cosine() -> None:
    """cos((3, 4), (1, 0)) = 0.6 and cos((0, 2), (0, -1)) = -1: mean of 0.4 and 2."""
    z, target = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    assert float(similarity_loss(z, target)) == pytest.approx(1.2)


def test_diversity_leaves_out_an_example_s_cosine_with_itself() -> None:
    """u = (1, 0), (0, 2), (1, 1): rows' cosines with the others are {0, c}, {0, c}, {c, c}, c = 1/sqrt 2."""
    u, c = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), math.sqrt(0.5)
    expected = (2 * math.log(1 + math.exp(c)) + math.log(2 * math.exp(c))) / 3
    assert float(diversity_loss(u)) == pytest.approx(expected)


def test_diversity_of_a_single_example_is_zero_and_trains_nothing() -> None:
    u = torch.ones(1, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(diversity_loss(u), u)
    assert float(gradient.abs().max()) == 0


@pytest.mark.parametrize("dropped", LOSSES)
def test_a_dropped_loss_is_not_computed(dropped: str) -> None:
    kept = tuple(name for name in LOSSES if name != dropped)
    z, u, x = vectors(3, 4, 1), vectors(3, 4, 2), vectors(3, 4, 3)
    assert tuple(decomposition_losses(Halves(z, u), x, x, x, kept)) == kept


def test_reconstruction_is_the_mean_square_over_batch_and_entries() -> None:
    z = vectors(2, 2)
    found = decomposition_losses(Halves(z, z), torch.zeros(2, 2), torch.tensor([[2.0, 0.0], [0.0, 4.0]]), z, ("recon",))
    assert float(found["recon"]) == pytest.approx((4 + 16) / 4)


@pytest.mark.parametrize("width", [64, 384, 512])
def test_the_halves_are_equal_without_positions_and_differ_with_them(width: int) -> None:
    for pos_embed in (False, True):
        network = DSAIGN(width, width, IndexSettings(feed_forward=16, pos_embed=pos_embed)).eval()
        with torch.no_grad():
            z, u = network.halves(network(vectors(5, width))[0])
        assert z.shape == u.shape == (5, width)
        assert (float((z - u).abs().max()) > 0) == pos_embed


def test_the_network_has_the_shape_of_the_paper() -> None:
    """An encoder layer of width 32: attention 4 (32^2 + 32), feed-forward 2 * 32 * 2048 + 2048 + 32, norms 4 * 32."""
    network = DSAIGN(512, 512)
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 2048 + 2048 + 32 + 4 * 32
    assert network.token_width == 32
    assert network.heads == 8
    assert sum(p.numel() for p in network.parameters()) == 3 * layer + 1024 * 512 + 512 + 32 * 32
    output, restored = network(vectors(2, 512))
    assert output.shape == (2, 1024)
    assert restored.shape == (2, 512)


def test_positions_start_small_and_are_trained() -> None:
    network = DSAIGN(512, 512, SMALL)
    assert network.positions is not None
    assert 0.018 < float(network.positions.detach().std()) < 0.022
    assert network.positions.requires_grad


def test_normalisation_stands_after_the_shortcut() -> None:
    """Post-norm: before training, each token of the output has mean 0 and variance 1."""
    network = DSAIGN(512, 512, SMALL).eval()
    with torch.no_grad():
        tokens = network(vectors(3, 512))[0].view(3, 32, 32)
    torch.testing.assert_close(tokens.mean(2), torch.zeros(3, 32), atol=1e-5, rtol=0)
    torch.testing.assert_close(tokens.var(2, correction=0), torch.ones(3, 32), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("width", "network_width", "token_width", "heads"),
    [(384, 384, 24, 8), (100, 112, 7, 7), (160, 160, 10, 5), (10, 16, 1, 1)],
)
def test_other_widths_are_32_tokens_with_heads_that_divide_them(
    width: int, network_width: int, token_width: int, heads: int
) -> None:
    network = DSAIGN(width, width, SMALL)
    assert (network.width, network.token_width, network.heads) == (network_width, token_width, heads)
    inputs = network.inputs(vectors(2, width))
    assert network(inputs)[1].shape == inputs.shape == (2, network_width)


def test_a_narrower_vector_is_lifted_without_changing_angles() -> None:
    network = DSAIGN(64, 24, SMALL)
    classes = vectors(5, 24)
    lifted = network.targets(classes)
    assert lifted.shape == (5, 64)
    torch.testing.assert_close(lifted @ lifted.T, classes @ classes.T, atol=1e-4, rtol=0)
    examples = vectors(2, 64)
    assert network.inputs(examples) is examples


def test_vectors_are_scaled_to_length_one_only_where_asked() -> None:
    examples = 10 * vectors(3, 64)
    plain, unit = DSAIGN(64, 64, SMALL), DSAIGN(64, 64, IndexSettings(feed_forward=16, normalize=True))
    assert torch.equal(plain.inputs(examples), examples)
    torch.testing.assert_close(unit.inputs(examples).norm(dim=1), torch.ones(3))


def test_the_projection_may_be_two_matrices() -> None:
    network = DSAIGN(64, 64, IndexSettings(feed_forward=16, projection="mlp"))
    assert [p.shape for p in network.projection.parameters() if p.ndim == 2] == [(64, 128), (64, 64)]


def test_the_first_parameters_come_from_the_seed_alone() -> None:
    one, again, other = (DSAIGN(64, 64, SMALL, seed=seed).describe()["sha256"] for seed in (0, 0, 1))
    assert one == again != other


def test_a_saved_network_comes_back_whole(tmp_path: Path) -> None:
    network = DSAIGN(64, 24, IndexSettings(feed_forward=16, losses=("sim", "div"), projection="mlp"), seed=3)
    network.provenance = {"encoder": "toy"}
    network.save(tmp_path / "new" / "network.safetensors")
    loaded = DSAIGN.load(tmp_path / "new" / "network.safetensors")
    assert loaded.settings == network.settings
    assert loaded.provenance == network.provenance
    assert loaded.describe() == network.describe()


def test_an_altered_or_missing_network_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "network.safetensors"
    with raises(DataError, "file-missing", path=str(file)):
        DSAIGN.load(file)
    DSAIGN(64, 64, SMALL).save(file)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with raises(DataError, "file-altered", path=str(file)):
        DSAIGN.load(file)


def test_vectors_of_another_width_are_refused() -> None:
    with raises(UsageError, "wrong-shape", what="examples", wanted=64, got=(2, 32)):
        DSAIGN(64, 24, SMALL).inputs(vectors(2, 32))


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"losses": ("sim", "orthogonal")}, "unknown-name", {"kind": "loss of the index", "got": "orthogonal"}),
        ({"losses": ()}, "wrong-value", {"got": ()}),
        ({"losses": ("sim", "sim")}, "wrong-value", {"got": ("sim", "sim")}),
        ({"orthogonality": "mean_cosine"}, "unknown-name", {"got": "mean_cosine"}),
        ({"projection": "none"}, "unknown-name", {"kind": "projection", "got": "none"}),
        ({"global_batching": "client"}, "unknown-name", {"kind": "global_batching", "got": "client"}),
        ({"upload": 0}, "out-of-range", {"setting": "upload", "got": 0}),
        ({"dropout": 1.0}, "out-of-range", {"setting": "dropout", "got": 1.0}),
        ({"lr": -1.0}, "out-of-range", {"setting": "lr", "got": -1.0}),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], code: str, fields: dict[str, object]) -> None:
    with raises(UsageError, code, **fields):
        IndexSettings(**settings)  # type: ignore[arg-type]


def test_the_diversity_of_a_single_example_is_a_number() -> None:
    """There is no other to differ from: the sum over them is empty, and its logarithm -inf would break the training."""
    assert float(diversity_loss(torch.ones(1, 4))) == 0


def test_the_network_is_as_wide_as_the_wider_of_examples_and_classes() -> None:
    network = DSAIGN(24, 64, SMALL)
    assert network.width == 64
    assert network.inputs(vectors(2, 24)).shape == network.targets(vectors(3, 64))[:2].shape == (2, 64)


def test_the_page_tells_the_defaults_of_all_settings() -> None:
    page = told("client2vec-index.md", "Settings")
    defaults = {own.name: as_told(own.default) for own in fields(IndexSettings)}
    worded = {"losses": "all four", "local_samples": "all"}
    assert IndexSettings().losses == ("div", "sim", "orth", "recon")
    assert IndexSettings().local_samples is None
    assert {title: read(text) for title, text in page.items()} == defaults | worded
