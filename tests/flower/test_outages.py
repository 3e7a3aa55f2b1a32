"""Rounds in which no node answers: the model stays as it is, and the run is read, reported and resumed as any other."""

import os
import signal
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from fedatlas.config import Config
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.server.app import serve
from fedatlas.report import write_report
from fedatlas.runs import Run
from fedatlas.testing import InProcessGrid
from flower_network import PATIENCE, clients, config_of, finished_rounds, handed_out, network, wait_until

ROUNDS = 5


@pytest.mark.attack("a node means harm")
@pytest.mark.parametrize(("every", "away"), [(1, {2, 3}), (5, {1}), (5, {2, 3, 4}), (1, {5})])
def test_a_run_that_nobody_answered_for_some_rounds_is_read_reported_and_resumed(
    every: int, away: set[int], tmp_path: Path
) -> None:
    short = [f"training.evaluate_every={every}", "flower.deadline=0.2", "flower.wait=3"]
    config = config_of("fedavg", *short, count=2, rounds=ROUNDS)
    (tmp_path / "run.toml").write_text(config.to_toml())

    def silent(name: str, message: Message, content: RecordDict) -> RecordDict | None:
        asked = message.metadata.message_type != "query.hello" and int(message.metadata.group_id) in away
        return None if asked else content

    nodes = handed_out(clients(2), tmp_path / "data")
    run = serve(config, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes, tamper=silent), tmp_path / "run")
    assert {line["round"] for line in run.rounds if not line["answered"]} == away
    told = {line["round"] for line in run.rounds if line["answered"] or line.get("evaluation")}
    assert {line["round"] for line in run.clients} == told
    assert write_report([run], tmp_path / "page.html").exists()
    longer = Config.load(tmp_path / "run.toml", [f"training.rounds={ROUNDS + 1}"])
    again = serve(longer, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes), tmp_path / "run")
    assert len(again.rounds) == ROUNDS + 1


@pytest.mark.slow
def test_nodes_that_all_stop_for_two_rounds_leave_a_run_that_is_read_reported_and_resumed(tmp_path: Path) -> None:
    """Their processes are halted after a round, as by a machine that sleeps, and go on two rounds later."""
    settings = ["flower.deadline=6", "training.evaluate_every=40"]
    config = config_of("fedavg", *settings, count=2, rounds=40)
    with network(clients(2), config, tmp_path) as local:
        nodes = [process.pid for name, process in local.processes.items() if name != "superlink"]
        run = local.start_run(tmp_path / "app")
        wait_until(lambda: finished_rounds(tmp_path / "run") >= 1, "the first round")
        for node in nodes:
            os.killpg(node, signal.SIGSTOP)
        stopped = finished_rounds(tmp_path / "run")
        wait_until(lambda: finished_rounds(tmp_path / "run") >= stopped + 3, "rounds that nobody answers")
        for node in nodes:
            os.killpg(node, signal.SIGCONT)
        local.wait(run, PATIENCE)
        silent = {line["round"] for line in Run(tmp_path / "run").rounds if not line["answered"]}
        assert len(silent) >= 2
        assert {line["round"] for line in Run(tmp_path / "run").clients} == set(range(1, 41)) - silent
        assert Run(tmp_path / "run").report().exists()
        local.run(tmp_path / "app", "training.rounds=42", timeout=PATIENCE)
    assert [line["round"] for line in Run(tmp_path / "run").rounds] == list(range(1, 43))
