"""Which of its rows a node trains on and which it tests on is its owner's to say, and no test part is small."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fedatlas.cli.flower import app as commands
from fedatlas.config import Config
from fedatlas.data import Client, Federation, Iid, federate, from_arrays, from_npz
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.node.policy import Policy, policy_text
from fedatlas.flower.node.settings import open_node
from fedatlas.flower.node.split import SPLIT, TOLD, KeptSplit, Told
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import arrays, values
from fedatlas.flower.protocol.wire import unfolded
from fedatlas.flower.server.app import serve
from fedatlas.flower.server.exchange import _read_hello
from fedatlas.testing import InProcessGrid
from flower_network import simulated
from hostile_server import ASSIGNMENT, Server, refused
from raising import raises
from tiny import same_bits

pytestmark = pytest.mark.attack("a server means harm")

WHOLE = {**ASSIGNMENT, "turn": 0, "branch": "", "forgets": False, "version": "0", "keep": ["0"], "test": False}


def patients(count: int = 60) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return five measurements of each patient, and who is ill."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(count, 5)).astype(np.float32)
    return inputs, (inputs[:, 0] + rng.normal(size=count) > 0).astype(np.int64)


def hospital(folder: Path, *settings: str, test: int = 0, policy: str | None = None) -> Server:
    """Return a server of one hospital of 60 patients; ``test`` of them are the test part of its file."""
    server = Server(folder, "model.name=linear", *settings, policy=policy)
    write_patients(server, test)
    server.about |= DataForm.of(from_npz(server.node["data"])).values()
    return server


def write_patients(server: Server, test: int, count: int = 60) -> None:
    inputs, labels = patients(count)
    cut = count - test
    parts = {"x_test": inputs[cut:], "y_test": labels[cut:]} if test else {}
    np.savez(server.node["data"], x_train=inputs[:cut], y_train=labels[:cut], **parts)


def told(server: Server) -> dict[str, Any]:
    """Return what the node says about itself."""
    reply = server.ask("query.hello")
    assert reply.has_content(), reply.error
    return values(unfolded(reply.content), "about")


def scored(server: Server, weight: np.ndarray[Any, Any], bias: list[float]) -> dict[str, Any]:
    """Return the score of a linear model that the server made."""
    model = {"head.weight": torch.tensor(weight, dtype=torch.float32), "head.bias": torch.tensor(bias)}
    reply = server.ask("evaluate", WHOLE, shared=arrays(model), buffers=arrays({}))
    assert reply.has_content(), reply.error
    return values(unfolded(reply.content), "metrics")


@pytest.mark.parametrize(("test", "tested"), [(1, 0), (9, 0), (10, 10)])
def test_a_test_part_of_fewer_examples_than_the_policy_wants_is_never_tested(
    test: int, tested: int, tmp_path: Path
) -> None:
    server = hospital(tmp_path, test=test)
    assert told(server)["num_test"] == tested
    score = scored(server, np.zeros((2, 5)), [10.0, 0.0])
    assert score["num_examples"] == tested
    assert ("metric/loss" in score) == bool(tested)
    model = {"head.weight": torch.zeros(2, 5), "head.bias": torch.zeros(2)}
    reply = server.ask("train", {**WHOLE, "test": True, "test_own": True}, shared=arrays(model), buffers=arrays({}))
    content = unfolded(reply.content)
    assert values(content, "tested")["num_examples"] == tested
    assert values(content, "score").get("num_examples", 0) == tested


def test_a_policy_that_changes_counts_for_the_next_test(tmp_path: Path) -> None:
    """The node keeps its network from message to message, and must not keep the test part with it."""
    server = hospital(tmp_path, test=12)
    assert scored(server, np.zeros((2, 5)), [1.0, 0.0])["num_examples"] == 12
    Path(server.node["policy"]).write_text(policy_text().replace("least_examples = 10", "least_examples = 13"))
    assert scored(server, np.zeros((2, 5)), [1.0, 0.0])["num_examples"] == 0


@pytest.mark.parametrize("tests", [(9, 20), (9, 9)])
def test_clients_without_a_test_part_train_with_the_others(tests: tuple[int, int], tmp_path: Path) -> None:
    settings = ["algorithm.name=fedavg", "model.name=linear", "training.rounds=2", "flower.clients=2"]
    (tmp_path / "run.toml").write_text(Config.load(None, settings).to_toml())
    nodes = {}
    for name, test in zip(("a", "b"), tests, strict=True):
        (tmp_path / name).mkdir()
        own = hospital(tmp_path / name, test=test)
        nodes[name] = {**own.node, "client": name}
    config = Config.load(tmp_path / "run.toml")
    run = serve(config, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes), tmp_path / "run")
    assert [line["answered"] for line in run.rounds] == [[0, 1], [0, 1]]
    assert all(not line["left_out"] for line in run.rounds)
    assert [c["num_test"] for c in run.resolved["federation"]["clients"]] == [0 if n < 10 else n for n in tests]
    assert run.report().exists()
    assert {line["client"] for line in run.clients if "accuracy" in line} == ({"b"} if tests[1] >= 10 else set())


REACHING = [
    "data.test_fraction=0.001",
    "data.test_fraction=0.9",
    "seeds.partition=7",
    "seed=7",
    "data.folds=5;data.fold=1",
    "data.test=client;data.test_fraction=0.5",
]


@pytest.mark.parametrize("remembers", [True, False])
def test_no_setting_of_a_run_reaches_the_split(remembers: bool, tmp_path: Path) -> None:
    """With a folder that keeps the parts, and without one: each is asked of a node that was asked nothing before."""
    weight, bias = np.ones((2, 5)) * [[1.0], [-1.0]], [0.5, 0.0]
    found = []
    for number, setting in enumerate(["", *REACHING]):
        (tmp_path / str(number)).mkdir()
        server = hospital(tmp_path / str(number))
        if not remembers:
            del server.grid.contexts[1].node_config["memory"]
        server.set(setting)
        found.append([told(server)["num_train"], told(server)["num_test"], scored(server, weight, bias)])
    assert found[0][:2] == [45, 15]
    assert found == [found[0]] * len(found)


def nearest(server: Server) -> float:
    """Return how near to a patient a server comes that reads the mean loss of linear models as that of one example."""
    first = scored(server, np.zeros((2, 5)), [10.0, 0.0])["metric/loss"]
    row = []
    for column in range(5):
        weight = np.zeros((2, 5))
        weight[0, column] = 1.0
        size = math.log(math.expm1(scored(server, weight, [0.0, 0.0])["metric/loss"]))
        row.append(size if first >= 1 else -size)
    distances = np.linalg.norm(patients()[0] - np.array(row), axis=1)
    return float(distances.min())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_patient_is_rebuilt_from_tests(seed: int, tmp_path: Path) -> None:
    """Six tests of a test part of one patient were that patient, to seven digits."""
    server = hospital(tmp_path)
    server.set(f"data.test_fraction=0.001;seeds.partition={seed}")
    assert nearest(server) > 0.1
    assert told(server)["num_test"] == 15


HEAD = "name,age,pressure,glucose,hiv,sick\n"


def rows(count: int = 60, start: int = 0) -> list[str]:
    """Return lines of a table of patients."""
    rng = np.random.default_rng(5)
    lines = []
    for i in range(start + count):
        age, pressure, glucose = rng.integers(20, 90), rng.normal(120, 15), rng.normal(5, 1)
        hiv, sick = ["no", "no", "no", "positive"][rng.integers(4)], rng.integers(2)
        lines.append(f"p{i},{age},{pressure:.1f},{glucose:.2f},{hiv},{sick}\n")
    return lines[start:]


def clinic(folder: Path, *, policy: str | None = None) -> Server:
    """Return a server of one clinic with a table."""
    server = Server(folder, "model.name=linear", policy=policy)
    table = folder / "own.csv"
    table.write_text(HEAD + "".join(rows()))
    server.node["data"] = server.grid.contexts[1].node_config["data"] = str(table)
    return server


LABEL = 'data.label=sick;data.drop=["name"]'


def test_no_patient_is_told_by_the_difference_of_two_sums(tmp_path: Path) -> None:
    """Two splits that differ by a row gave the row: b - a from the sums, b + a from the squares."""
    server = clinic(tmp_path)
    found = []
    for seed in range(3):
        server.set(f"{LABEL};data.test_fraction=0.001;seeds.partition={seed}")
        found.append(told(server))
    sums = [json.loads(about["sums"]) for about in found]
    known = [(float(age), float(pressure)) for _, age, pressure, *_ in (line.split(",") for line in rows())]
    for one, two in pairwise(sums):
        totals, squares = (np.array(one[name][:2]) - np.array(two[name][:2]) for name in ("total", "squares"))
        with np.errstate(divide="ignore", invalid="ignore"):
            rebuilt = (squares / totals - totals) / 2
        assert not any(np.allclose(rebuilt, row, atol=0.01) for row in known), "this is a patient"
    assert sums == [sums[0]] * 3
    assert {(about["num_train"], about["num_test"]) for about in found} == {(45, 15)}
    assert sums[0]["columns"] == ["age", "pressure", "glucose", "hiv"]
    assert [a + b for a, b in zip(sums[0]["count"], sums[0]["missing"], strict=True)] == [45] * 4


@pytest.mark.parametrize("other", ["data.label=hiv", LABEL.replace("name", "age"), f'{LABEL};data.categorical=["age"]'])
def test_a_table_is_told_once_and_read_in_no_other_way(other: str, tmp_path: Path) -> None:
    server = clinic(tmp_path)
    server.set(LABEL)
    first = told(server)
    server.set(other)
    for kind in ("query.hello", "train"):
        reply = server.ask(kind)
        assert refused(reply, "its table is told once, and was read with other settings then (data."), reply
        assert refused(reply, "can delete table.json")
    assert server.log()[-1]["answer"] == "refused"
    server.set(f"{LABEL};optimizer.lr=0.5")
    assert told(server) == first
    (server.memory / "table.json").unlink()
    server.set(other)
    assert told(server)["classes"] or told(server)["sums"] != first["sums"]


def test_a_refused_run_does_not_settle_how_a_table_is_read(tmp_path: Path) -> None:
    server = clinic(tmp_path)
    server.set("data.label=hiv;algorithm.name=scaffold")
    assert server.ask("query.hello").has_error()
    server.set("data.label=no such column")
    assert server.ask("query.hello").has_error()
    server.set(LABEL)
    assert told(server)["num_train"] == 45


def test_rows_stay_in_their_parts_and_later_ones_wait_for_the_owner(tmp_path: Path) -> None:
    """Rows that moved in the file are the same rows; ten new ones are told of together, fewer not at all."""
    server, table = clinic(tmp_path), tmp_path / "own.csv"
    server.set(LABEL)
    first, kept = told(server), KeptSplit.read(server.memory / "split.json")
    lines = rows()
    table.write_text(HEAD + "".join(reversed(lines)) + "".join(rows(9, 60)))
    again = told(server)
    assert (again["num_train"], again["num_test"], again["sums"]) == (45, 15, first["sums"])
    assert KeptSplit.read(kept.path).waiting == 9
    Path(server.node["policy"]).write_text(policy_text().replace("test_fraction = 0.25", "test_fraction = 0.75"))
    assert told(server) == again
    command = ["split", str(server.memory), "--let-in"]
    assert "9 left out; rows that came later are let in" in " ".join(
        CliRunner().invoke(commands, command).output.split()
    )
    assert told(server) == again, "nine rows are too few"
    table.write_text(HEAD + "".join(lines) + "".join(rows(20, 60)))
    third = told(server)
    assert (third["num_train"], third["num_test"], third["num_summed"]) == (45, 30, 45), "five are too few"
    assert third["sums"] == first["sums"]
    table.write_text(HEAD + "".join(lines[5:]) + "".join(rows(50, 60)))
    fourth = told(server)
    assert fourth["num_train"] + fourth["num_test"] == 70, "who went is gone, who came waits"
    assert _read_hello(server.ask("query.hello")).member.num_train == fourth["num_train"]
    table.write_text(HEAD + "".join(rows(30, 200)))
    assert refused(server.ask("query.hello"), "its data cannot be used")


def test_the_owner_s_file_says_the_split_and_it_is_the_simulator_s(tmp_path: Path) -> None:
    """By default, by the policy's seed and share, and in folds."""
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("", {"seed": 0}, {}),
        ("test_fraction = 0.5\nsplit_seed = 3", {"seed": 3, "test_fraction": 0.5}, {}),
        ("folds = 4\nfold = 2\nsplit_seed = 1", {"seed": 1}, {"fold": 2, "folds": 4, "seed": 1}),
    ]
    for number, (text, given, fold) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        server = hospital(tmp_path / str(number), policy=text)
        wanted = federate(from_npz(server.node["data"]), Iid(num_clients=1), test="client", **given)
        (client,) = (wanted.fold(**fold) if fold else wanted).clients
        for _ in range(2):  # as it is drawn, and as it was kept
            (own,) = open_node(server.node, Config.load(None, ["seed=9"])).federation.clients
            assert (own.train.tolist(), own.test.tolist()) == (client.train.tolist(), client.test.tolist())


