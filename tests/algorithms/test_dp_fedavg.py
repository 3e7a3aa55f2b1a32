import math
import tracemalloc
from dataclasses import replace

import pytest
import torch
from campaign import limited

from fedatlas.algorithms import (
    clipped,
    dp_fedavg,
    fedavgm,
    feddisco,
    feddyn,
    fedmix,
    fedper,
    fedprox,
    ifca,
    qffl,
    scaffold,
)
from fedatlas.algorithms.clustered import clustered
from fedatlas.algorithms.dp_fedavg import NoisySum, _secure_normal
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Algorithm, Poisson, Uniform
from fedatlas.seeds import generator, numpy_generator
from raising import raises
from tiny import Line, Norms, blob_federation, change_cohort, combined, line_federation, play, same_bits


def test_without_noise_it_is_the_clipped_sum_over_a_fixed_number() -> None:
    """Changes 0.5, 3, -2 clipped to 1 are 0.5, 1, -1; their sum over m = 4 is 0.125, though three answered."""
    change, _ = combined(NoisySum(clip=1.0, noise=0.0), change_cohort(0.5, 3, -2, size=4, clients=8))
    assert change == pytest.approx(0.125)


def test_the_noise_is_that_of_the_round_s_seed() -> None:
    """As above with z = 2, S = 1: the sum 0.5 gets 2 times the first normal number of the round's generator."""
    drawn = torch.randn(1, generator=generator(7, "noise", "noisy_sum")).item()
    change, _ = combined(NoisySum(clip=1.0, noise=2.0), change_cohort(0.5, 3, -2, size=4, clients=8, seed=7))
    assert change == pytest.approx((0.5 + 2 * drawn) / 4)


def test_a_round_that_nobody_answered_has_noise_too() -> None:
    link, cohort = NoisySum(clip=2.0, noise=1.0), change_cohort(size=4, clients=8, seed=7)
    drawn = torch.randn(1, generator=generator(7, "noise", "noisy_sum")).item()
    assert combined(link, cohort, [])[0] == pytest.approx(2 * drawn / 4)


def test_a_run_without_clients_in_a_round_goes_on() -> None:
    """Each of two clients takes part with probability 1/2; in 20 rounds some have none (a quarter on average)."""
    federation = line_federation(([2], [0]), ([2], [0]))
    state, records, _ = play(dp_fedavg(noise=0.1), Line(), federation, rounds=20, cohort=1)
    sizes = [len(record.cohort) for record in records]
    assert set(sizes) == {0, 1, 2}
    assert state.round == 20
    assert all(record.combination["noisy_sum"]["epsilon"] > 0 for record in records)


def test_epsilon_grows_with_the_rounds_and_is_in_the_record() -> None:
    _, records, _ = play(dp_fedavg(noise=1.0, delta=1e-3), Norms(), blob_federation(), rounds=3, cohort=3)
    found = [record.combination["noisy_sum"] for record in records]
    assert found[0]["epsilon"] < found[1]["epsilon"] < found[2]["epsilon"]
    assert (found[0]["rate"], found[0]["delta"], found[0]["protects"]) == (0.5, 1e-3, "client")


def test_without_noise_no_epsilon_is_stated() -> None:
    assert NoisySum(noise=0.0).promise(change_cohort(1, size=1))["epsilon"] is None


def test_it_is_fedavg_of_equal_weights_where_nothing_is_clipped_and_all_take_part() -> None:
    """Changes 0.1 and 0.2 (x / 2 times lr 0.1), all clients, no noise: 0.15, although one has three examples."""
    federation = line_federation(([2], [0]), ([4, 4, 4], [0, 0, 0]))
    state, _, _ = play(dp_fedavg(noise=0.0, clip=9.0).with_optimizer(SGD(lr=0.1)), Line(), federation)
    assert state.shared["head.weight"].item() == pytest.approx(0.15)


def test_poisson_draws_each_client_by_its_own_lot() -> None:
    """1,000 rounds of 20 clients with 5 a round: on average 5, with the spread of a binomial, sqrt(20 / 4 * 3 / 4)."""
    rng, everyone = numpy_generator(0, "test"), list(range(20))
    sizes = torch.tensor([len(Poisson().sample(everyone, 5, [], {}, rng)[0]) for _ in range(1000)]).double()
    assert sizes.mean().item() == pytest.approx(5, abs=0.3)
    assert sizes.std().item() == pytest.approx(math.sqrt(20 / 4 * 3 / 4), abs=0.2)
    assert Poisson().sample(everyone, 20, [], {}, rng)[0] == everyone


def test_secure_noise_is_normal_and_never_the_same() -> None:
    drawn = _secure_normal(torch.Size([100, 1000]))
    assert drawn.std().item() == pytest.approx(1, abs=0.01)
    assert drawn.mean().item() == pytest.approx(0, abs=0.015)
    assert (drawn.abs() < 1.96).double().mean().item() == pytest.approx(0.95, abs=0.004)
    one, _, _ = play(dp_fedavg(secure=True), Norms(), blob_federation())
    two, _, _ = play(dp_fedavg(secure=True), Norms(), blob_federation())
    assert not same_bits(one.shared, two.shared)


@pytest.mark.parametrize(
    "base",
    [scaffold(), feddisco(), fedmix(), clustered(), ifca(), clipped(), feddyn(), qffl()],
    ids=lambda base: base.name,
)
def test_a_base_that_sends_more_or_depends_on_others_is_refused(base: Algorithm) -> None:
    with raises(UsageError, "base-unfit"):
        dp_fedavg(base)


@pytest.mark.parametrize("base", [fedprox(), fedavgm(), fedper()], ids=lambda base: base.name)
def test_a_base_that_sends_nothing_but_changes_is_taken(base: Algorithm) -> None:
    state, _, _ = play(dp_fedavg(base), Norms(), blob_federation(), cohort=3)
    assert not same_bits(state.shared, {name: p for name, p in Norms().named_parameters() if name in state.shared})
    assert state.buffers["norm.running_mean"].tolist() == [0] * 8  # no running statistics reach the model


def test_what_would_break_the_promise_afterwards_is_refused() -> None:
    private = dp_fedavg()
    for change in (
        lambda: private.with_buffers("average"),
        lambda: replace(private, sampler=Uniform()),
        lambda: ifca(base=private),
        lambda: feddisco(private),
        lambda: clipped(private),
    ):
        with raises(UsageError, "base-unfit"):
            change()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("clip", value) for value in (0.0, math.nan, math.inf, 1e31)),
        *(
            ("noise", value)
            for value in (-1.0, 1e-160, 1e-4, 1e-3, 3e-3, 0.01, 0.049, 1.1e6, 1e160, math.inf, math.nan)
        ),
        *(("delta", value) for value in (0.0, 1.0, math.nan)),
    ],
)
def test_a_setting_out_of_range_is_refused(setting: str, value: float) -> None:
    with raises(UsageError, "out-of-range", setting=f"NoisySum({setting})"):
        dp_fedavg(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.05, 0.3, 1.0, 1e6])
@pytest.mark.parametrize("clip", [1e-30, 1e30])
def test_every_noise_that_is_taken_is_stated_at_once_in_little_memory(noise: float, clip: float) -> None:
    """The largest clip and noise leave numbers that a float32 holds."""
    tracemalloc.start()
    with limited(20):
        change, found = combined(NoisySum(noise=noise, clip=clip), change_cohort(1, 2, size=2, clients=200))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.remarks["noisy_sum"]["epsilon"] > 0
    assert math.isfinite(change)
    assert peak < 50e6
