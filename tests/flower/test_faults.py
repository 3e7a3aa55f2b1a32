"""Nodes that reply wrongly, late or never: they are left out, the record says why, and no memory is lost."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedatlas.config import Config
from fedatlas.data import Federation
from fedatlas.engines import Simulator
from fedatlas.errors import UsageError
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.server import exchange
from fedatlas.flower.server.app import serve
from fedatlas.parts import Assignment, Tensors, Upload
from fedatlas.runs import Run
from fedatlas.testing import InProcessGrid, Tamper, state_tensors, tiny_federation
from fedatlas.training import make_model
from fedatlas.training import play as play_rounds
from flower_network import handed_out, simulated
from raising import raises
from tiny import same_bits

LOST, LOST_IN = "client-1", 2
ROUNDS = 4


def three_clients() -> Federation:
    federation = tiny_federation("features")
    return replace(federation, clients=federation.clients[:3])


def config_of(folder: Path, *settings: str) -> Config:
    own = [
        "algorithm.name=scaffold",
        "model.name=mlp",
        f"training.rounds={ROUNDS}",
        "training.batch_size=8",
        "training.evaluate_every=2",
        "flower.clients=3",
        "flower.deadline=1",
        "flower.wait=1",
    ]
    (folder / "run.toml").write_text(Config.load(None, [*own, *settings]).to_toml())
    return Config.load(folder / "run.toml")


def grid_for(folder: Path, tamper: Tamper | None = None, **options: bool) -> InProcessGrid:
    nodes = handed_out(three_clients(), folder / "data")
    return InProcessGrid(make_client_app(folder / "run.toml"), nodes, tamper=tamper, **options)


def in_one_training(change: Callable[[RecordDict], RecordDict | None]) -> Tamper:
    def tamper(name: str, message: Message, content: RecordDict) -> RecordDict | None:
        kind, number = message.metadata.message_type, message.metadata.group_id
        return change(content) if (kind, number, name) == ("train", str(LOST_IN), LOST) else content

    return tamper


def with_first_change(content: RecordDict, change: Callable[[torch.Tensor], torch.Tensor]) -> RecordDict:
    tensors = OrderedDict(content.array_records["change"].to_torch_state_dict())
    first = next(iter(tensors))
    tensors[first] = change(tensors[first])
    content["change"] = ArrayRecord(tensors)
    return content


def with_nan(content: RecordDict) -> RecordDict:
    return with_first_change(content, lambda tensor: torch.full_like(tensor, torch.nan))


def with_wrong_shape(content: RecordDict) -> RecordDict:
    return with_first_change(content, lambda tensor: tensor[:-1])


def with_double_precision(content: RecordDict) -> RecordDict:
    return with_first_change(content, lambda tensor: tensor.double())


def hundred_times_the_size(content: RecordDict) -> RecordDict:
    return with_first_change(content, lambda tensor: tensor.repeat(100, *[1] * (tensor.ndim - 1)))


def out_of_all_proportion(content: RecordDict) -> RecordDict:
    return with_first_change(content, lambda tensor: torch.zeros(1 << 23))


def with_a_stowaway(content: RecordDict) -> RecordDict:
    content["parcel"] = ConfigRecord({"content": b"x"})
    return content


def with_more_weight(content: RecordDict) -> RecordDict:
    content["about"] = ConfigRecord({**content.config_records["about"], "num_examples": 1_000_000})
    return content


def without_note(content: RecordDict) -> RecordDict:
    del content["note/scaffold"]
    return content


def never(content: RecordDict) -> None:
    return None


FAULTS = {
    "NaN or infinity": with_nan,
    "wanted float32": with_wrong_shape,
    "float64": with_double_precision,
    "of shape": hundred_times_the_size,
    "the limit is": out_of_all_proportion,
    "unexpected record 'parcel'": with_a_stowaway,
    "num_examples is 1000000": with_more_weight,
    "scaffold": without_note,
    "no reply within 1 seconds": never,
}


class Forgetful(Simulator):
    """A simulator in which one client's reply of one round does not arrive."""

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        lost = int(LOST[-1])
        chosen = [a for a in assignments if (a.client, a.round) != (lost, LOST_IN)]
        return super().train(chosen)


def bits_without_that_answer(config: Config) -> Tensors:
    federation = three_clients()
    algorithm = config.algorithm()
    network = make_model(*config.model(), federation, algorithm, config.seeds().model)
    with Forgetful(algorithm, network, federation, work=config.work(), workers=1) as simulator:
        for found in play_rounds(algorithm, simulator, rounds=ROUNDS, cohort_size=3, seed=0):
            state = found.state
    return {**state.shared, **state.buffers}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_bad_reply_is_left_out_and_the_client_goes_on_from_its_last_memory(reason: str, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    run = serve(config, grid_for(tmp_path, in_one_training(FAULTS[reason])), tmp_path / "run")
    (story,) = run.rounds[LOST_IN - 1]["left_out"]
    assert (story["client"], story["stage"]) == (LOST, "training")
    assert reason in story["reason"]
    assert 1 not in run.rounds[LOST_IN - 1]["answered"]
    assert 1 in run.rounds[LOST_IN]["answered"]
    assert same_bits(run.parameters(), bits_without_that_answer(config))


def test_too_few_replies_change_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, "flower.minimum=3", "training.evaluate_every=1", "training.rounds=2")
    run = serve(config, grid_for(tmp_path, in_one_training(never)), tmp_path / "run")
    assert run.rounds[1]["answered"] == []
    assert "2 replies, at least 3 are needed" in run.rounds[1]["left_out"][-1]["reason"]
    losses = {(line["client"], line["round"]): line["loss"] for line in run.clients if "loss" in line}
    assert all(losses[name, 1] == losses[name, 2] for name, round in losses if round == 1)


