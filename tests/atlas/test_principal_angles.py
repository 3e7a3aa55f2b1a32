import math

import pytest
import torch

from fedatlas.atlas.subspaces import WIDTH, leading_directions, principal_angles, projection_row
from fedatlas.errors import UsageError
from raising import raises
from summaries import federation, gaussian


def test_the_cosine_is_the_mean_squared_cosine_of_the_principal_angles() -> None:
    """Both planes hold the first axis; the other axis of the second is turned by 30 degrees out of the first plane.

    The angles are 0 and 30 degrees, so the cosine is (1 + 3 / 4) / 2.
    """
    turn = math.pi / 6
    flat = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    turned = torch.tensor([[5.0, 0.0, 0.0], [0.0, 2 * math.cos(turn), 2 * math.sin(turn)]])
    labels = [torch.tensor([0, 1, 0]), torch.tensor([0, 1])]
    atlas = principal_angles(*federation([flat, turned], labels), directions=2)
    assert float(atlas.similarity()[0, 1]) == pytest.approx((1 + 0.75) / 2)
    assert atlas.half().shape == (2, 6)


def test_the_leading_direction_is_that_of_the_longest_examples() -> None:
    rows = torch.tensor([[0.0, 3.0], [0.0, -3.0], [1.0, 0.0]])
    assert leading_directions(rows, 1).abs().flatten().tolist() == [0.0, 1.0]
    assert leading_directions(rows[:2], 2).shape == (2, 1)


def test_rows_have_the_inner_products_of_the_projections() -> None:
    one, other = (leading_directions(torch.randn(9, 5, generator=torch.Generator().manual_seed(i)), 2) for i in (0, 1))
    wanted = float(((one @ one.T) * (other @ other.T)).sum())
    assert float(projection_row(one) @ projection_row(other)) == pytest.approx(wanted, rel=1e-5)


def test_clients_with_other_inputs_are_turned_away() -> None:
    atlas = principal_angles(*gaussian(["plain", "shifted"] * 3))
    assert [name for name, _ in atlas.neighbours("client-0", 2)] in (["client-2", "client-4"], ["client-4", "client-2"])


def test_the_number_of_directions_is_checked() -> None:
    with raises(UsageError, "out-of-range", setting="directions", got=0):
        principal_angles(*gaussian(["plain"] * 2), directions=0)
    with raises(UsageError, "out-of-range", got=WIDTH + 1):
        principal_angles(*gaussian(["plain"] * 2), directions=WIDTH + 1)
