"""A client that joins after the training adapts the model on its node and sends the results to the server."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Message, RecordDict

from fedatlas.adapting import load_personalised
from fedatlas.atlas import Placement
from fedatlas.config import Config
from fedatlas.errors import UsageError
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.protocol.messages import tensors
from fedatlas.flower.protocol.wire import unfolded
from fedatlas.flower.server import newcomers
from fedatlas.flower.server.app import serve
from fedatlas.flower.server.newcomers import adapt_newcomers, model_for
from fedatlas.parts import GroupState, ServerState
from fedatlas.testing import InProcessGrid, tiny_federation
from flower_network import handed_out, some_dark, without_held_out
from raising import raises
from tiny import same_bits


def test_a_newcomer_tunes_its_embedding_and_sends_no_number_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what the folds of its training part gave."""
    replies: list[Mapping[str, object]] = []
    read = newcomers.values

    def noted(records: RecordDict, name: str) -> Mapping[str, object]:
        replies.append(read(records, name))
        return replies[-1]

    monkeypatch.setattr(newcomers, "values", noted)
    settings = [
        "algorithm.name=fedpce",
        "model.name=cnn",
        "model.norm=instance",
        "training.rounds=2",
        "training.batch_size=8",
        "flower.clients=5",
        "flower.adapt={ rounds = 2, steps = 3 }",
    ]
    (tmp_path / "run.toml").write_text(Config.load(None, settings).to_toml())
    config = Config.load(tmp_path / "run.toml")
    nodes = handed_out(without_held_out(tiny_federation("images")), tmp_path / "data")
    nodes["client-5"]["memory"] = str(tmp_path / "node")
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes)
    grid.online.discard(6)
    serve(config, grid, tmp_path / "run")
    grid.online.add(6)
    run = adapt_newcomers(config, grid, tmp_path / "run")
    (record,) = json.loads((tmp_path / "run" / "adapted.json").read_text())
    assert record["client"] == "client-5"
    assert (record["num_tuned"], record["num_steps"]) == (32, 6)
    assert record["bytes_sent"] < 2000 < record["bytes_received"]
    assert record["embedding"] is None
    (reply,) = replies
    assert reply["num_steps"] == 6
    assert not reply.keys() & {"embedding", "curve", "kept", "why", "gain"}
    assert run.report().exists()
    (network,) = (tmp_path / "node").rglob("adapted.safetensors")
    model = load_personalised(network)
    assert model(torch.zeros(2, 3, 8, 8))[1].shape == (2, 3)
    received = json.loads(next((tmp_path / "node").rglob("resolved.json")).read_text())
    assert received["federation"]["clients"] == []


def group(value: float) -> GroupState:
    return GroupState(shared={"head": torch.tensor([value])}, buffers={}, memory={})


BODY = {"body": torch.tensor([1.0])}
APART = ServerState(
    round=3,
    shared=BODY,
    buffers={},
    memory={},
    groups=(group(2.0), group(3.0)),
    group_of=torch.tensor([0, 1, 1, -1]),
)
ROSTER = ["a", "b", "held out", "never chose"]


def test_a_newcomer_gets_the_model_of_its_group() -> None:
    shared, _ = model_for("held out", APART, ROSTER)
    assert same_bits(shared, {**BODY, "head": torch.tensor([3.0])})


@pytest.mark.parametrize("name", ["never chose", "unheard of"])
def test_a_newcomer_without_a_group_gets_the_common_model_where_there_is_one(name: str) -> None:
    with raises(UsageError, "client-missing", client=name, groups=2):
        model_for(name, APART, ROSTER)
    common = {**BODY, "head": torch.tensor([4.0])}
    assert same_bits(model_for(name, replace(APART, shared=common), ROSTER)[0], common)
    alone = ServerState(round=3, shared=BODY, buffers={}, memory={})
    assert same_bits(model_for(name, alone, ROSTER)[0], BODY)


def placement(group: int | None) -> Placement:
    return Placement(
        client="late",
        group=group,
        certainty=0.99,
        chances=(0.01, 0.99),
        num_examples=9,
        labelled=True,
        reason="it is unlike every group.",
        refusal=None if group is not None else "unlike",
    )


