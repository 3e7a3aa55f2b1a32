"""Groups of clients over Flower's messages: the simulator's bits, whatever they share and however they are found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict

from fedatlas.algorithms import ByLoss, build_algorithm, cfl, fedavg, ifca, scaffold
from fedatlas.config import Config
from fedatlas.errors import UsageError
from fedatlas.flower.node.memory import ContextStore
from fedatlas.flower.protocol.messages import ABOUT, Packing, plain, tensors, unpack_candidates
from fedatlas.flower.protocol.wire import unfolded
from fedatlas.flower.server.transport import FlowerClients, version_of
from fedatlas.parts import Algorithm, ByGroup, ByTrial, Candidate, ClientScore, Level, Memory, ServerState
from fedatlas.seeds import repeatable
from fedatlas.testing import InProcessGrid, flat, state_tensors, tiny_federation
from fedatlas.training import Clients, RoundRecord, evaluate, play
from flower_network import flower_clients, simulator, without_held_out
from raising import raises
from tiny import same_bits

GROUPS = {f"client-{i}": i % 2 for i in range(6)}
BASES = ("fedavg", "scaffold", "fedbn")
NORMS = {"fedbn": "batch", "fedpce": "instance"}
"""The norms of bases that need some, in a network for images."""


def config_of(base: str, rounds: int) -> Config:
    model = ("model.name=cnn", f"model.norm={NORMS[base]}") if base in NORMS else ("model.name=mlp",)
    own = [f"algorithm.name={base}", "training.batch_size=8", f"training.rounds={rounds}", "flower.deadline=1"]
    return Config.load(None, [*own, *model])


def played(
    algorithm: Algorithm, clients: Clients, rounds: int
) -> tuple[ServerState, list[RoundRecord], list[ClientScore]]:
    """Play rounds of four clients; return the last state, the records, and how the models do in the end."""
    size = 6 if algorithm.sharing.needs_everyone else 4
    with repeatable(torch.device("cpu")):
        found = list(play(algorithm, clients, rounds=rounds, cohort_size=size))
        state = found[-1].state
        return state, [one.record for one in found], evaluate(algorithm, clients, state)


def memories(clients: FlowerClients) -> dict[int, Memory]:
    """Return what the nodes remember."""
    grid = clients.exchange.grid
    assert isinstance(grid, InProcessGrid)
    return {
        client: ContextStore(grid.contexts[client + 1].state).take(version_of(clients.memory, client))
        for client in clients.memory
    }


def check_same_bits(
    algorithm: Algorithm, base: str, folder: Path, rounds: int = 3
) -> tuple[ServerState, list[RoundRecord], FlowerClients]:
    """Play over messages and here, and compare all that is left; return the state, the records and the clients."""
    config = config_of(base, rounds)
    federation = without_held_out(tiny_federation("images" if base in NORMS else "features"))
    nodes = flower_clients(algorithm, config, federation, folder)
    state, records, scores = played(algorithm, nodes, rounds)
    simulated = simulator(algorithm, config, federation)
    here, known, wanted = played(algorithm, simulated, rounds)
    assert here.groups
    assert same_bits(state_tensors(state), state_tensors(here))
    assert records == known
    assert [(s.client, s.accuracy) for s in scores] == [(s.client, s.accuracy) for s in wanted]
    torch.testing.assert_close([s.loss for s in scores], [s.loss for s in wanted])
    remembered = memories(nodes)
    assert remembered.keys() == simulated.memory.keys()
    assert all(same_bits(flat("", own), flat("", remembered[client])) for client, own in simulated.memory.items())
    log = nodes.exchange.log(rounds)
    assert (log.bytes.keys(), log.left_out) == (GROUPS.keys(), [])
    return state, records, nodes


@pytest.mark.parametrize("level", ["all", "head"])
@pytest.mark.parametrize("base", BASES)
def test_known_groups_end_with_the_simulators_bits(base: str, level: Level, tmp_path: Path) -> None:
    algorithm = replace(build_algorithm(base), sharing=ByGroup(groups=GROUPS, level=level))
    state, *_ = check_same_bits(algorithm, base, tmp_path)
    one, other = state.groups
    assert not same_bits(one.shared, other.shared)


@pytest.mark.parametrize("base", BASES)
def test_groups_that_leave_after_a_trial_end_with_the_simulators_bits(base: str, tmp_path: Path) -> None:
    """Of 10 rounds the third is the first trial, after which all leave: the others train the groups' models only."""
    sharing = ByTrial(groups=GROUPS, pilot=1, threshold=-1e9)
    assert sharing.trials(10)[0] == range(3, 4)
    _, records, nodes = check_same_bits(replace(build_algorithm(base), sharing=sharing), base, tmp_path, rounds=10)
    apart = tuple(GROUPS.values())
    assert [record.groups for record in records] == [None] * 2 + [apart] * 8
    branched = {key.startswith("branch/") for own in memories(nodes).values() for key in own}
    assert branched == (set() if base == "fedavg" else {True, False})


