"""A node's worker: it answers messages over a socket, keeps data and network, and ends with the node."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from fedatlas.config import Config
from fedatlas.flower.node import front
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.node.front import Front
from fedatlas.flower.node.line import SOCKET, is_own
from fedatlas.flower.server.app import serve
from fedatlas.runs import Run
from fedatlas.testing import InProcessGrid, state_tensors, tiny_federation
from flower_network import handed_out, simulated, wait_until, without_held_out
from tiny import same_bits


def _config(folder: Path, *settings: str) -> Config:
    own = [
        "algorithm.name=scaffold",
        "model.name=mlp",
        "training.rounds=3",
        "training.cohort=4",
        "training.batch_size=8",
        "flower.clients=6",
    ]
    (folder / "run.toml").write_text(Config.load(None, [*own, *settings]).to_toml())
    return Config.load(folder / "run.toml")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A worker beside a program that only waits, as beside a SuperNode."""
    waits = f'echo "${SOCKET}"; exec sleep 600'
    command = [sys.executable, "-m", "fedatlas.flower.node.worker", "sh", "-c", waits]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert node.stdout is not None
    path = node.stdout.readline().strip()
    wait_until(Path(path).exists, "the worker's socket")
    monkeypatch.setenv(SOCKET, path)
    yield node
    with suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGTERM)
    node.wait()
    wait_until(lambda: not Path(path).parent.exists(), "the worker to leave nothing behind")
    node.stdout.close()


def _same_evaluations(one: Run, other: Run) -> None:
    for first, second in zip(one.rounds, other.rounds, strict=True):
        for name in ("accuracy", "loss", "worst_client"):
            assert first["evaluation"][name] == pytest.approx(second["evaluation"][name])


def test_a_run_through_a_worker_ends_with_the_simulators_bits(
    worker: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, federation = _config(tmp_path), without_held_out(tiny_federation("features"))
    asked, answers = front.ask_worker, Counter[bool]()

    def counted(*arguments: object) -> Message | None:
        reply = asked(*arguments)  # type: ignore[arg-type]
        answers[reply is not None] += 1
        return reply

    monkeypatch.setattr(front, "ask_worker", counted)
    grid = InProcessGrid(Front(tmp_path / "run.toml"), handed_out(federation, tmp_path / "data"))
    run = serve(config, grid, tmp_path / "flower")
    here = simulated(config, federation, tmp_path / "here")
    assert same_bits(state_tensors(run.checkpoint().state), state_tensors(here.checkpoint().state))
    _same_evaluations(run, here)
    assert answers.keys() == {True}
    path = Path(os.environ[SOCKET])
    assert is_own(path)
    worker.kill()
    wait_until(lambda: not path.parent.exists(), "the worker to end with its node")


def test_flowers_process_for_a_message_is_forked_from_one_that_has_flower_loaded(
    worker: subprocess.Popen[str], tmp_path: Path
) -> None:
    """The program runs where Flower cannot be imported: its fork has it. Without a starter it loads Flower itself."""
    folder = Path(os.environ[SOCKET]).parent
    program = str(folder / "bin" / "flwr-clientapp")
    (tmp_path / "broken" / "flwr").mkdir(parents=True)
    (tmp_path / "broken" / "flwr" / "__init__.py").write_text("raise ImportError('loaded again')")
    wait_until((folder / "door").exists, "the starter's door")
    broken = {**os.environ, "PYTHONPATH": str(tmp_path / "broken")}
    said = subprocess.run([program, "--help"], env=broken, capture_output=True, text=True, cwd=tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    assert "usage: flwr-clientapp" in said.stdout
    wrong = subprocess.run([program, "--wrong"], env=broken, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "--token" in wrong.stderr
    (folder / "door").unlink()
    alone = subprocess.run([program, "--help"], env=broken, capture_output=True, text=True)
    assert alone.returncode == 1
    assert "loaded again" in alone.stderr


def test_without_a_worker_the_process_does_the_work_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKET, str(tmp_path / "nothing"))
    config, federation = _config(tmp_path, "training.rounds=1"), without_held_out(tiny_federation("features"))
    grid = InProcessGrid(Front(tmp_path / "run.toml"), handed_out(federation, tmp_path / "data"))
    assert len(serve(config, grid, tmp_path / "run").rounds) == 1


def test_a_socket_in_a_folder_that_others_can_enter_is_not_used() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as door:
        path = Path(folder) / "socket"
        assert not is_own(path)
        door.bind(str(path))
        assert is_own(path)
        path.parent.chmod(0o755)
        assert not is_own(path)


def test_a_process_for_a_message_loads_no_torch() -> None:
    code = "import sys, fedatlas.flower; fedatlas.flower.make_client_app('run.toml'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_client_gets_one_message_a_round_where_all_rounds_are_tested(tmp_path: Path) -> None:
    """Four of six clients train in a round: they test when they get the model, the other two get it for that alone."""
    config, federation = _config(tmp_path), without_held_out(tiny_federation("features"))
    seen: Counter[tuple[str, str]] = Counter()

    def count(name: str, message: Message, content: RecordDict) -> RecordDict:
        seen[name, message.metadata.message_type] += 1
        return content

    nodes = handed_out(federation, tmp_path / "data")
    run = serve(config, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes, tamper=count), tmp_path / "run")
    here = simulated(config, federation, tmp_path / "here")
    _same_evaluations(run, here)
    assert same_bits(state_tensors(run.checkpoint().state), state_tensors(here.checkpoint().state))
    # Three rounds: 3 x 4 trainings, two of which test; 2 x 2 tests alone, and 6 after the last round.
    kinds = Counter(kind for (_, kind), times in seen.items() for _ in range(times))
    assert (kinds["train"], kinds["evaluate"]) == (12, 10)
    assert [line["tested"]["model"] for line in run.rounds] == ["the aggregated shared parameters"] * 3
    assert {line["round"] for line in run.clients if "accuracy" in line} == {1, 2, 3}
    apart = [line["evaluate"] < line["train"] / 2 for line in run.timings]
    assert apart[:2] == [True, True], "a test with the next training is not timed twice"
