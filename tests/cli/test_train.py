"""``fedatlas train``: one run, from a config, a table or a recipe of the user."""

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from commands import SMALL, invoke
from fedatlas.runs import Run


def test_train_keeps_a_run_and_its_report(arrays: Path, tmp_path: Path) -> None:
    result = invoke("train", "--data", arrays, *SMALL, "--algorithm", "fedprox", "--folder", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "fedprox" in result.output
    run = Run(tmp_path / "run")
    assert len(run.rounds) == 2
    assert (tmp_path / "run/report.html").exists()
    assert (tmp_path / "run/config.toml").exists()


def test_a_table_is_trained_on_and_the_command_says_what_it_found(tmp_path: Path) -> None:
    result = invoke("train", "--data", "heart", "--model", "linear", "--rounds", "2", "--folder", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert re.search(r"heart: 920 rows; label 'num' \(ill: 509, healthy: 411\); client 'hospital' \(4: ", result.output)
    assert "heart: 31 inputs from 13 columns" in result.output
    (tmp_path / "t.csv").write_text("site,age,result\na,1,2\nb,2,3\n")
    result = invoke("train", "--data", str(tmp_path / "t.csv"))
    assert result.exit_code == 2
    assert "no column is the label; the columns are 'site', 'age', 'result'" in result.output


OWN = """
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import fedatlas


@dataclass(frozen=True, kw_only=True)
class Nothing(fedatlas.Term):
    name: ClassVar[str] = "nothing"


def gentle(mu: float = 0.5):
    return replace(fedatlas.algorithms.fedprox(mu=mu).with_terms(Nothing()), name="gentle")


def nothing():
    return 3
"""


def test_a_recipe_of_ones_own_is_named_by_file_and_function(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    result = invoke("train", "--data", arrays, *SMALL, "--algorithm", "mine.py:gentle", "--set", "algorithm.mu=0.1")
    assert result.exit_code == 0, result.output
    run = Run(next(Path("runs").glob("*-gentle-0")))
    assert run.name == "gentle"
    assert "'mu': 0.1" in str(run.resolved["algorithm"])
    whom = run.resolved["federation"]["clients"][0]["name"]
    assert invoke("adapt", run.folder, "--client", whom).exit_code == 0
    result = invoke("compare", "fedavg", "mine.py:gentle", "--data", arrays, *SMALL, "--folder", "both")
    assert result.exit_code == 0, result.output
    assert Path("both/gentle-0").is_dir()
    result = invoke("compare", "other.py:gentle", "mine.py:gentle", "--data", arrays, *SMALL, "--folder", "both")
    assert result.exit_code == 2
    assert "gentle comes twice" in result.output
    Path("odd.py").write_text("def (")
    for name, said in {
        "odd.py:gentle": "algorithm 'odd.py:gentle' cannot be read: invalid syntax (odd.py, line 1)",
        "mine.py:gently": "algorithm 'mine.py:gently' cannot be found",
        "no.py:gentle": "algorithm 'no.py:gentle' cannot be found",
        "mine.py:nothing": "must return a fedatlas.Algorithm, got int",
    }.items():
        result = invoke("train", "--data", arrays, *SMALL, "--algorithm", name, "--folder", "other")
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.output.split())


def test_ctrl_c_says_how_to_resume(arrays: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedatlas", "train", "--data", str(arrays), "--folder", str(folder)]
    command += ["--model", "mlp", "--set", "training.rounds=100000", "--workers", "2"]
    # A shell starts what it puts in the background with Ctrl-C ignored, and the tests may run there.
    usual = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    environment = {**os.environ, "COLUMNS": "200"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=usual)
    deadline = time.monotonic() + 60
    while not (folder / "rounds.jsonl").exists() or not (folder / "rounds.jsonl").stat().st_size:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"fedatlas train --folder {folder} --resume" in said
    kept = Run(folder)
    assert kept.checkpoint().state.round == len(kept.rounds) > 0