def test_groups_that_stay_begin_the_next_trial_from_the_common_model_again(tmp_path: Path) -> None:
    """None leaves after round 3, so groups and the clients' memory for them start again in round 7."""
    sharing = ByTrial(groups=GROUPS, pilot=1, threshold=1e9)
    _, records, nodes = check_same_bits(replace(scaffold(), sharing=sharing), "scaffold", tmp_path, rounds=10)
    assert [record.round for record in records if record.groups is not None] == [3, 7]
    assert any(key.startswith("branch/") for own in memories(nodes).values() for key in own)


@pytest.mark.parametrize("base", BASES)
def test_a_group_that_leaves_beside_the_common_model_ends_with_the_simulators_bits(base: str, tmp_path: Path) -> None:
    class OneLeaves(ByTrial):
        def decide(self, *args: Any) -> Any:
            serving, memory = super().decide(*args)
            left = torch.tensor([False, args[-2] > 4])
            return torch.where(left[1] & (serving == 1), 1, -1), {**memory, "left": left}

    sharing = OneLeaves(groups=GROUPS, pilot=1, threshold=-1e9)
    assert sharing.trials(6) == [range(4, 5)]
    assert sharing.trials(8) == [range(3, 4), range(6, 7)]
    _, records, _ = check_same_bits(replace(build_algorithm(base), sharing=sharing), base, tmp_path, rounds=8)
    assert [list(record.sharing.get("trained", [])) for record in records[5:]] == [
        ["common", "rival", "groups"],
        ["common", "groups"],
        ["common", "groups"],
    ]


@pytest.mark.parametrize("base", BASES)
def test_a_group_that_is_apart_ends_with_the_simulators_bits(base: str, tmp_path: Path) -> None:
    """Groups 0 and 1 share a model and are tried in rounds 3 and 6; group 2 has its model from the beginning."""
    names = {name: i % 3 for i, name in enumerate(GROUPS)}
    sharing = ByTrial(groups=names, pilot=1, threshold=1e9, apart=(2,))
    assert sharing.trials(8) == [range(3, 4), range(6, 7)]
    state, records, _ = check_same_bits(replace(build_algorithm(base), sharing=sharing), base, tmp_path, rounds=8)
    assert state.group_of is not None
    assert state.group_of.tolist() == [-1, -1, 2, -1, -1, 2]
    assert [record.round for record in records if "rival" in record.sharing.get("trained", {})] == [3, 6]


def test_a_trial_from_the_first_round_on_ends_with_the_simulators_bits(tmp_path: Path) -> None:
    """A client's first embedding depends on its place; one client has a single example and holds none back."""
    algorithm = replace(build_algorithm("fedpce"), sharing=ByTrial(groups=GROUPS, pilot=1))
    _, records, _ = check_same_bits(algorithm, "fedpce", tmp_path, rounds=2)
    assert [record.groups for record in records] == [tuple(GROUPS.values()), None]