def test_a_network_has_the_simulator_s_bits_where_its_split_is_the_nodes(tmp_path: Path) -> None:
    """Two nodes whose files say a half and the seed 3; the run's config says something else, and changes nothing."""
    settings = ["algorithm.name=fedavg", "model.name=linear", "training.rounds=2", "flower.clients=2", "seed=0"]
    config = Config.load(None, [*settings, "data.test_fraction=0.1", "seeds.partition=9"])
    (tmp_path / "run.toml").write_text(config.to_toml())
    nodes, parts, start = {}, [], 0
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        own = hospital(tmp_path / name, policy="test_fraction = 0.5\nsplit_seed = 3")
        nodes[name] = {**own.node, "client": name}
        data = from_npz(own.node["data"])
        (client,) = federate(data, Iid(num_clients=1), test="client", test_fraction=0.5, seed=3).clients
        parts.append(Client(name=name, train=client.train + start, test=client.test + start))
        start += len(data)
    both = from_arrays(np.concatenate([patients()[0]] * 2), np.concatenate([patients()[1]] * 2))
    run = serve(config, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes), tmp_path / "run")
    here = simulated(config, Federation(data=both, clients=tuple(parts)), tmp_path / "here")
    assert same_bits(run.parameters(), here.parameters())
    assert run.last["accuracy"] == here.last["accuracy"]
    assert [client["num_test"] for client in run.resolved["federation"]["clients"]] == [30, 30]


