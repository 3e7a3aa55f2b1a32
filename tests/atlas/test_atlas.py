import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedatlas.atlas import Atlas
from fedatlas.atlas.plane import principal
from fedatlas.errors import DataError, FedatlasError, RunFolderError, UsageError
from fedatlas.seeds import generator
from raising import raises


def three() -> Atlas:
    """Cosines: feature 01 = 0, 02 = 0.6, 12 = 0.8; label 01 = 1, 02 = 0, 12 = 0."""
    return Atlas(
        names=("a", "b", "c"),
        halves={
            "feature": torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]),
            "label": torch.tensor([[5.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        },
        sizes=torch.tensor([7, 1, 3]),
        domains=("x", "x", "y"),
        provenance={"source": "hand", "seed": 0},
    )


def blocks(per_block: int = 8, width: int = 12) -> Atlas:
    """Three tight bundles of directions with lengths all over the place; clients of the bundles take turns."""
    rng = generator(0, "blocks")
    centres = torch.eye(3, width).repeat(per_block, 1)
    rows = centres + 0.05 * torch.randn(3 * per_block, width, generator=rng)
    rows *= torch.rand(len(rows), 1, generator=rng) * 20 + 0.1
    return Atlas(
        names=tuple(f"client-{i}" for i in range(len(rows))),
        halves={"feature": rows, "label": torch.ones(len(rows), 4)},
        sizes=torch.arange(1, len(rows) + 1),
    )


def test_similarity_is_the_mean_of_the_halves_cosines() -> None:
    expected = torch.tensor([[1.0, 0.5, 0.3], [0.5, 1.0, 0.4], [0.3, 0.4, 1.0]])
    torch.testing.assert_close(three().similarity(), expected)
    torch.testing.assert_close(three().similarity("feature")[0], torch.tensor([1.0, 0.0, 0.6]))


def test_similarity_to_a_set_weighs_its_members_by_their_examples() -> None:
    """S(a, {b, c}) = (1 * 0.5 + 3 * 0.3) / 4 = 0.35; the sizes of b and c are 1 and 3."""
    torch.testing.assert_close(three().similarity_to(torch.tensor([1, 2])), torch.tensor([0.35, 0.55, 0.85]))


def test_similarity_to_takes_weights_in_the_order_of_the_members() -> None:
    """Weights c: 1, b: 3. S(a) = (0.3 + 3 * 0.5) / 4 = 0.45."""
    found = three().similarity_to(torch.tensor([2, 1]), torch.tensor([1, 3]))
    torch.testing.assert_close(found, torch.tensor([0.45, (0.4 + 3) / 4, (1 + 3 * 0.4) / 4]))


def test_similarity_to_with_one_half_drops_the_mean_over_halves() -> None:
    torch.testing.assert_close(three().similarity_to(torch.tensor([1, 2]), half="label")[0], torch.tensor(0.25))


def test_similarity_to_agrees_with_the_matrix_and_stays_in_bounds() -> None:
    atlas = blocks()
    members = torch.tensor([3, 11, 4, 20])
    share = atlas.sizes[members] / atlas.sizes[members].sum()
    torch.testing.assert_close(atlas.similarity_to(members), atlas.similarity()[:, members] @ share)
    assert float(atlas.similarity_to(torch.tensor([5])).max()) <= 1
    assert float(atlas.similarity().abs().max()) <= 1


def test_a_row_of_zeros_is_like_nothing_not_even_itself() -> None:
    atlas = replace(three(), halves={"feature": torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 4.0]])})
    assert atlas.similarity()[0].tolist() == [0, 0, 0]
    assert atlas.similarity_to(torch.tensor([0])).tolist() == [0, 0, 0]
    assert atlas.unit("feature")[0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("members", "weights", "code", "got"),
    [
        ([], None, "data-empty", []),
        ([1, 2], [1.0], "wrong-count", [1.0]),
        ([1, 2], [0.0, 0.0], "wrong-count", [0.0, 0.0]),
        ([1, 2], [2.0, -1.0], "wrong-count", [2.0, -1.0]),
    ],
)
def test_similarity_to_refuses_sets_and_weights_without_meaning(
    members: list[int], weights: list[float], code: str, got: list[float]
) -> None:
    with raises(UsageError, code, got=got):
        three().similarity_to(
            torch.tensor(members, dtype=torch.int64), None if weights is None else torch.tensor(weights)
        )
    with raises(UsageError, code, got=got):
        three().similarity_to(members, weights)


