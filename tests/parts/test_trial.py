from dataclasses import replace

import pytest
import torch

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.fedbn import fedbn
from fedatlas.client.model import PERSONAL, branch_of, with_branch
from fedatlas.errors import UsageError
from fedatlas.parts.sharing import COMMON
from fedatlas.parts.trial import BEGUN, LEFT, SCORE, ByTrial, gain_score
from fedatlas.parts.types import ClientInfo, ClientLosses, Tensors
from raising import raises
from tiny import Norms, blob_federation, play, same_bits

NAMES = {f"client-{i}": i % 2 for i in range(4)}
ROSTER = [ClientInfo(id=i, name=f"client-{i}", num_examples=10) for i in range(4)]


def remembered(*left: bool) -> Tensors:
    return {LEFT: torch.tensor(left), BEGUN: torch.zeros(4, dtype=torch.bool), SCORE: torch.zeros(len(left))}


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


def test_at_the_end_a_group_leaves_above_the_threshold() -> None:
    """Four examples each. Group 0 gains 1 with mean square 2: t = 1 / sqrt(4/3 / 4) = 1.73; group 1 gains 0.1 with mean
    square 0.0101: t = 0.1 / sqrt(1e-4 * 4/3 / 4) = 17.3."""
    found = {0: {0: losses(2, 1, 2)}, 1: {1: losses(1.0, 0.9, 0.0101)}}
    serving, memory = ByTrial(groups=NAMES).decide(remembered(False, False), ROSTER, found, 40, 40)
    assert serving.tolist() == [COMMON, 1, COMMON, 1]
    assert memory[SCORE].tolist() == pytest.approx([1.7321, 17.3205], abs=1e-3)


@pytest.mark.parametrize(("threshold", "left"), [(8.0, [True, True]), (9.0, [False, False])])
def test_after_the_short_trial_all_groups_leave_or_none(threshold: float, left: list[bool]) -> None:
    """Group 0 gains 0.2 with mean square 0.0401: t = 34.6; group 1 has 17.3. Both are above 16, and one is below 18."""
    found = {0: {0: losses(1.0, 0.8, 0.0401)}, 1: {1: losses(1.0, 0.9, 0.0101)}}
    trial = ByTrial(groups=NAMES, threshold=threshold)
    serving, memory = trial.decide(remembered(False, False), ROSTER, found, 29, 100)
    assert memory[SCORE].tolist() == pytest.approx([34.641, 17.3205], abs=1e-3)
    assert memory[LEFT].tolist() == left
    assert serving.tolist() == ([0, 1, 0, 1] if left[0] else [COMMON] * 4)
    begun = {**remembered(False, False), BEGUN: torch.tensor([True, False, True, True])}
    _, memory = trial.decide(begun, ROSTER, found, 29, 100)
    assert memory[BEGUN].tolist() == ([True, False, True, True] if left[0] else [False] * 4)


def test_trials_come_after_a_quarter_of_the_rounds_and_at_the_end() -> None:
    trial = ByTrial(groups=NAMES, pilot=4)
    assert trial.trials(40) == [range(11, 15), range(33, 41)]
    assert trial.trials(6) == [range(5, 7)]
    assert trial.trials(3) == [range(2, 4)]


def test_a_trial_takes_turns_and_compares_at_its_end() -> None:
    trial, memory = ByTrial(groups=NAMES, pilot=2), remembered(False, False)
    before = trial.plan(memory, ROSTER, 36, 40)
    assert before.common
    assert not before.holds_back
    plans = [trial.plan(memory, ROSTER, number, 40) for number in trial.trials(40)[-1]]
    assert [plan.common for plan in plans] == [True, False, True, False]
    assert all(plan.holds_back for plan in plans)
    assert [list(plan.begins) for plan in plans] == [[], [0, 1], [], []]
    assert [plan.compares for plan in plans] == [False, False, False, True]


def test_after_all_have_left_only_groups_train() -> None:
    trial, memory = ByTrial(groups=NAMES, pilot=4), remembered(True, True)
    plans = [trial.plan(memory, ROSTER, number, 40) for number in (15, 16, 33, 40)]
    assert not any(plan.common or plan.holds_back or plan.compares or plan.begins for plan in plans)
    assert [list(plan.restarts) for plan in plans] == [[0, 1, 2, 3]] * 4  # none of them has begun
    assert all(plan.group_of is not None for plan in plans)


def test_before_the_trial_it_is_the_base_bit_for_bit() -> None:
    class Later(ByTrial):
        def trials(self, rounds: int) -> list[range]:
            return [range(9, 11)]

    federation = blob_federation(num_clients=4)
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3)
    tried, _, _ = play(replace(fedavg(), sharing=Later(groups=NAMES)), Norms(), federation, rounds=3)
    assert same_bits(plain.shared, tried.shared)
    assert tried.group_of is None


def test_a_client_keeps_two_memories_apart() -> None:
    one, other = {"norms": {"w": torch.ones(1)}}, {"norms": {"w": torch.zeros(1)}}
    both = with_branch(one, other, branch=True)
    assert branch_of(both, False)["norms"]["w"].item() == 1
    assert branch_of(both, True)["norms"]["w"].item() == 0
    assert branch_of(one, True) is one
    assert branch_of(with_branch(both, other, branch=False), True)["norms"]["w"].item() == 0


def test_personal_values_of_a_group_that_left_are_its_own() -> None:
    federation = blob_federation(num_clients=4)
    algorithm = replace(fedbn(), sharing=ByTrial(groups=NAMES, pilot=1, threshold=-1e9))
    state, _, simulator = play(algorithm, Norms(), federation, rounds=4)
    assert state.group_of is not None
    assert state.group_of.tolist() == [0, 1, 0, 1]
    plain, own = (branch_of(simulator.memory[0], branch)[PERSONAL] for branch in (False, True))
    assert plain.keys() == own.keys()
    assert not same_bits(plain, own)


def test_a_pilot_needs_a_round() -> None:
    with raises(UsageError, "out-of-range", setting="ByTrial(pilot)"):
        ByTrial(groups=NAMES, pilot=0)