def test_texts_are_cut_in_one_way(tmp_path: Path) -> None:
    """Windows of other lengths are other rows, and would let a server compare parts."""
    server = clinic(tmp_path)
    server.node["data"] = server.grid.contexts[1].node_config["data"] = str(tmp_path / "texts.csv")
    lines = "".join(f"text number {i},{i % 2},ward\n" for i in range(60))
    (tmp_path / "texts.csv").write_text("text,label,client\n" + lines)
    server.set("data.context=8")
    first = told(server)
    assert (first["num_train"], first["num_test"]) == (45, 15)
    server.set("data.context=9")
    assert refused(server.ask("query.hello"), "with other settings then (data.context)")
    (tmp_path / "texts.csv").write_text("text,label,client\n" + lines + "äöü,1,ward\n")
    server.set("data.context=8")
    about = told(server)
    assert (about["num_train"], about["num_test"]) == (45, 15), "new characters number the others anew, rows stay"


def test_an_official_test_part_stays_what_it_is(tmp_path: Path) -> None:
    server = hospital(tmp_path, "data.folds=3", test=20)
    assert (told(server)["num_train"], told(server)["num_test"]) == (40, 20)
    inputs, labels = patients(75)
    np.savez(server.node["data"], x_train=inputs[:40], y_train=labels[:40], x_test=inputs[40:], y_test=labels[40:])
    assert (told(server)["num_train"], told(server)["num_test"]) == (40, 20)
    assert CliRunner().invoke(commands, ["split", str(server.memory), "--let-in"]).exit_code == 0
    assert (told(server)["num_train"], told(server)["num_test"]) == (40, 35)


