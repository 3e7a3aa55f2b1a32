from itertools import permutations

import numpy as np
import pytest
import torch

from fedatlas.atlas.label_shares import chance, label_shares


def test_the_moments_are_those_of_all_permutations() -> None:
    """Clients of 2, 3 and 2 examples; classes of 3, 3 and 1: all 5,040 ways to deal the labels out."""
    owners = np.repeat([0, 1, 2], [2, 3, 2])
    labels = np.repeat([0, 1, 2], [3, 3, 1])
    expected = np.outer([2, 3, 2], [3, 3, 1]) / 7
    found = []
    for order in permutations(range(7)):
        table = np.zeros((3, 3))
        np.add.at(table, (owners, labels[list(order)]), 1)
        found.append(((table - expected) ** 2 / expected).sum())
    moments = chance(torch.tensor([2.0, 3.0, 2.0]), torch.tensor([3.0, 3.0, 1.0]))
    assert moments.mean == pytest.approx(np.mean(found))
    assert moments.variance == pytest.approx(np.var(found))


def test_rho_is_one_if_every_client_has_one_class() -> None:
    found = label_shares(torch.tensor([[40, 0], [0, 40]]))
    assert found.rho == 1
    assert found.p < 1e-10
    assert found.alpha(2) == 0


def test_rho_of_a_table_by_hand() -> None:
    """Clients (3, 1) and (1, 3): same labels in 2 x 3 x 2 of 2 x 4 x 3 pairs; by chance in 2 x 4 x 3 of 8 x 7."""
    assert label_shares(torch.tensor([[3, 1], [1, 3]])).rho == pytest.approx((0.5 - 3 / 7) / (1 - 3 / 7))


@pytest.mark.parametrize("alpha", [1.0, 0.3, 0.1])
def test_alpha_is_read_from_the_labels(alpha: float) -> None:
    rng = np.random.default_rng(0)
    counts = torch.tensor(np.array([rng.multinomial(100, rng.dirichlet([alpha] * 10)) for _ in range(300)]))
    assert label_shares(counts).alpha(10) == pytest.approx(alpha, rel=0.15)


def test_chance_alone_is_rarely_called_a_difference_where_most_cells_are_nearly_empty() -> None:
    """200 federations of 40 clients with 5 examples of 20 classes: 5 % of p below 0.05, give or take 3.5 %."""
    rng = np.random.default_rng(1)
    p = [label_shares(torch.tensor(rng.multinomial(5, [1 / 20] * 20, size=40))).p for _ in range(200)]
    assert 0.015 < np.mean(np.array(p) < 0.05) < 0.085


@pytest.mark.parametrize("counts", [[[5, 5]], [[5], [9]], [[1, 0], [0, 1]], [[0, 0], [3, 4]]])
def test_where_nothing_can_be_compared_nothing_is_found(counts: list[list[int]]) -> None:
    assert label_shares(torch.tensor(counts)) == (1.0, 0.0)
