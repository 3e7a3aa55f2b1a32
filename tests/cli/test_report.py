import json
import re
from pathlib import Path

import numpy as np
import pytest

from commands import invoke
from fedatlas.errors import RunFolderError
from fedatlas.runs import Run
from raising import raises
from report.run_folders import FOUR, four_correct, write_run

ALTERED = [
    ("resolved.json", "[]", "resolved.json holds no run's settings: it is [], not a table"),
    ("resolved.json", "{}", "resolved.json holds no run's settings: it lacks 'federation'"),
    ("resolved.json", '{"federation": 1}', "federation is 1, not a table"),
    ("rounds.jsonl", '{"round": 1}\n[1]\n', "rounds.jsonl, line 2 is not a record: it is [1], not a table"),
    ("rounds.jsonl", '{"round": true}\n', "rounds.jsonl, line 1 is not a record: round is true, not a whole number"),
    ("rounds.jsonl", '{"round": 1, "evaluation": []}\n', "line 1 is not a record: evaluation is [], not a table"),
    ("rounds.jsonl", '{"round": 1}\n{"rou\n', "rounds.jsonl, line 2 is not JSON"),
    ("clients.jsonl", "{}\n", "clients.jsonl, line 1 is not a record: it lacks 'round'"),
    (
        "timings.jsonl",
        '{"round": 1, "train": null}\n',
        "timings.jsonl, line 1 is not a record: train is null, not",
    ),
    ("adapted.json", '[{"client": "a"}]', "adapted.json is not a list of adapted clients: it[0] lacks 'domain'"),
]


@pytest.mark.parametrize(("file", "content", "said"), ALTERED)
def test_records_of_another_form_are_named_and_not_a_crash(tmp_path: Path, file: str, content: str, said: str) -> None:
    write_run(tmp_path / "run", FOUR, four_correct)
    (tmp_path / "run" / file).write_text(content)
    commands = [["report"], ["adapt"]] if file == "resolved.json" else [["report"]]
    for command in commands:
        result = invoke(*command, tmp_path / "run")
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.output.split())
        assert "the run's folder was altered" in result.output


def test_a_setting_of_another_form_is_told_by_its_place(tmp_path: Path) -> None:
    resolved = write_run(tmp_path / "run", FOUR, four_correct).resolved
    resolved["federation"]["clients"][2]["num_test"] = "many"
    (tmp_path / "run/resolved.json").write_text(json.dumps(resolved))
    with raises(RunFolderError, "file-altered"):
        Run(tmp_path / "run").resolved  # noqa: B018


def test_rows_over_other_clients_are_noted_under_the_table(tmp_path: Path) -> None:
    """Seeds that split the data differently are no matter, as long as every row has them all."""
    for seed in (0, 1):
        for name in ("fedavg", "fedbn"):
            where = tmp_path / f"{name}-{seed}"
            write_run(where, FOUR, four_correct, algorithm=name, seed=seed, fingerprint=str(seed))
    assert "split" not in invoke("report", tmp_path).output
    result = invoke("report", *(tmp_path / run for run in ("fedavg-0", "fedbn-1", "fedbn-0")))
    said = "The rows do not all share one split of the data: fedavg has another than fedbn."
    assert result.output.splitlines()[-2] == said


def test_names_of_the_users_own_stand_in_the_table_and_the_report(tmp_path: Path) -> None:
    y = np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", x=np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), y=y)
    own = ['algorithms.weak={name="fedprox", mu=0.01}', 'algorithms.strong={name="fedprox", mu=1}']
    settings = [word for setting in [*own, "training.steps=1"] for word in ("--set", setting)]
    names = ["weak", "strong", "fedprox"]
    given = ["-d", tmp_path / "mine.npz", "-r", 1, "-w", 1, *settings, "-f", tmp_path / "runs"]
    result = invoke("compare", *names, *given, "--no-local")
    assert result.exit_code == 0, result.output
    assert re.findall(r"^(\S+) +\d", result.output, re.M) == names
    assert re.findall(r"^(\S+): round 1 of 1", result.output, re.M) == names
    again = invoke("report", *(tmp_path / f"runs/{name}-0" for name in names), "--to", tmp_path / "page.html")
    assert re.findall(r"^(\S+) +\d", again.output, re.M) == names
    assert "<title>weak, strong and fedprox on " in (tmp_path / "page.html").read_text()