def test_similarity_to_takes_lists_and_arrays_and_refuses_positions_outside() -> None:
    expected = three().similarity_to(torch.tensor([2, 1]), torch.tensor([1, 3]))
    assert torch.equal(three().similarity_to([2, 1], [1, 3]), expected)
    assert torch.equal(three().similarity_to(np.array([2, 1]), np.array([1.0, 3.0])), expected)  # type: ignore[arg-type]
    for outside in ([3], [-1, 0]):
        with raises(UsageError, "out-of-range", got=min(outside), most=max(outside)):
            three().similarity_to(outside)
    with raises(DataError, "wrong-type", what="members"):
        three().similarity_to(["a"])  # type: ignore[list-item]


def test_neighbours_are_at_least_one() -> None:
    for count in (0, -1):
        with raises(UsageError, "out-of-range", setting="count", got=count):
            three().neighbours("a", count=count)
    with raises(UsageError, "wrong-type", got="2"):
        three().neighbours("a", count="2")  # type: ignore[arg-type]


def test_rows_are_positions_and_a_stranger_is_named() -> None:
    assert three().rows(["c", "a"]).tolist() == [2, 0]
    with raises(UsageError, "client-missing", client="nobody"):
        three().rows(["a", "nobody"])


def test_half_gives_one_half_or_all_side_by_side() -> None:
    assert three().half("label").tolist() == [[5, 0], [1, 0], [0, 1]]
    assert three().half().tolist()[2] == [3, 4, 0, 1]
    with raises(UsageError, "unknown-name", kind="half of the atlas", got="lable"):
        three().half("lable")


def test_unit_rows_have_length_one() -> None:
    torch.testing.assert_close(three().unit("feature")[2], torch.tensor([0.6, 0.8]))


def test_neighbours_come_nearest_first_and_leave_out_the_client_itself() -> None:
    found = three().neighbours("c")
    assert [name for name, _ in found] == ["b", "a"]
    assert [value for _, value in found] == pytest.approx([0.4, 0.3])
    assert three().neighbours("b", count=1, half="label") == [("a", 1.0)]


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


def test_a_client_that_comes_later_is_added_at_the_end() -> None:
    vector = {"label": torch.tensor([0.0, 9.0]), "feature": torch.tensor([6.0, 8.0])}
    atlas = three().add_client("late", vector, size=5, domain="y")
    ((nearest, value),) = atlas.neighbours("late", count=1)
    assert nearest == "c"
    assert value == pytest.approx(1.0)
    assert (atlas.names[-1], int(atlas.sizes[-1]), atlas.domains[-1]) == ("late", 5, "y")
    assert atlas.provenance["added"] == ["late"]
    assert len(three()) == 3


@pytest.mark.parametrize(
    ("name", "halves", "code"),
    [
        ("a", {"feature": torch.ones(2), "label": torch.ones(2)}, "name-repeated"),
        ("d", {"feature": torch.ones(2)}, "names-unfit"),
        ("d", {"feature": torch.ones(3), "label": torch.ones(2)}, "wrong-shape"),
    ],
)
def test_a_client_that_does_not_fit_is_refused(name: str, halves: dict[str, torch.Tensor], code: str) -> None:
    with raises(UsageError, code, client=name):
        three().add_client(name, halves, size=1)


