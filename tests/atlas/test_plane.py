from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from atlases import blocks, three
from fedatlas.atlas import Atlas
from fedatlas.atlas.plane import place, principal
from fedatlas.errors import UsageError
from fedatlas.seeds import generator
from raising import raises


@pytest.mark.parametrize("method", ["kmeans", "gmm"])
def test_groups_find_directions_and_number_them_by_their_first_client(method: str) -> None:
    atlas = blocks()
    assert atlas.groups(3, method=method).tolist() == [0, 1, 2] * 8
    assert torch.equal(atlas.groups(5, method=method, seed=3), atlas.groups(5, method=method, seed=3))


def test_groups_refuse_a_count_or_a_method_that_cannot_be() -> None:
    with raises(UsageError, "out-of-range", most=3, got=4):
        three().groups(4)
    with raises(UsageError, "unknown-name", got="kmean"):
        three().groups(2, method="kmean")


def test_pca_keeps_the_distances_of_points_in_a_plane() -> None:
    atlas = three()
    places = atlas.map2d(half="feature")
    unit = atlas.unit("feature").double()
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.testing.assert_allclose(distances, torch.cdist(unit, unit).numpy(), atol=1e-6)
    assert places[:, 0].std() >= places[:, 1].std()


def test_pca_of_tall_and_of_wide_tables_agree() -> None:
    atlas = blocks(width=12)
    wide = replace(atlas, halves={"feature": torch.nn.functional.pad(atlas.half("feature"), (0, 100))})
    np.testing.assert_allclose(atlas.map2d(half="feature"), wide.map2d(), atol=1e-5)


def test_a_map_of_one_number_or_one_client_is_flat() -> None:
    assert Atlas(names=("a",), halves={"h": torch.ones(1, 5)}, sizes=torch.ones(1).long()).map2d().tolist() == [[0, 0]]
    thin = replace(three(), halves={"h": torch.tensor([[1.0], [-1.0], [2.0]])})
    assert thin.map2d().shape == (3, 2)


def test_tsne_repeats_from_its_seed_and_keeps_bundles_together() -> None:
    atlas = blocks()
    places = atlas.map2d("tsne", half="feature", seed=1)
    np.testing.assert_array_equal(places, atlas.map2d("tsne", half="feature", seed=1))
    centres = np.stack([places[i::3].mean(0) for i in range(3)])
    nearest = np.linalg.norm(places[:, None] - centres[None], axis=2).argmin(1)
    assert nearest.tolist() == [0, 1, 2] * 8
    with raises(UsageError, "out-of-range", what="clients"):
        three().map2d("tsne")


@pytest.mark.skipif(find_spec("umap") is None, reason="needs umap-learn: pip install umap-learn")
def test_umap_repeats_from_its_seed_keeps_bundles_together_and_takes_a_handful() -> None:
    atlas = blocks()
    places = atlas.map2d("umap", half="feature", seed=1)
    np.testing.assert_array_equal(places, atlas.map2d("umap", half="feature", seed=1))
    centres = np.stack([places[i::3].mean(0) for i in range(3)])
    nearest = np.linalg.norm(places[:, None] - centres[None], axis=2).argmin(1)
    assert nearest.tolist() == [0, 1, 2] * 8
    for points in (torch.eye(4), torch.ones(6, 4)):  # the fewest, and clients that are all the same
        assert np.isfinite(place(points, "umap", 0)).all()
    with raises(UsageError, "out-of-range", what="clients"):
        three().map2d("umap")


@pytest.mark.skipif(find_spec("umap") is not None, reason="umap-learn is installed")
def test_without_umap_learn_the_error_says_what_to_install() -> None:
    with raises(UsageError, "extra-missing", extra="umap-learn"):
        blocks().map2d("umap")


def test_groups_of_one_half_look_at_nothing_else() -> None:
    """By one half the first two are alike, by the other the last two."""
    halves = {"feature": [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], "label": [[9.0, 0.0], [0.0, 9.0], [0.0, 9.0]]}
    atlas = Atlas(names=("a", "b", "c"), halves=halves, sizes=[1, 1, 1])  # type: ignore[arg-type]
    assert atlas.groups(2, half="feature").tolist() == [0, 0, 1]
    assert atlas.groups(2, half="label").tolist() == [0, 1, 1]


def test_maps_are_not_mirrored_by_chance() -> None:
    """Along each axis the point farthest out has a positive place, also where the vectors point the other way."""
    points = torch.randn(7, 3, generator=generator(0))
    for one in (principal(points), principal(-points)):
        farthest = np.abs(one).argmax(0)
        assert (one[farthest, [0, 1]] > 0).all()