def test_a_placed_stranger_gets_the_model_of_its_group_and_one_that_is_not_placed_none() -> None:
    shared, _ = model_for("late", APART, ROSTER, placement(1))
    assert same_bits(shared, {**BODY, "head": torch.tensor([3.0])})
    with raises(UsageError, "placement-uncertain", client="late", reason="unlike"):
        model_for("late", APART, ROSTER, placement(None))
    common = {**BODY, "head": torch.tensor([4.0])}
    stayed = replace(APART, shared=common, group_of=torch.tensor([0, 0, -1, -1]))
    assert same_bits(model_for("late", stayed, ROSTER, placement(0))[0], {**BODY, "head": torch.tensor([2.0])})
    for found in (placement(1), placement(None)):  # group 1 has not left the common model
        assert same_bits(model_for("late", stayed, ROSTER, found)[0], common)


def test_a_client_that_joins_late_is_placed_by_its_vector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clients 0, 2 and 4 have dark images. Client 4 was not there in training; no vector of an example leaves it."""
    sent: dict[str, list[str]] = {}

    def watch(name: str, message: Message, content: RecordDict) -> RecordDict:
        sent.setdefault(name, []).append(message.metadata.message_type)
        return content

    settings = [
        "algorithm.name=fedavg",
        "model.name=cnn",
        "training.rounds=2",
        "training.batch_size=8",
        'atlas.make={ source = "class-prototypes" }',
        'atlas.use=["group"]',
        "sharing.groups=2",
        "flower.clients=5",
        "flower.adapt={ rounds = 1, steps = 1 }",
    ]
    (tmp_path / "run.toml").write_text(Config.load(None, settings).to_toml())
    config = Config.load(tmp_path / "run.toml")
    grid = InProcessGrid(
        make_client_app(tmp_path / "run.toml"), handed_out(some_dark(6), tmp_path / "data"), tamper=watch
    )
    grid.online.discard(5)
    serve(config, grid, tmp_path / "run")
    grid.online.add(5)
    run = adapt_newcomers(config, grid, tmp_path / "run")
    assert sent["client-4"] == ["query.hello", "query.cells", "query.adapt"]
    state = run.checkpoint().state
    names = run.client_names
    (record,) = run.adapted
    assert record["group"] == state.group(names.index("client-0")) == state.group(names.index("client-2"))
    assert record["placement"]["by"] == "vector"
    assert record["placement"]["certainty"] > 0.95
    assert f"client-4: group {record['group']} (certainty" in capsys.readouterr().out


def test_a_held_out_client_of_a_group_adapts_its_model_and_a_stranger_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    received: list[RecordDict] = []

    def watch(_: str, message: Message, content: RecordDict) -> RecordDict:
        if message.metadata.message_type == "query.adapt":
            received.append(unfolded(message.content))
        return content

    settings = [
        "algorithm={ name = 'cfl', eps1 = 100.0, eps2 = 0.0, after = 0 }",
        "model.name=mlp",
        "training.rounds=2",
        "training.batch_size=8",
        "flower.clients=5",
        "flower.adapt={ rounds = 1, steps = 2 }",
    ]
    (tmp_path / "run.toml").write_text(Config.load(None, settings).to_toml())
    config = Config.load(tmp_path / "run.toml")
    nodes = handed_out(without_held_out(tiny_federation()), tmp_path / "data")
    nodes["client-4"]["held-out"] = True
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes, tamper=watch)
    grid.online.discard(6)
    serve(config, grid, tmp_path / "run")
    grid.online.add(6)
    run = adapt_newcomers(config, grid, tmp_path / "run")
    assert [record["client"] for record in run.adapted] == ["client-4"]
    state = run.checkpoint().state
    assert len(state.groups) > 1
    (content,) = received
    assert same_bits(tensors(content.array_records["shared"]), state.model_of(4)[0])
    assert "left out client-5 (adapting): client 'client-5' has no group" in capsys.readouterr().out
