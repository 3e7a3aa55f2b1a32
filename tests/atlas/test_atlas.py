from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from atlases import three
from fedatlas.atlas import Atlas
from fedatlas.errors import DataError, FedatlasError, UsageError
from raising import raises


def test_rows_are_positions_and_a_stranger_is_named() -> None:
    assert three().rows(["c", "a"]).tolist() == [2, 0]
    with raises(UsageError, "client-missing", client="nobody"):
        three().rows(["a", "nobody"])


def test_half_gives_one_half_or_all_side_by_side() -> None:
    assert three().half("label").tolist() == [[5, 0], [1, 0], [0, 1]]
    assert three().half().tolist()[2] == [3, 4, 0, 1]
    with raises(UsageError, "unknown-name", kind="half of the atlas", got="lable"):
        three().half("lable")


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