@pytest.mark.parametrize(
    ("change", "kind", "code", "fields"),
    [
        ({"names": ("a", "b", "b")}, DataError, "name-repeated", {"got": ("a", "b", "b")}),
        ({"halves": {}}, DataError, "data-empty", {"what": "halves"}),
        (
            {"halves": {"feature": torch.ones(2, 4)}},
            DataError,
            "wrong-shape",
            {"half": "feature", "got": torch.float32},
        ),
        (
            {"halves": {"feature": torch.ones(3, 4, dtype=torch.float64)}},
            DataError,
            "wrong-shape",
            {"got": torch.float64},
        ),
        (
            {"halves": {"feature": torch.tensor([[0.0], [1.0], [float("nan")]])}},
            DataError,
            "not-finite",
            {"client": "c"},
        ),
        ({"sizes": torch.tensor([1, 2])}, DataError, "wrong-shape", {"what": "sizes"}),
        ({"sizes": torch.tensor([1, 2, -3])}, DataError, "wrong-shape", {"what": "sizes"}),
        ({"domains": ("x",)}, DataError, "wrong-count", {"what": "domains", "got": 1, "wanted": 3}),
        ({"provenance": {"when": object()}}, UsageError, "wrong-type", {"what": "provenance"}),
    ],
)
def test_an_atlas_whose_parts_do_not_fit_is_refused(
    change: dict[str, Any], kind: type[FedatlasError], code: str, fields: dict[str, Any]
) -> None:
    with raises(kind, code, **fields):
        replace(three(), **change)


def test_saving_and_loading_gives_the_same_atlas(tmp_path: Path) -> None:
    atlas = replace(three(), domains=("x", None, "y"))
    atlas.save(tmp_path / "new" / "atlas.safetensors")
    back = Atlas.load(tmp_path / "new" / "atlas.safetensors")
    assert (back.names, back.domains, back.provenance) == (atlas.names, atlas.domains, atlas.provenance)
    assert list(back.halves) == ["feature", "label"]
    assert all(torch.equal(back.halves[name], atlas.halves[name]) for name in atlas.halves)
    assert torch.equal(back.sizes, atlas.sizes)
    assert back.describe() == atlas.describe()


def test_a_file_that_was_altered_or_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "atlas.safetensors"
    three().save(path)
    content = path.read_bytes()
    # One byte of the tensors, one letter of the provenance, and the end.
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    with raises(DataError, "file-altered", path=str(path)):
        Atlas.load(path)
    path.write_bytes(content.replace(b"hand", b"hend"))
    with raises(DataError, "file-altered", path=str(path)):
        Atlas.load(path)
    path.write_bytes(content[:-8])
    with raises(DataError, "file-unreadable", path=str(path)):
        Atlas.load(path)


def test_a_file_that_is_no_atlas_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with raises(DataError, "content-unfit", path=str(tmp_path / "model.safetensors")):
        Atlas.load(tmp_path / "model.safetensors")
    with raises(DataError, "file-missing", path=str(tmp_path / "nothing.safetensors")):
        Atlas.load(tmp_path / "nothing.safetensors")


