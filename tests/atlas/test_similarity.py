from dataclasses import replace

import numpy as np
import pytest
import torch

from atlases import blocks, three
from fedatlas.errors import DataError, UsageError
from raising import raises


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


def test_unit_rows_have_length_one() -> None:
    torch.testing.assert_close(three().unit("feature")[2], torch.tensor([0.6, 0.8]))


def test_neighbours_come_nearest_first_and_leave_out_the_client_itself() -> None:
    found = three().neighbours("c")
    assert [name for name, _ in found] == ["b", "a"]
    assert [value for _, value in found] == pytest.approx([0.4, 0.3])
    assert three().neighbours("b", count=1, half="label") == [("a", 1.0)]


def test_similarity_to_many_is_the_product_of_similarity_whatever_was_asked_before() -> None:
    atlas = blocks()
    members, weights = torch.tensor([3, 0, 7]), torch.tensor([1.0, 2.0, 5.0])
    for half in ("feature", None, "label", "feature"):
        expected = (weights / 8) @ atlas.similarity(half)[members]
        torch.testing.assert_close(atlas.similarity_to(members, weights, half), expected)
        assert torch.equal(atlas.similarity_to(members, weights, half), atlas.similarity_to(members, weights, half))


def test_some_unit_rows_are_those_of_all() -> None:
    atlas = three()
    assert torch.equal(atlas.unit("feature", torch.tensor([2, 0])), atlas.unit("feature")[[2, 0]])
