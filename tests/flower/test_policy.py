"""A node and a server that asks for more than agreed: the policy, and the paths that a server names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from typer.testing import CliRunner

from fedatlas.cli.flower import app as commands
from fedatlas.config import Config
from fedatlas.data import from_npz
from fedatlas.errors import FedatlasError, RunFolderError, UsageError
from fedatlas.flower.node.apps import check_app
from fedatlas.flower.node.gate import disclosures_of, wanted_by
from fedatlas.flower.node.policy import Policy, Wanted, changed_settings, policy_text
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import arrays
from fedatlas.flower.server.app import serve
from fedatlas.flower.server.transport import FlowerClients
from fedatlas.runs import inside
from hostile_server import Server, refused
from raising import raises

pytestmark = pytest.mark.attack("a server means harm")

INDEX = '{ source = "client2vec", strategy = "federated", epochs = 1, encoder = "builtin" }'


REQUESTS: dict[str, tuple[str, str, str]] = {
    "an algorithm that takes more": ("algorithm.name=scaffold", "train", "disclosure 'scaffold'"),
    "its loss before training": ("algorithm.name=term", "query.survey", "disclosure 'term'"),
    "label counts": ("algorithm.name=feddisco", "query.introduce", "disclosure 'feddisco'"),
    "more under a harmless base": (
        'algorithm={ name = "clustered", base = { name = "scaffold" } }',
        "train",
        "disclosure 'scaffold'",
    ),
    "embeddings with labels": (
        'atlas.make={ source = "client2vec", strategy = "global", epochs = 1 }',
        "query.pairs",
        "disclosure 'map client2vec global'",
    ),
    "a vector": ('atlas.make={ source = "label-histogram" }', "query.row", "disclosure 'map label-histogram'"),
    "losses of several models": ("algorithm.name=ifca", "query.losses", "groups of clients"),
    "a function": ('algorithm={ name = "subprocess:getoutput", cmd = "touch done" }', "query.hello", "is not allowed"),
    "a function as a base": (
        'algorithm={ name = "feddisco", base = { name = "os:system", command = "touch done" } }',
        "query.hello",
        "is not allowed",
    ),
    "a file of the node as an atlas": ('atlas.file="/etc/passwd"', "query.hello", "setting atlas.file"),
    "a file of the node as weights": (
        'model={ name = "resnet18", pretrained = "/etc/passwd" }',
        "query.hello",
        "setting model.pretrained",
    ),
    "a model of the internet": ('model.name="hf:some/model"', "query.hello", "setting model.name"),
    "a cache in another folder": (
        'atlas.make={ source = "feature-average", encoder_options = { cache = "../../x" } }',
        "query.hello",
        "setting atlas.make.encoder_options.cache",
    ),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_server_that_asks_for_more_than_agreed_gets_a_reason(
    request_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app's config asks for nothing; the run's settings do. The node's word counts, and its owner can read it."""
    monkeypatch.chdir(tmp_path)
    setting, kind, said = REQUESTS[request_]
    server = Server(tmp_path)
    server.set(setting)
    reply = server.ask(kind)
    assert refused(reply, said), reply.error if reply.has_error() else reply.content
    (entry,) = server.log()
    assert (entry["answer"], entry["request"]) == ("refused", kind)
    assert "left" not in entry
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("run", ["../../victim", "/victim", "..", ".", "", "a/b", "XYZ", "0" * 65, 7])
@pytest.mark.parametrize("kind", ["train", "query.adapt"])
def test_a_run_s_name_leads_nowhere(run: object, kind: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim" / "model" / "checkpoints" / "precious"
    victim.parent.mkdir(parents=True)
    victim.write_text("precious")
    name = run.replace("/victim", str(tmp_path / "victim")) if run == "/victim" else run
    server = Server(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*") if "state" not in path.parts)
    reply = server.train(run=name) if kind == "train" else server.ask(kind, {"run": name, "adapt": "{}"})
    assert reply.has_error()
    assert victim.read_text() == "precious"
    assert sorted(path for path in tmp_path.rglob("*") if "state" not in path.parts) == before
    assert [entry["answer"] for entry in server.log()] == ["failed"]


@pytest.mark.parametrize("run", ["../../victim", "VICTIM"])
def test_a_whole_run_whose_name_leads_elsewhere_writes_nothing(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else about the run is right: a node that took the name would keep SCAFFOLD's memory there."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "round-000009.safetensors").write_text("precious")
    name = run.replace("VICTIM", str(victim))
    server = Server(tmp_path, "algorithm.name=scaffold", "training.rounds=1", policy=policy_text(everything=True))
    honest = FlowerClients._about
    monkeypatch.setattr(
        FlowerClients, "_about", lambda *given, **more: ConfigRecord({**honest(*given, **more), "run": name})
    )
    with pytest.raises(FedatlasError):
        serve(Config.load(tmp_path / "run.toml"), server.grid, tmp_path / "run")
    assert [path.name for path in victim.rglob("*")] == ["round-000009.safetensors"]
    assert {entry["answer"] for entry in server.log() if entry["request"] == "train"} == {"failed"}


BOMBS: dict[str, dict[str, Any]] = {
    "an atlas of 4 TB": {"atlas": json.dumps({"widths": {"feature": 10**12}, "strategy": None})},
    "an atlas without widths": {"atlas": "{}"},
    "no JSON": {"atlas": "[" * 100_000},
    "an example of 4 TB": {"shape": [10**6, 10**6]},
    "300,000 classes": {"classes": [str(i) for i in range(300_000)]},
    "a record of another model": {"adapt": "{}", "round": 1, "resolved": '{"model": {"name": "cnn", "options": {}}}'},
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_message_that_is_too_large_or_makes_no_sense_costs_the_node_nothing(bomb: str, tmp_path: Path) -> None:
    server = Server(tmp_path, policy=policy_text(Wanted(disclosures=["adapt"])))
    kind = "query.adapt" if "adapt" in BOMBS[bomb] else "query.introduce"
    reply = server.ask(kind, BOMBS[bomb], shared=arrays({}), buffers=arrays({}))
    assert reply.has_error()
    assert "Traceback" not in str(reply.error.reason)
    assert server.log()[-1]["answer"] == "failed"


def test_too_few_examples_and_too_many_bytes_are_refused(tmp_path: Path) -> None:
    policy = policy_text().replace("least_examples = 10", "least_examples = 1_000")
    few = Server(tmp_path, "training.batch_size=1_000", policy=policy)
    assert refused(few.ask("query.hello"), "fewer than 1000 examples")
    short = Server(tmp_path, policy=policy_text().replace("most_bytes = 1_073_741_824", "most_bytes = 100"))
    assert refused(short.ask("query.hello"), "100 are allowed")
    assert [entry["answer"] for entry in short.log()] == ["refused", "refused"]


def test_a_class_of_few_examples_leaves_no_trace_in_a_vector(tmp_path: Path) -> None:
    """Of four classes the last two have one and two examples; the first two's means stay as they are."""
    rng, labels = np.random.default_rng(0), np.array([0] * 9 + [1] * 8 + [2] + [3] * 2)
    images = rng.integers(0, 255, (20, 3, 8, 8), dtype=np.uint8)
    make = 'atlas.make={ source = "class-prototypes" }'
    policy = policy_text(everything=True)
    found = []
    for number, text in enumerate((policy, policy.replace("least_of_class = 1", "least_of_class = 3"))):
        (tmp_path / str(number)).mkdir()
        server = Server(tmp_path / str(number), make, policy=text)
        np.savez(server.node["data"], x_train=images, y_train=labels, x_test=images[:1], y_test=labels[:1])
        server.about |= DataForm.of(from_npz(server.node["data"])).values()
        found.append([server.ask(kind).content.array_records["row"] for kind in ("query.row", "query.sums")])
    (all_rows, all_sums), (rows, sums) = found
    (name,) = rows
    before, after = (own[name].numpy().reshape(4, -1) for own in (all_rows, rows))
    assert (np.abs(before).sum(1) > 0).all()
    assert (np.abs(after).sum(1) > 0).tolist() == [True, True, False, False]
    assert all_sums["counts"].numpy().tolist() == [9, 8, 1, 2]
    assert sums["counts"].numpy().tolist() == [9, 8, 0, 0]
    assert (sums["sums"].numpy()[:2] == all_sums["sums"].numpy()[:2]).all()
    assert not sums["sums"].numpy()[2:].any()


def test_a_policy_that_cannot_be_read_lets_nothing_leave(tmp_path: Path) -> None:
    for text in ("algorithms = 3", "algorithm = []", "[", "least_examples = true"):
        server = Server(tmp_path, policy=text)
        assert server.ask("query.hello").has_error(), text
    Path(server.node["policy"]).unlink()
    assert server.ask("query.hello").has_error()


def test_a_policy_lets_what_it_names_and_the_log_tells_what_left(tmp_path: Path) -> None:
    """A whole run: SCAFFOLD over an agreed policy, from hello to the last test."""
    config = Config.load(None, ["algorithm.name=scaffold", "model.name=mlp", "training.rounds=2", "flower.clients=1"])
    server = Server(
        tmp_path,
        "algorithm.name=scaffold",
        "training.rounds=2",
        "training.evaluate_every=2",
        policy=policy_text(wanted_by(config)),
    )
    run = serve(Config.load(tmp_path / "run.toml"), server.grid, tmp_path / "run")
    log = server.log()
    assert {entry["answer"] for entry in log} == {"sent"}
    assert [entry["request"] for entry in log] == server.grid.kinds
    trained = [entry for entry in log if entry["request"] == "train"]
    assert [entry["round"] for entry in trained] == [1, 2]
    assert {entry["run"] for entry in trained} == {run.resolved["identity"]}
    assert trained[0]["left"]["note/scaffold"] == trained[0]["left"]["change"]
    assert log[0]["left"] == {"about": sorted(server.ask("query.hello").content.config_records["about"])}
    sent = sum(entry["bytes"] for entry in log if entry["round"] == 1)
    assert sent == trained[0]["bytes"] == run.rounds[0]["bytes"][server.node["client"]]["up"]


@pytest.mark.parametrize("whose", ["file", "folder"])
def test_a_policy_that_everybody_can_write_lets_nothing_leave(whose: str, tmp_path: Path) -> None:
    path = tmp_path / "own" / "policy.toml"
    path.parent.mkdir()
    path.write_text("least_examples = 5")
    assert Policy.load(path).least_examples == 5
    (path if whose == "file" else path.parent).chmod(0o777)
    with raises(RunFolderError, "file-unsafe"):
        Policy.load(path)
    with raises(RunFolderError, "file-unsafe"):
        check_app(b"", {"policy": str(path), "memory": None, "marks": str(tmp_path)})


def test_nothing_leaves_that_cannot_be_logged(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.ask("query.hello")
    (server.memory / "audit.jsonl").write_text("broken\n")
    assert refused(server.ask("query.hello"), "its memory cannot be read or saved")


def test_the_command_writes_a_policy_that_fits_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    assert run(commands, ["policy"]).exit_code == 0
    assert Policy.load("policy.toml") == Policy(
        **{k: list(v) if isinstance(v, tuple) else v for k, v in vars(Policy()).items()}
    )
    again = run(commands, ["policy"])
    assert again.exit_code == 2
    assert "--overwrite" in again.output
    config = Config.load(None, ["algorithm.name=feddisco", 'algorithm.base="scaffold"', f"atlas.make={INDEX}"])
    Path("run.toml").write_text(config.to_toml())
    result = run(commands, ["policy", "--for", "run.toml", "--overwrite", "--set", 'atlas.use=["group"]'])
    assert result.exit_code == 0, result.output
    policy = Policy.load("policy.toml")
    assert list(policy.disclosures) == ["tables", "feddisco", "scaffold", "map client2vec federated"]
    assert list(policy.sharing) == ["all", "groups"]
    policy.check_config(Config.load("run.toml"))


def test_the_last_pattern_that_fits_a_setting_counts() -> None:
    config = Config.load(None, ["training.rounds=3", "optimizer.lr=0.5", "model.name=mlp"])
    assert dict(changed_settings(config.values)) == {
        "training.rounds": 3,
        "optimizer.lr": 0.5,
        "model.name": "mlp",
    }
    for settings in (["*"], ["training.*", "optimizer.lr", "model.name=mlp"], ["!*", "*"]):
        Policy(settings=settings).check_config(config)
    for settings in ([], ["training.*", "optimizer.lr"], ["*", "!model.name=m*"], ["*", "!optimizer.*"]):
        with raises(UsageError, "against-policy", kind="setting"):
            Policy(settings=settings).check_config(config)


def test_what_an_algorithm_takes_goes_by_the_names_that_the_list_shows() -> None:
    for name in ("scaffold", "afl", "fedmix", "fedgcr"):
        config = Config.load(None, [f"algorithm.name={name}"])
        assert list(disclosures_of(config.client_algorithm(), config)) == [name]
    assert wanted_by(Config.load(None, ["algorithm.name=fedpce"])).disclosures == []


def test_a_policy_that_lets_an_atlas_be_made_lets_it_be_used(tmp_path: Path) -> None:
    own = ["algorithm.name=fedavg", 'atlas.make={source = "label-histogram"}', 'atlas.use=["sample", "aggregate"]']
    config = Config.load(None, own)
    assert wanted_by(config).disclosures == ["map label-histogram"]
    server = Server(tmp_path, *own, "training.rounds=1", policy=policy_text(wanted_by(config)))
    serve(Config.load(tmp_path / "run.toml"), server.grid, tmp_path / "run")
    assert {entry["answer"] for entry in server.log()} == {"sent"}


def test_a_run_that_no_client_answers_is_an_error_and_says_why(tmp_path: Path) -> None:
    """The node agrees at the hello and lets nothing of a training leave."""
    server = Server(tmp_path, "training.rounds=1", policy=policy_text().replace("1_073_741_824", "3000"))
    with raises(FedatlasError, "nobody-answered") as caught:
        serve(Config.load(tmp_path / "run.toml"), server.grid, tmp_path / "run")
    assert "3,000 are allowed" in str(caught.value)


@pytest.mark.parametrize("name", ["..", "../x", "/etc/passwd", "a/b", "", ".", "a\0b", "back\\slash", "link"])
def test_a_name_that_leads_out_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with raises(RunFolderError, "path-outside", got=name):
        inside(tmp_path, name)
    assert inside(tmp_path, "round-000001.safetensors") == tmp_path / "round-000001.safetensors"


def test_the_reply_of_a_node_is_the_same_with_and_without_a_policy(tmp_path: Path) -> None:
    """Where the run leaves out the small batches that a policy does not allow."""
    replies = []
    for place, policy in (("a", policy_text()), ("b", policy_text(everything=True))):
        (tmp_path / place).mkdir()
        server = Server(tmp_path / place, policy=policy)
        server.set("training.least_batch=10")
        config = Config.load(tmp_path / place / "run.toml", ["training.rounds=1"])
        replies.append(serve(config, server.grid, tmp_path / place / "run").checkpoint().state.shared)
    assert all(torch.equal(replies[0][name], replies[1][name]) for name in replies[0])
