from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedatlas.algorithms import fedavg, fedbn, scaffold
from fedatlas.client import PERSONAL, branch_of, with_branch
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sharing import COMMON
from fedatlas.parts.trial import BEGUN, LEFT, RIVALS, SCORE, SEEN, TIMES, ByTrial, gain_score
from fedatlas.parts.types import GROUP, RIVAL, ClientInfo, ClientLosses, Tensors
from raising import raises
from tiny import Norms, blob_federation, play, same_bits

NAMES = {f"client-{i}": i % 2 for i in range(4)}
ROSTER = [ClientInfo(id=i, name=f"client-{i}", num_examples=10) for i in range(4)]


def remembered(*left: bool) -> Tensors:
    none, zero = torch.zeros(4, dtype=torch.bool), torch.zeros((), dtype=torch.int64)
    seen = torch.zeros(8, len(left), dtype=torch.float64)
    return {LEFT: torch.tensor(left), BEGUN: none, RIVALS: none, SCORE: seen[0], SEEN: seen, TIMES: zero}


def losses(common: float, own: float, square: float, count: int = 4) -> ClientLosses:
    means, squares = torch.tensor([common, own]), torch.tensor([0.0, square])
    return ClientLosses(count, means.double(), squares.double())


def test_t_is_that_of_all_held_back_examples_together() -> None:
    """Client 0: d = 1, 2, 0; client 1: d = 3. Together the mean is 1.5, the variance (0.25 * 2 + 2.25 * 2) / 3 = 5/3,
    t = 1.5 / sqrt(5/3 / 4) = 2.323790."""
    found = {0: losses(2, 1, 5 / 3, count=3), 1: losses(4, 1, 9, count=1)}
    assert gain_score(found) == pytest.approx(2.323790, abs=1e-6)


def test_a_gain_without_spread_is_certain_and_finite() -> None:
    assert gain_score({0: losses(2, 1, 1)}) == 1e6
    assert gain_score({0: losses(1, 2, 1)}) == -1e6
    assert gain_score({0: losses(1, 1, 0)}) == 0
    assert gain_score({}) == 0


def test_after_the_late_trial_a_group_leaves_above_the_threshold() -> None:
    """Four examples each. Group 0 gains 1 with mean square 2: t = 1 / sqrt(4/3 / 4) = 1.73; group 1 gains 0.1 with mean
    square 0.0101: t = 0.1 / sqrt(1e-4 * 4/3 / 4) = 17.3."""
    found = {0: {0: losses(2, 1, 2)}, 1: {1: losses(1.0, 0.9, 0.0101)}}
    serving, memory = ByTrial(groups=NAMES, threshold=3.0).decide(remembered(False, False), ROSTER, found, 30, 40)
    assert serving is not None
    assert serving.tolist() == [COMMON, 1, COMMON, 1]
    assert memory[SCORE].tolist() == pytest.approx([1.7321, 17.3205], abs=1e-3)


@pytest.mark.parametrize(("threshold", "left"), [(8.0, [True, True]), (9.0, [False, False])])
def test_after_the_early_trial_all_groups_leave_or_none(threshold: float, left: list[bool]) -> None:
    """Group 0 gains 0.2 with mean square 0.0401: t = 34.6; group 1 has 17.3. Both are above 16, and one is below 18."""
    found = {0: {0: losses(1.0, 0.8, 0.0401)}, 1: {1: losses(1.0, 0.9, 0.0101)}}
    trial = ByTrial(groups=NAMES, threshold=threshold)
    serving, memory = trial.decide(remembered(False, False), ROSTER, found, 7, 100)
    assert memory[SCORE].tolist() == pytest.approx([34.641, 17.3205], abs=1e-3)
    assert memory[LEFT].tolist() == left
    assert serving is not None
    assert serving.tolist() == ([0, 1, 0, 1] if left[0] else [COMMON] * 4)
    some = torch.tensor([True, False, True, True])
    _, memory = trial.decide({**remembered(False, False), BEGUN: some, RIVALS: some}, ROSTER, found, 7, 100)
    assert memory[BEGUN].tolist() == ([True, False, True, True] if left[0] else [False] * 4)
    assert not memory[RIVALS].any()


def test_the_median_of_a_trials_comparisons_counts() -> None:
    """Group 0 has t = 34.6, 1.73 and 34.6, group 1 has 17.3, -17.3 and -17.3."""
    trial, memory = ByTrial(groups=NAMES, threshold=3.0), remembered(False, False)
    high, low = losses(1.0, 0.8, 0.0401), losses(2, 1, 2)
    better, worse = losses(1.0, 0.9, 0.0101), losses(0.9, 1.0, 0.0101)
    for number, one, other in ((28, high, better), (29, low, worse)):
        serving, memory = trial.decide(memory, ROSTER, {0: {0: one}, 1: {1: other}}, number, 40)
        assert serving is None
        assert not memory[LEFT].any()
    serving, memory = trial.decide(memory, ROSTER, {0: {0: high}, 1: {1: worse}}, 30, 40)
    assert serving is not None
    assert serving.tolist() == [0, COMMON, 0, COMMON]
    assert memory[SCORE].tolist() == pytest.approx([34.641, -17.3205], abs=1e-3)
    assert memory[TIMES] == 0


