"""The accountant beside Google's dp-accounting, and beside a number that can be worked out."""

import math

import dp_accounting
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedatlas.algorithms.accountant import ORDERS, epsilon, noise_for, rdp
from fedatlas.errors import UsageError
from raising import raises

CASES = [(1.0, 0.01, 1000), (0.5, 0.25, 30), (2.0, 0.5, 100), (4.0, 1.0, 100), (10.0, 0.1, 1000), (0.7, 0.05, 200)]


def event(noise: float, rate: float) -> dp_accounting.DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(noise)
    return gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)


def test_the_divergence_of_order_two() -> None:
    """a = 2, q = 1/2, s = 1: 1/4 + 2/4 + e/4 = 1.4295705, its logarithm is 0.3573740."""
    assert rdp(2.0, 0.5, 1.0) == pytest.approx(0.3573740, abs=1e-7)
    assert rdp(2.0, 1.0, 2.0) == 0.25  # without sampling a / (2 s^2)


@pytest.mark.parametrize("order", [2, 3, 5, 17])
def test_between_whole_orders_the_integral_meets_the_binomial_sum(order: int) -> None:
    near = [rdp(order + step, 0.1, 0.8) for step in (-1e-6, 0.0, 1e-6)]
    assert near[0] == pytest.approx(near[1], rel=1e-4)
    assert near[2] == pytest.approx(near[1], rel=1e-4)
    assert near[0] <= near[1] <= near[2]


@pytest.mark.parametrize(("noise", "rate", "rounds"), CASES)
def test_epsilon_is_that_of_dp_accounting(noise: float, rate: float, rounds: int) -> None:
    """At whole orders it is the same number. With orders between, of which theirs drops those whose series does not
    converge, ours is at most as large; it is never below the tight one of privacy loss distributions."""
    whole = [order for order in ORDERS if order == int(order)]
    theirs = RdpAccountant(whole).compose(event(noise, rate), rounds)
    costs = [rounds * rdp(a, rate, noise) + math.log1p(-1 / a) - (math.log(1e-5 * a)) / (a - 1) for a in whole]
    assert min(costs) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)
    ours = epsilon(noise=noise, rate=rate, rounds=rounds, delta=1e-5)
    tight = PLDAccountant(value_discretization_interval=1e-3).compose(event(noise, rate), rounds).get_epsilon(1e-5)
    assert 0.97 * tight < ours <= min(costs) + 1e-9
    assert ours > tight - 0.05


def test_the_noise_for_an_epsilon_is_the_least() -> None:
    noise = noise_for(2.0, rate=0.1, rounds=50, delta=1e-4)
    assert epsilon(noise=noise, rate=0.1, rounds=50, delta=1e-4) <= 2.0
    assert epsilon(noise=noise - 2e-3, rate=0.1, rounds=50, delta=1e-4) > 2.0


def test_nothing_costs_nothing_and_no_noise_costs_all() -> None:
    assert epsilon(noise=1.0, rate=0.1, rounds=0, delta=1e-5) == 0
    assert epsilon(noise=0.0, rate=0.1, rounds=1, delta=1e-5) == math.inf
    with raises(UsageError, "out-of-range", setting="delta"):
        epsilon(noise=1.0, rate=0.1, rounds=1, delta=0.0)
    with raises(UsageError, "out-of-range", setting="epsilon"):
        noise_for(0.0, rate=0.1, rounds=1, delta=1e-5)


@pytest.mark.parametrize("noise", [-1.0, 1e-160, 1e-3, 0.049, 1e7, 1e160, math.inf, math.nan])
def test_a_noise_that_no_sum_can_state_is_refused(noise: float) -> None:
    with raises(UsageError, "out-of-range", setting="noise"):
        epsilon(noise=noise, rate=0.1, rounds=1, delta=1e-5)


def test_the_noise_for_an_epsilon_stays_within_what_can_be_stated() -> None:
    """A huge budget takes the least noise; at delta 1e-5 no noise gives an epsilon of 1e-6."""
    assert noise_for(1e9, rate=0.1, rounds=1, delta=1e-5) == pytest.approx(0.05, abs=1e-3)
    with raises(UsageError, "out-of-range", setting="epsilon", got=1e-6):
        noise_for(1e-6, rate=0.1, rounds=1, delta=1e-5)
