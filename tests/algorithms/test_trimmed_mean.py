import pytest

from fedatlas.algorithms import trimmed_mean
from fedatlas.algorithms.trimmed_mean import TrimmedMean
from fedatlas.errors import UsageError
from raising import raises
from tiny import change_cohort, combined


def test_the_ends_are_left_out() -> None:
    """Of -1e30, 1, 2, 6, 1e30 with beta 0.2 one is cut at each end: (1 + 2 + 6) / 3 = 3."""
    assert combined(TrimmedMean(beta=0.2), change_cohort(6, -1e30, 2, 1e30, 1))[0] == 3


@pytest.mark.parametrize(("beta", "expected"), [(0.0, 5.5), (0.1, 5.5), (0.3, 5.5), (0.49, 5.5)])
def test_how_many_are_cut(beta: float, expected: float) -> None:
    assert combined(TrimmedMean(beta=beta), change_cohort(*range(1, 11)))[0] == pytest.approx(expected)


def test_a_share_that_is_a_whole_number_of_clients_is_not_rounded_down() -> None:
    """0.3 * 10 clients are 3 at each end: 3, 4, 5 and 6 stay. With 2 cut, 0 and 99 would stay."""
    assert combined(TrimmedMean(beta=0.3), change_cohort(0, 0, 0, 3, 4, 5, 6, 99, 99, 99))[0] == 4.5


def test_of_few_clients_none_is_cut() -> None:
    assert combined(TrimmedMean(beta=0.2), change_cohort(1, 5))[0] == 3


@pytest.mark.parametrize("beta", [-0.1, 0.5, float("nan")])
def test_a_share_that_leaves_nobody_is_refused(beta: float) -> None:
    with raises(UsageError, "out-of-range", setting="TrimmedMean(beta)"):
        trimmed_mean(beta=beta)