def test_trials_end_after_three_quarters_of_the_rounds_and_a_short_one_comes_after_a_twentieth() -> None:
    trial = ByTrial(groups=NAMES)
    assert trial.trials(40) == [range(3, 5), range(23, 31)]
    assert trial.trials(100)[0] == range(6, 8)
    assert trial.trials(20) == [range(3, 4), range(12, 16)]
    assert trial.trials(6) == [range(4, 5)]
    assert trial.trials(3) == [range(2, 3)]
    assert trial.trials(1) == [range(1, 2)]


def test_a_trial_has_a_turn_for_the_rival_and_one_for_the_groups() -> None:
    trial, memory = ByTrial(groups=NAMES, pilot=3), remembered(False, False)
    (before,) = trial.plan(memory, ROSTER, 27, 40)
    assert before.common
    assert not before.holds_back
    late = trial.trials(40)[-1]
    assert list(late) == [28, 29, 30]
    first, second, third = (trial.plan(memory, ROSTER, number, 40) for number in late)
    assert [plan.model for plan in first] == [plan.model for plan in second] == ["common", "rival", "groups"]
    assert [plan.common for plan in first] == [True, False, False]
    assert [plan.holds_back for plan in first] == [False, True, True]
    assert [list(plan.begins) for plan in first] == [[], [2], [0, 1]]
    assert not any(plan.begins for plan in (*second, *third))
    assert [plans[-1].compares for plans in (first, second, third)] == [False, True, True]
    assert not any(plan.compares for plan in (*first[:2], *second[:2]))
    assert [None if plan.group_of is None else plan.group_of.tolist() for plan in first] == [
        None,
        [2, 2, 2, 2],
        [0, 1, 0, 1],
    ]


def test_groups_that_have_left_train_beside_the_common_model() -> None:
    trial, memory = ByTrial(groups=NAMES), remembered(False, True)
    common, own = trial.plan(memory, ROSTER, 35, 40)
    assert common.common
    assert common.forgets
    assert [own.has(client) for client in range(4)] == [False, True, False, True]
    assert (own.branch, own.beside, own.holds_back) == (GROUP, True, False)


def test_after_all_have_left_only_groups_train() -> None:
    trial, memory = ByTrial(groups=NAMES, pilot=4), remembered(True, True)
    plans = [plan for number in (15, 16, 33, 40) for plan in trial.plan(memory, ROSTER, number, 40)]
    assert len(plans) == 4
    assert not any(plan.common or plan.holds_back or plan.compares or plan.begins or plan.beside for plan in plans)
    assert [list(plan.restarts) for plan in plans] == [[0, 1, 2, 3]] * 4  # none of them has begun
    assert all(plan.group_of is not None for plan in plans)


@pytest.mark.parametrize("base", [fedavg, fedbn, scaffold])
def test_who_stays_has_the_bases_model_bit_for_bit(base: Callable[[], Algorithm]) -> None:
    """Of 12 rounds 3 and 9 are trials. Group 1 leaves after the last one, and clients of group 0 must not notice."""

    class OneLeaves(ByTrial):
        def decide(self, *args: Any) -> Any:
            _, memory = super().decide(*args)
            left = torch.tensor([False, args[-2] > 6])
            serving = torch.tensor([COMMON, 1, COMMON, 1]) if left[1] else torch.full((4,), COMMON)
            return serving, {**memory, LEFT: left}

    federation, sharing = blob_federation(num_clients=4), OneLeaves(groups=NAMES, pilot=1)
    assert sharing.trials(12) == [range(3, 4), range(9, 10)]
    plain, _, alone = play(base(), Norms(), federation, rounds=12)
    tried, _, simulator = play(replace(base(), sharing=sharing), Norms(), federation, rounds=12)
    assert same_bits(plain.shared, tried.shared)
    assert same_bits(plain.buffers, tried.buffers)
    assert len(tried.groups) == 2
    assert not same_bits(tried.groups[1].shared, plain.shared)
    for client in range(4):
        one, other = alone.memory.get(client, {}), branch_of(simulator.memory.get(client, {}), "")
        assert one.keys() == other.keys()
        assert all(same_bits(one[part], other[part]) for part in one)
        assert not any(key.startswith(RIVAL) for key in simulator.memory.get(client, {}))