def test_a_disconnected_node_is_left_out_until_it_returns(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    grid = grid_for(tmp_path)

    def leave_for_a_round(name: str, message: Message, content: RecordDict) -> RecordDict:
        if message.metadata.message_type == "train" and name == "client-2":
            grid.online = set(grid.names) - ({2} if message.metadata.group_id == "1" else set())
        return content

    grid.tamper = leave_for_a_round
    run = serve(config, grid, tmp_path / "run")
    assert run.rounds[1]["left_out"][0]["reason"] == "its node is not connected"
    assert 1 in run.rounds[2]["answered"]
    assert same_bits(run.parameters(), bits_without_that_answer(config))


class PowerCut(BaseException):
    """No handler catches it."""


IFCA = ("algorithm.name=ifca", "algorithm.base=scaffold", "algorithm.seed=2")


@pytest.mark.parametrize("settings", [(), IFCA], ids=["scaffold", "ifca over scaffold"])
@pytest.mark.parametrize("kept", ["in a folder", "in the node's process"])
def test_a_server_that_was_killed_goes_on_to_the_same_bits(
    kept: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    config = config_of(tmp_path, "training.checkpoint_every=2", *settings)

    def cut(name: str, message: Message, content: RecordDict) -> RecordDict:
        if (message.metadata.message_type, message.metadata.group_id, name) == ("train", "4", "client-2"):
            raise PowerCut
        return content

    grid = grid_for(tmp_path, cut)
    if kept == "in a folder":
        for node, name in grid.names.items():
            grid.contexts[node].node_config["memory"] = str(tmp_path / "memory" / name)
    with pytest.raises(PowerCut):
        serve(config, grid, tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint().state.round == 2
    grid.tamper, grid.replies = None, {}
    run = serve(config, grid, tmp_path / "run")
    here = simulated(config, three_clients(), tmp_path / "here")
    assert same_bits(state_tensors(run.checkpoint().state), state_tensors(here.checkpoint().state))
    assert [line["round"] for line in run.rounds] == [1, 2, 3, 4]
    if kept == "in a folder":
        assert len(list((tmp_path / "memory").rglob("*.safetensors"))) <= 3 * len(grid.names)


def test_a_node_that_lost_its_memory_reports_it_and_may_start_with_an_empty_one(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    grid = grid_for(tmp_path)

    def lose(name: str, message: Message, content: RecordDict) -> RecordDict:
        if message.metadata.group_id == "1" and name == LOST:
            state = grid.contexts[2].state
            for record in list(state):
                del state[record]
        if message.metadata.group_id == "3" and name == LOST:
            grid.contexts[2].node_config["forget"] = True
        return content

    grid.tamper = lose
    run = serve(config, grid, tmp_path / "run")
    assert "memory of round 1 is gone" in run.rounds[1]["left_out"][0]["reason"]


def test_the_text_of_a_nodes_error_stays_in_the_nodes_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = grid_for(tmp_path)
    grid.contexts[2].node_config["data"] = str(tmp_path / "Mueller_Hans_1962.npz")
    with raises(UsageError, "clients-missing", connected=["client-0", "client-2"]):
        serve(config_of(tmp_path), grid, tmp_path / "run")
    heard, log = capsys.readouterr()
    assert "the request failed (UsageError); the node's log says why" in heard
    assert "Mueller" not in heard
    assert "Mueller_Hans_1962.npz" in log


def test_an_unregistered_node_is_refused_unless_the_config_is_insecure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with raises(UsageError, "clients-missing", seconds=1, connected=[]):
        serve(config_of(tmp_path), grid_for(tmp_path, registered=False), tmp_path / "run")
    assert "its key is not registered" in capsys.readouterr().out
    config = config_of(tmp_path, "flower.insecure=true", "training.rounds=1")
    run = serve(config, grid_for(tmp_path, registered=False), tmp_path / "run")
    assert [client["key"] for client in run.resolved["federation"]["clients"]] == [""] * 3


def test_a_node_cannot_take_another_clients_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, "flower.clients=2", "training.rounds=1")
    grid = grid_for(tmp_path)
    grid.registered[3] = "mallory"
    run = serve(config, grid, tmp_path / "run")
    assert len(run.resolved["federation"]["clients"]) == 2
    assert "'client-2', but its key is registered as 'mallory'" in capsys.readouterr().out


def test_a_report_needs_neither_label_counts_nor_images(tmp_path: Path) -> None:
    run = serve(config_of(tmp_path, "training.rounds=2"), grid_for(tmp_path), tmp_path / "run")
    assert run.report().read_text().count("client-2") > 0


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "POLL", 0.01)