def test_clients_that_choose_by_their_losses_end_with_the_simulators_bits(tmp_path: Path) -> None:
    _, records, nodes = check_same_bits(ifca(2, seed=2), "fedavg", tmp_path)
    assert set(records[-1].groups or ()) == {-1, 0, 1}
    assert list(nodes.expected.losses) == ["means"]


def test_a_group_that_splits_ends_with_the_simulators_bits(tmp_path: Path) -> None:
    state, *_ = check_same_bits(cfl(eps1=100.0, eps2=0.0, after=1), "fedavg", tmp_path)
    assert len(state.groups) > 1


def test_a_client_receives_the_model_of_its_group_and_no_other(tmp_path: Path) -> None:
    received: dict[str, RecordDict] = {}

    def watch(name: str, message: Message, content: RecordDict) -> RecordDict:
        if message.metadata.message_type == "train":
            received[name] = unfolded(message.content)
        return content

    algorithm = replace(scaffold(), sharing=ByGroup(groups=GROUPS, level="head"))
    federation = without_held_out(tiny_federation())
    clients = flower_clients(algorithm, config_of("scaffold", 3), federation, tmp_path, watch)
    *_, last = play(algorithm, clients, rounds=3)
    assert received.keys() == GROUPS.keys()
    for assignment in last.assignments:
        records = received[federation.clients[assignment.client].name]
        assert set(records) == {"shared", "buffers", "note/scaffold", "about"}
        assert same_bits(tensors(records.array_records["shared"]), assignment.shared)
    heads = {records.array_records["shared"]["head.weight"].data for records in received.values()}
    assert len(heads) == 2


def test_a_client_whose_losses_are_lost_takes_no_part_until_it_has_a_group(tmp_path: Path) -> None:
    def lose(name: str, message: Message, content: RecordDict) -> RecordDict | None:
        first = (message.metadata.message_type, message.metadata.group_id) == ("query.losses", "1")
        return None if first and name == "client-1" else content

    algorithm, federation = ifca(2), without_held_out(tiny_federation())
    clients = flower_clients(algorithm, config_of("fedavg", 2), federation, tmp_path, lose)
    rounds = play(algorithm, clients, rounds=2)
    first = next(rounds)
    assert sorted(first.record.weights) == [0, 2, 3, 4, 5]
    assert first.record.groups is not None
    assert first.record.groups[1] == -1
    (left_out,) = clients.exchange.log(1).left_out
    assert (left_out["client"], left_out["stage"]) == ("client-1", "losses")
    assert sorted(next(rounds).record.weights) == [0, 1, 2, 3, 4, 5]


def test_losses_that_a_part_does_not_declare_are_not_asked_for(tmp_path: Path) -> None:
    class Silent(ByLoss):
        discloses = ()

    algorithm = replace(fedavg(), sharing=Silent())
    clients = flower_clients(algorithm, config_of("fedavg", 1), without_held_out(tiny_federation()), tmp_path)
    with raises(UsageError, "value-missing", name="means", part="Silent"):
        next(play(algorithm, clients, rounds=1))


def test_a_tensor_is_packed_once_and_models_send_what_they_have_in_common_once() -> None:
    body, one, two = torch.ones(3), torch.zeros(2), torch.full((2,), 2.0)
    packing = Packing()
    first, second = (
        Candidate({"body": body, "head": one}, {}),
        Candidate({"body": body, "head": two}, {}, "branch"),
    )
    records = packing.candidates([first, second])
    assert {name: list(record) for name, record in records.items()} == {
        "shared/0": ["body", "head"],
        "buffers/0": [],
        "shared/1": ["head"],
        "buffers/1": [],
    }
    assert packing.arrays(second.shared)["head"] is records["shared/1"]["head"]
    found = unpack_candidates(RecordDict({**records, ABOUT: plain({"branches": ["", "branch"]})}))
    assert [candidate.branch for candidate in found] == ["", "branch"]
    assert same_bits(found[0].shared, first.shared)
    assert same_bits(found[1].shared, second.shared)
