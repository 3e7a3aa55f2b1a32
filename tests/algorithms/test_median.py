import pytest
import torch

from fedatlas.algorithms import clipped, feddisco, median, qffl, scaffold, term
from fedatlas.algorithms.clustered import clustered
from fedatlas.algorithms.median import Median
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Gathered
from fedatlas.testing import tiny_federation
from raising import raises
from tiny import Line, Norms, blob_federation, change_cohort, combined, line_federation, play, same_bits


def test_the_median_of_an_odd_and_of_an_even_number_of_changes() -> None:
    """Of 1, 2, -1e30 it is 1; of 1, 2, 4, 1e30 it is (2 + 4) / 2 = 3. Weights do not matter."""
    assert combined(Median(), change_cohort(1, 2, -1e30), [0, 1e-9, 1.0])[0] != 1  # a client of weight 0 is left out
    assert combined(Median(), change_cohort(1, 2, -1e30), [1e-9, 1e-9, 1.0])[0] == 1
    assert combined(Median(), change_cohort(1, 2, 4, 1e30))[0] == 3
    assert combined(Median(), change_cohort(3e38, 3e38))[0] == pytest.approx(3e38)  # their sum would be infinite


def test_each_coordinate_has_its_own_median_and_so_have_buffers() -> None:
    """(1, 9), (2, 7), (3, 8): the medians are 2 and 8, which no client sent."""
    changes = [{"w": torch.tensor(pair)} for pair in ([1.0, 9.0], [2.0, 7.0], [3.0, 8.0])]
    moves = [{"mean": torch.tensor([step])} for step in (0.5, 0.25, 1e9)]
    given = Gathered(changes=changes, moves=moves, weights=torch.full((3,), 1 / 3, dtype=torch.float64))
    found, _ = Median().combine(given, {}, change_cohort(0, 0, 0))
    assert found.changes[0]["w"].tolist() == [2, 8]
    assert found.moves[0]["mean"].tolist() == [0.5]


def test_a_round_applies_the_median_and_records_that_all_counted_the_same() -> None:
    """x = 2, 4 and -100, label 0, lr 0.1, one step from w = 0: changes 0.1, 0.2, -5. Median 0.1."""
    federation = line_federation(([2], [0]), ([4, 4], [0, 0]), ([-100], [0]))
    state, records, _ = play(median().with_optimizer(SGD(lr=0.1)), Line(), federation)
    assert state.shared["head.weight"].item() == pytest.approx(0.1)
    assert records[0].weights == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})


def test_two_processes_give_the_bits_of_one() -> None:
    one, _, _ = play(median(), Norms(), blob_federation(), rounds=2)
    two, _, _ = play(median(), Norms(), blob_federation(), rounds=2, workers=2)
    assert same_bits(one.shared, two.shared)
    assert same_bits(one.buffers, two.buffers)


@pytest.mark.parametrize("base", [feddisco(), term(), qffl(), clustered()])
def test_a_base_whose_weights_or_draws_would_be_ignored_is_refused(base: object) -> None:
    with raises(UsageError, "base-unfit", part="Median"):
        median(base)  # type: ignore[arg-type]


def test_a_weighting_over_the_median_is_refused_too() -> None:
    with raises(UsageError, "base-unfit", part="Median"):
        feddisco(median())
    with raises(UsageError, "base-unfit", part="Median"):
        clipped(median())  # one change is left, which has no others to be compared with


def test_what_passes_the_median_by_is_remarked() -> None:
    assert median().check_clients(tiny_federation()) == []
    remark = "; ".join(median(scaffold()).check_clients(tiny_federation()))
    assert "not what" in remark
    assert "takes from clients" in remark
