from dataclasses import replace

import pytest
import torch

from fedatlas.algorithms import fedavg, scaffold
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.optimizer import SGD
from fedatlas.parts.sharing import ByGroup, Level, One
from fedatlas.parts.types import ClientInfo
from fedatlas.training import shares
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits

GROUPS = {"client-0": 0, "client-1": 1, "client-2": 0}


def by_group(base: Algorithm, level: Level = "all", **groups: int) -> Algorithm:
    named = {f"client-{client[1:]}": group for client, group in groups.items()} or GROUPS
    return replace(base.with_optimizer(SGD(lr=0.1)), sharing=ByGroup(groups=named, level=level))


def test_each_group_averages_its_own_clients() -> None:
    """lr 0.1, one step from w = 0. Gradients: client 0 (x = 2, label 0) -1, client 1 (x = 4, label 1) 2, client 2
    (x = 6, label 0) -3. Group 0 moves by the mean of 0.1 and 0.3, group 1 by -0.2."""
    federation = line_federation(([2], [0]), ([4], [1]), ([6], [0]))
    state, records, _ = play(by_group(fedavg()), Line(), federation)
    assert [group.shared["head.weight"].item() for group in state.groups] == pytest.approx([0.2, -0.2])
    assert state.shared == {}
    assert records[0].weights == pytest.approx({0: 0.5, 1: 1.0, 2: 0.5})
    assert records[0].groups == (0, 1, 0)


def test_a_group_s_rule_divides_by_the_group_s_clients() -> None:
    """As above with SCAFFOLD: c of group 0 is the mean of its clients' -1 and -3, c of group 1 is 2."""
    federation = line_federation(([2], [0]), ([4], [1]), ([6], [0]))
    state, _, _ = play(by_group(scaffold()), Line(), federation)
    controls = [group.memory["server/scaffold"]["head.weight"].item() for group in state.groups]
    assert controls == pytest.approx([-2.0, 2.0])


def test_one_group_of_all_is_the_base_bit_for_bit() -> None:
    federation = blob_federation(num_clients=5)
    one = ByGroup(groups={client.name: 0 for client in federation})
    for base in (fedavg(), scaffold()):
        plain, _, _ = play(base, Norms(), federation, rounds=3, cohort=3)
        alone, _, _ = play(replace(base, sharing=one), Norms(), federation, rounds=3, cohort=3)
        assert same_bits(plain.shared, alone.groups[0].shared)
        assert same_bits(plain.buffers, alone.groups[0].buffers)


@pytest.mark.parametrize(("level", "own"), [("head", {"head"}), ("norms", {"norm"})])
def test_a_level_says_what_a_group_has_for_itself(level: Level, own: set[str]) -> None:
    federation = blob_federation(num_clients=4)
    algorithm = by_group(fedavg(), level, c0=0, c1=1, c2=0, c3=1)
    state, _, _ = play(algorithm, Norms(), federation, rounds=2)
    plain, _, _ = play(fedavg().with_optimizer(SGD(lr=0.1)), Norms(), federation, rounds=1)
    assert {name.split(".")[0] for group in state.groups for name in group.shared} == own
    assert not own & {name.split(".")[0] for name in state.shared}
    assert not same_bits(state.groups[0].shared, state.groups[1].shared)
    first, _, _ = play(algorithm, Norms(), federation, rounds=1)
    # In the first round all begin with the same values, so what is common moves as without groups.
    for name, tensor in first.shared.items():
        torch.testing.assert_close(tensor, plain.shared[name])


def test_a_client_is_tested_with_its_group_s_model() -> None:
    """Client 1's data want a negative w, the others' a positive one: each group is right on all of its examples."""
    from fedatlas.engines import Simulator
    from fedatlas.training import evaluate, initial_state
    from fedatlas.training import play as rounds_of

    federation = line_federation(([2], [0]), ([4], [1]), ([6], [0]))
    algorithm = by_group(fedavg())
    with Simulator(algorithm, Line(), federation, workers=1) as simulator:
        state = initial_state(algorithm, simulator)
        for found in rounds_of(algorithm, simulator, rounds=1, state=state):
            state = found.state
        assert [score.accuracy for score in evaluate(algorithm, simulator, state)] == [1.0, 1.0, 1.0]


def test_a_training_client_without_a_group_is_an_error() -> None:
    federation = line_federation(([2], [0]), ([4], [1]))
    sharing = ByGroup(groups={"client-0": 0})
    with raises(UsageError, "client-missing", client="client-1"):
        sharing.check_clients(federation)
    assert "1 held-out clients have no group" in sharing.check_clients(federation.hold_out([1]))[0]


def test_groups_have_no_gap() -> None:
    with raises(UsageError, "wrong-value", got=[0, 2]):
        ByGroup(groups={"a": 0, "b": 2})
    with raises(UsageError, "wrong-value", got=[]):
        ByGroup()


def test_norms_need_a_model_with_norms() -> None:
    with raises(UsageError, "model-unfit", reason="no-norm"):
        ByGroup(groups={"a": 0}, level="norms").grouped_names(Line())


def test_a_round_can_draw_from_each_group() -> None:
    """Three of six clients, groups of four and two: two and one."""
    federation = blob_federation(num_clients=6)
    groups = {f"client-{i}": int(i >= 4) for i in range(6)}
    algorithm = replace(fedavg(), sharing=ByGroup(groups=groups, from_each=True))
    _, records, _ = play(algorithm, Norms(), federation, rounds=5, cohort=3)
    assert [sum(client >= 4 for client in record.cohort) for record in records] == [1] * 5


@pytest.mark.parametrize(
    ("count", "sizes", "expected"), [(5, [12, 6, 2], [3, 1, 1]), (2, [5, 5, 5], [1, 1, 0]), (9, [1, 2], [1, 2])]
)
def test_the_clients_of_a_round_are_shared_out_by_size(count: int, sizes: list[int], expected: list[int]) -> None:
    assert shares(count, sizes) == expected


def test_one_model_is_not_written_down_unless_there_is_a_reason() -> None:
    assert "sharing" not in fedavg().describe()
    assert replace(fedavg(), sharing=One(reason="noise")).describe()["sharing"]["reason"] == "noise"
    described = ByGroup(groups=GROUPS).describe()
    assert described["groups"] == [["client-0", "client-2"], ["client-1"]]


def test_the_roster_of_a_group_holds_the_others_out() -> None:
    from fedatlas.training import GroupRosters

    roster = [ClientInfo(id=i, name=f"client-{i}", num_examples=9) for i in range(3)]
    rosters, group_of = GroupRosters(roster), torch.tensor([0, 1, 0])
    assert [client.held_out for client in rosters.of(group_of, 0)] == [False, True, False]
    assert rosters.of(group_of, 0) is rosters.of(group_of, 0)