FIVE = {**NAMES, "client-4": 2}
"""The last client is in a group by itself, which is apart."""


def test_a_group_that_is_apart_never_trains_the_common_model() -> None:
    roster = [*ROSTER, ClientInfo(id=4, name="client-4", num_examples=10)]
    trial = ByTrial(groups=FIVE, apart=(2,))
    memory = trial.init({}, roster)
    assert memory[LEFT].tolist() == [False, False, True]
    for number, models in ((1, ["common", "groups"]), (3, ["common", "groups", "rival", "groups"])):
        plans = trial.plan(memory, roster, number, 40)
        assert [plan.model for plan in plans] == models
        assert [[client for client in range(5) if plan.has(client)] for plan in plans][:2] == [[0, 1, 2, 3], [4]]
        assert not plans[1].holds_back
    assert all([plan.has(client) for client in range(5)] == [True] * 4 + [False] for plan in plans[2:])
    assert [list(plan.begins) for plan in plans] == [[], [], [3], [0, 1]]
    gains = {0: {0: losses(1.0, 0.8, 0.0401)}, 1: {1: losses(1.0, 0.9, 0.0101)}}
    serving, after = trial.decide(memory, roster, gains, 4, 40)
    assert serving is not None
    assert serving.tolist() == [0, 1, 0, 1, 2]
    assert after[LEFT].all()
    serving, after = trial.decide(memory, roster, {}, 30, 40)
    assert serving is not None
    assert serving.tolist() == [COMMON] * 4 + [2]


@pytest.mark.parametrize("base", [fedavg, fedbn, scaffold])
def test_beside_a_group_that_is_apart_the_others_train_as_without_it(base: Callable[[], Algorithm]) -> None:
    federation = blob_federation(num_clients=5)
    sharing = ByTrial(groups=FIVE, apart=(2,), pilot=1, threshold=1e9)
    plain, _, _ = play(base(), Norms(), federation.hold_out(["client-4"]), rounds=6)
    found, records, _ = play(replace(base(), sharing=sharing), Norms(), federation, rounds=6)
    assert same_bits(plain.shared, found.shared)
    assert same_bits(plain.buffers, found.buffers)
    assert found.group_of is not None
    assert found.group_of.tolist() == [COMMON] * 4 + [2]
    assert not same_bits(found.groups[2].shared, found.shared)
    assert all(set(record.losses) == set(range(5)) for record in records)
    trial = next(record for record in records if "rival" in record.sharing["trained"])
    assert trial.sharing["trained"] == {"common": 4, "groups": 5, "rival": 4}


def test_some_group_must_share_the_common_model() -> None:
    for apart in ((0, 1, 2), (3,)):
        with raises(UsageError, "wrong-value", setting="ByTrial(apart)"):
            ByTrial(groups=FIVE, apart=apart)


def test_the_record_of_a_round_says_how_many_clients_trained_what() -> None:
    sharing = ByTrial(groups=NAMES, pilot=1, threshold=1e9)
    _, records, _ = play(replace(fedavg(), sharing=sharing), Norms(), blob_federation(num_clients=4), rounds=4)
    assert [record.sharing.get("trained") for record in records] == [
        None,
        None,
        {"common": 4, "rival": 4, "groups": 4},
        None,
    ]


def test_a_client_keeps_its_memories_apart() -> None:
    one, other, third = ({"norms": {"w": torch.tensor(float(i))}} for i in (1, 0, 3))
    all_three = with_branch(with_branch(one, other, GROUP), third, RIVAL)
    assert branch_of(all_three, "")["norms"]["w"].item() == 1
    assert branch_of(all_three, GROUP)["norms"]["w"].item() == 0
    assert branch_of(all_three, RIVAL)["norms"]["w"].item() == 3
    assert branch_of(one, GROUP) is one
    assert branch_of(with_branch(all_three, other, ""), GROUP)["norms"]["w"].item() == 0
    assert set(with_branch(all_three, third, "", forgets=True)) == {"norms", "branch/norms"}


def test_personal_values_of_a_group_that_left_are_its_own() -> None:
    federation = blob_federation(num_clients=4)
    algorithm = replace(fedbn(), sharing=ByTrial(groups=NAMES, pilot=1, threshold=-1e9))
    state, _, simulator = play(algorithm, Norms(), federation, rounds=4)
    assert state.group_of is not None
    assert state.group_of.tolist() == [0, 1, 0, 1]
    plain, own = (branch_of(simulator.memory[0], branch)[PERSONAL] for branch in ("", GROUP))
    assert plain.keys() == own.keys()
    assert not same_bits(plain, own)


def test_a_pilot_needs_a_round() -> None:
    with raises(UsageError, "out-of-range", setting="ByTrial(pilot)"):
        ByTrial(groups=NAMES, pilot=0)