def test_pictures_stay_in_their_parts_whatever_their_size(tmp_path: Path) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / "own"
    for i in range(24):
        (folder / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"c{i % 2}" / f"{i:02}.png")
    node = {"client": "a", "data": str(folder), "memory": str(tmp_path / "memory")}
    parts = []
    for setting in ("data.size=8", "data.size=4", "seed=5"):
        (own,) = open_node(node, Config.load(None, [setting])).federation.clients
        parts.append((own.train.tolist(), own.test.tolist()))
    assert parts == [parts[0]] * 3
    Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / "c0" / "00-new.png")
    (own,) = open_node(node, Config.load(None, [])).federation.clients
    assert [i + 1 for i in parts[0][1]] == own.test.tolist(), "a new picture moves the others, and is in no part"
    assert len(own.train) == len(parts[0][0])


def test_equal_rows_are_counted_one_by_one(tmp_path: Path) -> None:
    server = hospital(tmp_path)
    np.savez(server.node["data"], x=np.ones((60, 5)), y=np.arange(60) % 2)
    for _ in range(2):
        assert (told(server)["num_train"], told(server)["num_test"]) == (45, 15)
    np.savez(server.node["data"], x=np.ones((50, 5)), y=np.arange(50) % 2)
    about = told(server)
    assert about["num_train"] + about["num_test"] == 50


@pytest.mark.parametrize("text", ["test_fraction = 1.0", "folds = 1", "folds = 3\nfold = 3", "fold = -1"])
def test_a_split_that_cannot_be_drawn_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with raises(UsageError, "out-of-range"):
        Policy.load(tmp_path / "policy.toml")


@pytest.mark.parametrize(
    "text", ["", "[]", "5", '{"train": 5, "test": 7}', '{"train": [1], "test": []}', '{"waiting": []}', "[" * 100_000]
)
def test_a_damaged_split_or_table_is_one_line(text: str, tmp_path: Path) -> None:
    """Its owner is told which file; nothing is drawn again in silence."""
    for name, read in ((SPLIT, lambda: KeptSplit.read(tmp_path / SPLIT)), (TOLD, lambda: Told(tmp_path, {}))):
        (tmp_path / name).write_text(text)
        with pytest.raises(RunFolderError, match="cannot be read"):
            read()
