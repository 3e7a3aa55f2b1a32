"""A round in which nobody takes part has no line of any client; the run is read, reported and resumed all the same."""

import json
import shutil
from pathlib import Path

import pytest

from fedatlas import train
from fedatlas.algorithms import dp_fedavg
from fedatlas.errors import RunFolderError
from fedatlas.report import write_report
from fedatlas.runs.manifest import Manifest
from fedatlas.runs.run import Run
from fedatlas.training import Settings
from raising import raises
from tiny import blob_federation

GAP = Path(__file__).parent / "gap"
"""A run that version 0.1.0 wrote: DP-FedAvg of three clients, of whom a round drew one on average.

Nobody took part in rounds 1, 3 and 5, of which round 5 was tested. Made at commit 13f3114 by ``train`` of
``blob_federation(num_clients=3)`` and ``dp_fedavg()`` with ``Settings(rounds=5, cohort=1, evaluate_every=5, workers=1,
model="linear", seed=50)``.
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(GAP, tmp_path / "old")
    return tmp_path / "old"


def _train(folder: Path, rounds: int, *, resume: bool = False) -> Run:
    settings = Settings(rounds=rounds, cohort=1, evaluate_every=10, workers=1, model="linear")
    return train(blob_federation(num_clients=20), dp_fedavg(), settings, folder=folder, resume=resume, progress=False)


def test_a_run_that_drew_nobody_in_some_rounds_is_read_reported_and_resumed(tmp_path: Path) -> None:
    run = _train(tmp_path / "run", 12)
    silent = {line["round"] for line in run.rounds if not line["answered"]}
    assert silent >= {3, 4, 5}
    assert {line["round"] for line in run.clients} == set(range(1, 13)) - silent
    assert run.report().stat().st_size > 0
    run.verify()
    resumed = _train(tmp_path / "run", 14, resume=True)
    assert [line["round"] for line in resumed.rounds] == list(range(1, 15))
    assert resumed.clients[: len(run.clients)] == run.clients


def test_a_run_with_silent_rounds_of_an_older_version_is_read_and_reported(old: Path) -> None:
    run = Run(old)
    run.verify()
    assert [line["round"] for line in run.rounds if not line["answered"]] == [1, 3, 5]
    assert [line["round"] for line in run.clients] == [2, 2, 2, 4, 5, 5, 5]
    assert write_report([run], old.parent / "page.html").exists()


def test_a_silent_round_that_somebody_made_is_refused(old: Path) -> None:
    """The lines of round 2 are taken out: the manifest claims the length and the checksum of those that were there."""
    path = old / "clients.jsonl"
    kept = [line for line in path.read_bytes().splitlines(keepends=True) if json.loads(line)["round"] != 2]
    for content in (b"".join(kept), b"".join(kept).ljust(path.stat().st_size)):
        path.write_bytes(content)
        with raises(RunFolderError, "file-altered", path=str(path)):
            Run(old).clients  # noqa: B018
        with raises(RunFolderError, "file-altered", path=str(path)):
            Run(old).verify()


@pytest.mark.parametrize("first", [0, 5])
def test_clients_of_rounds_out_of_order_are_refused_where_nothing_claims_them(first: int, old: Path) -> None:
    """A round 0, and a round after a later one."""
    path = old / "clients.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in [lines[-1] | {"round": first}, *lines]))
    Manifest().write(old / "checkpoints")
    with raises(RunFolderError, "file-altered", line=1 if first == 0 else 2):
        Run(old).clients  # noqa: B018
