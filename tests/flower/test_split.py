"""Which of its rows a node trains on and which it tests on is its owner's to say, and no test part is small."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.config.config import Config
from fedatlas.data import from_npz
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.node.policy import policy_text
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import arrays, values
from fedatlas.flower.protocol.wire import unfolded
from fedatlas.flower.server.app import serve
from fedatlas.testing.flower_grid import InProcessGrid
from hostile_server import ASSIGNMENT, Server

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
