import csv
import re
import shlex
from pathlib import Path

import pytest

from commands import invoke
from fedatlas.cli.demo_story import Stage, tell_of_heart
from fedatlas.data import EMBEDDED
from fedatlas.runs import Run
from report.pages import read_block


def last_accuracies(run: Run) -> dict[str, float]:
    return {own["client"]: own["accuracy"] for own in run.clients if own["round"] == len(run.rounds)}


@pytest.fixture(scope="module")
def heart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The second story with two rounds: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as said:
        page = tell_of_heart(Stage(folder, rounds=2, workers=1))
    assert page == folder / "heart.html"
    assert page.exists()
    return folder, said.getvalue()


def test_only_the_labels_of_one_hospital_are_turned_round(heart: tuple[Path, str]) -> None:
    with (EMBEDDED / "heart.csv").open() as file:
        was = list(csv.DictReader(file))
    with (heart[0] / "heart.csv").open() as file:
        now = list(csv.DictReader(file))
    turned = [i for i, (one, other) in enumerate(zip(was, now, strict=True)) if one != other]
    assert turned == [i for i, row in enumerate(was) if row["hospital"] == "hungarian"]
    assert all((was[i]["num"] == "0") == (now[i]["num"] == "1") for i in turned)
    assert (heart[0] / "heart-repaired.csv").read_bytes() == (EMBEDDED / "heart.csv").read_bytes()


def test_the_demo_says_what_its_runs_hold(heart: tuple[Path, str]) -> None:
    folder, said = heart
    came, repaired = (last_accuracies(Run(folder / "heart" / name)) for name in ("as-it-came", "repaired"))
    share = last_accuracies(Run(folder / "heart" / "without-hungarian"))["hungarian"]
    assert "hungarian: its labels look inverted" in said
    assert f"agrees with {share:.0%} of hungarian's labels: turned round, with {1 - share:.0%}." in said
    alone = last_accuracies(Run(folder / "heart/alone")).values()
    assert f"each alone, repaired, {sum(alone) / len(alone):.0%} (one seed)" in said
    assert f"hungarian: {came['hungarian']:.0%} by its wrong labels, {repaired['hungarian']:.0%} by the right" in said


def test_a_command_of_the_demo_gives_the_same_run(heart: tuple[Path, str], tmp_path: Path) -> None:
    folder, said = heart
    (command,) = re.findall(r"^\$ fedatlas (train .*--folder \S*without-hungarian)$", said, re.M)
    words = [*shlex.split(command)[:-1], tmp_path / "again"]
    result = invoke(*words, "--workers", 1)
    assert result.exit_code == 0, result.output
    for file in ("rounds.jsonl", "clients.jsonl"):
        assert (tmp_path / "again" / file).read_bytes() == (folder / "heart/without-hungarian" / file).read_bytes()


def test_a_training_that_fails_says_why(tmp_path: Path) -> None:
    result = invoke("demo", "--folder", tmp_path, "--rounds", 0)
    assert result.exit_code == 2
    assert "rounds" in result.output


@pytest.mark.slow
def test_the_whole_demo_gains_by_the_advice(tmp_path: Path) -> None:
    result = invoke("demo", "--folder", tmp_path)
    assert result.exit_code == 0, result.output
    one, advised = (last_accuracies(Run(tmp_path / "digits" / name)) for name in ("one", "advised"))
    gain = 100 * (sum(advised.values()) - sum(one.values())) / len(one)
    assert gain > 5
    assert f"{gain:+.0f} points" in result.output
    alone = last_accuracies(Run(tmp_path / "digits/alone"))
    assert f"Each alone: {sum(alone.values()) / len(alone):.0%}." in result.output
    assert [own["label"] for own in read_block(tmp_path / "digits.html")["algorithms"]] == [
        "fedavg",
        "grouped",
        "local",
    ]
    assert "--use group" in (tmp_path / "digits.toml").read_text() + result.output
