import pytest
import torch

from fedatlas.atlas import floor
from fedatlas.atlas.floor import compare_clients, noise_floor
from fedatlas.atlas.sources import class_prototypes
from fedatlas.errors import UsageError
from raising import raises
from summaries import gaussian, one_dimension


def test_z_of_two_clients() -> None:
    """Two clients of four examples, one direction, means 0 and 3, scatter 6 each.

    t = 12 / (3 + 3) = 2; neither scatters wider, so v = 2 / 4 each; in one direction kappa = 1. The squared distance
    is 9, noise gives 1, and its standard deviation is sqrt(2 (0.5 + 0.5)^2): z = 8 / sqrt 2.
    """
    summary = one_dimension([[4], [4]], [[0.0], [3.0]], [[6.0], [6.0]], [[4.0], [4.0]])
    found = noise_floor(summary)
    assert found.variances.tolist() == [[0.5], [0.5]]
    assert found.anisotropy.tolist() == [[1.0], [1.0]]
    compared = compare_clients(summary, ("a", "b"))
    assert compared.z.tolist() == [[0.0, pytest.approx(8 / 2**0.5)], [pytest.approx(8 / 2**0.5), 0.0]]
    assert compared.shared.tolist() == [[1, 1], [1, 1]]


def test_a_client_that_scatters_wider_has_more_noise() -> None:
    """Scatter 3 and 9 with 3 degrees of freedom each: t = 2, s = (10 + 1.5) / 13 and (10 + 4.5) / 13."""
    summary = one_dimension([[4], [4]], [[0.0], [3.0]], [[3.0], [9.0]], [[1.0], [9.0]])
    assert noise_floor(summary).variances.flatten().tolist() == pytest.approx([11.5 / 26, 14.5 / 26])


def test_clients_are_compared_on_the_classes_that_both_have() -> None:
    """Class 0 is shared by the first two; the third has class 1 alone, which no other has three examples of."""
    summary = one_dimension(
        [[4, 2], [4, 0], [0, 4]],
        [[0.0, 50.0], [0.0, 0.0], [0.0, 9.0]],
        [[6.0, 2.0], [6.0, 0.0], [0.0, 6.0]],
        [[4.0, 0.0], [4.0, 0.0], [0.0, 4.0]],
    )
    compared = compare_clients(summary, ("a", "b", "c"))
    assert float(compared.z[0, 1]) == pytest.approx(-1 / 2**0.5)
    assert compared.z[0, 2].isnan()
    assert compared.shared.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert "-0.7 in the middle" in compared.describe()


def test_z_is_about_standard_normal_if_clients_have_the_same_data() -> None:
    z = []
    for seed in range(4):
        kinds = ["plain", "few"] * 8
        compared = class_prototypes(*gaussian(kinds, seed=seed)).compare()
        z.append(compared.z[torch.ones_like(compared.z).triu(1) > 0])
    every = torch.cat(z)
    assert abs(float(every.mean())) < 0.3
    assert 0.8 < float(every.std()) < 1.25


def test_clients_with_other_inputs_stand_out() -> None:
    compared = class_prototypes(*gaussian(["plain", "plain", "shifted"])).compare()
    assert float(compared.z[0, 1]) < 4
    assert float(compared.z[0, 2]) > 40
    some = class_prototypes(*gaussian(["plain", "plain", "shifted"])).compare(["client-2", "client-0"])
    assert some.names == ("client-2", "client-0")
    assert float(some.z[0, 1]) > 40


def test_more_clients_than_a_table_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "MOST_COMPARED", 2)
    atlas = class_prototypes(*gaussian(["plain"] * 3))
    with raises(UsageError, "out-of-range", got=3, most=2):
        atlas.compare()
    assert atlas.compare(atlas.names[:2]).z.shape == (2, 2)