def test_a_write_that_fails_leaves_the_old_atlas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "atlas.safetensors"
    three().save(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with raises(RunFolderError, "file-unwritable", path=str(path)):
        blocks().save(path)
    assert Atlas.load(path).names == ("a", "b", "c")


def test_describe_is_plain_and_knows_other_vectors() -> None:
    said = three().describe()
    assert json.loads(json.dumps(said)) == said
    assert (said["clients"], said["widths"]) == (3, {"feature": 2, "label": 2})
    other = replace(three(), halves={**three().halves, "label": torch.ones(3, 2)})
    assert other.describe()["vectors"] != said["vectors"]


def test_an_atlas_travels_to_worker_processes() -> None:
    atlas = three()
    atlas.similarity()
    torch.testing.assert_close(pickle.loads(pickle.dumps(atlas)).similarity(), atlas.similarity())


def test_similarity_to_many_is_the_product_of_similarity_whatever_was_asked_before() -> None:
    atlas = blocks()
    members, weights = torch.tensor([3, 0, 7]), torch.tensor([1.0, 2.0, 5.0])
    for half in ("feature", None, "label", "feature"):
        expected = (weights / 8) @ atlas.similarity(half)[members]
        torch.testing.assert_close(atlas.similarity_to(members, weights, half), expected)
        assert torch.equal(atlas.similarity_to(members, weights, half), atlas.similarity_to(members, weights, half))


def test_an_atlas_travels_without_what_it_keeps_for_speed() -> None:
    atlas = blocks()
    before = len(pickle.dumps(atlas))
    expected = atlas.similarity_to(torch.tensor([1]))
    assert len(pickle.dumps(atlas)) == before
    assert torch.equal(pickle.loads(pickle.dumps(atlas)).similarity_to(torch.tensor([1])), expected)


def test_some_unit_rows_are_those_of_all() -> None:
    atlas = three()
    assert torch.equal(atlas.unit("feature", torch.tensor([2, 0])), atlas.unit("feature")[[2, 0]])


def test_arrays_and_lists_make_the_atlas_that_tensors_make() -> None:
    tensors = {"feature": torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "label": torch.tensor([[1.0], [3.0]])}
    expected = Atlas(names=("a", "b"), halves=tensors, sizes=torch.tensor([3, 4]))
    vectors = np.array([[1.0, 0.0], [0.0, 2.0]])
    halves: Any = {"feature": vectors, "label": [[1], [3]]}
    found = Atlas(names=["a", "b"], halves=halves, sizes=np.array([3, 4]))  # type: ignore[arg-type]
    assert found.describe() == expected.describe()
    vectors += 1
    assert found.describe() == expected.describe()
    added = found.add_client("c", {"feature": np.array([5.0, 6.0]), "label": [7]}, 2)
    other = expected.add_client("c", {"feature": torch.tensor([5.0, 6.0]), "label": torch.tensor([7.0])}, 2)
    assert added.describe() == other.describe()


@pytest.mark.parametrize(
    ("change", "kind", "code", "fields"),
    [
        ({"halves": np.ones((3, 2))}, UsageError, "wrong-type", {}),
        (
            {"halves": {"feature": [["x"], ["y"], ["z"]]}},
            DataError,
            "wrong-type",
            {"what": "feature"},
        ),
        ({"halves": {"feature": [[1.0], [2.0, 3.0], []]}}, DataError, "wrong-type", {"what": "feature"}),
        ({"sizes": [1.5, 2.0, 3.0]}, DataError, "wrong-type", {"what": "sizes"}),
        ({"halves": {"feature": np.ones(3)}}, DataError, "wrong-shape", {"half": "feature"}),
    ],
)
def test_arrays_that_are_no_vectors_are_refused(
    change: dict[str, Any], kind: type[FedatlasError], code: str, fields: dict[str, Any]
) -> None:
    with raises(kind, code, **fields):
        replace(three(), **change)


def test_vectors_of_a_new_client_without_their_halves_are_refused() -> None:
    with raises(UsageError, "wrong-type") as caught:
        three().add_client("d", np.ones(2), 1)  # type: ignore[arg-type]
    assert "halves={'feature': vectors}" in str(caught.value)


def test_an_atlas_is_told_in_a_line() -> None:
    assert repr(three()) == "Atlas(3 clients, feature of width 2, label of width 2, from hand)"


def test_groups_of_one_half_look_at_nothing_else() -> None:
    """By one half the first two are alike, by the other the last two."""
    halves = {"feature": [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], "label": [[9.0, 0.0], [0.0, 9.0], [0.0, 9.0]]}
    atlas = Atlas(names=("a", "b", "c"), halves=halves, sizes=[1, 1, 1])  # type: ignore[arg-type]
    assert atlas.groups(2, half="feature").tolist() == [0, 0, 1]
    assert atlas.groups(2, half="label").tolist() == [0, 1, 1]


def test_describe_knows_other_sizes_and_every_client_that_was_added() -> None:
    atlas = three()
    assert replace(atlas, sizes=atlas.sizes + 1).describe()["vectors"] != atlas.describe()["vectors"]
    own = {half: rows[0] for half, rows in atlas.halves.items()}
    later = atlas.add_client("d", own, size=1).add_client("e", own, size=1)
    assert later.provenance["added"] == ["d", "e"]


def test_maps_are_not_mirrored_by_chance() -> None:
    """Along each axis the point farthest out has a positive place, also where the vectors point the other way."""
    points = torch.randn(7, 3, generator=generator(0))
    for one in (principal(points), principal(-points)):
        farthest = np.abs(one).argmax(0)
        assert (one[farthest, [0, 1]] > 0).all()
