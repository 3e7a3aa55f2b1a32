"""``fedatlas compare``: several algorithms, one table."""

import re
import shutil
from pathlib import Path

import pytest

from commands import SMALL, invoke
from fedatlas.atlas import make_atlas
from fedatlas.cli import train_config
from fedatlas.config import Config
from fedatlas.runs import Run
from report.pages import read_block


def test_compare_reads_the_data_of_a_seed_once(arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    own, made = shutil.copy(arrays, tmp_path / "own.npz"), Config.dataset
    monkeypatch.setattr(Config, "dataset", lambda self: read.append(self.values["seed"]) or made(self))
    seeds = ["--seeds", "0,1"]
    invoke("compare", "fedavg", "fedprox", "fedlc", "--data", own, *SMALL, *seeds, "--folder", tmp_path / "all")
    assert read == [0, 1]


def test_compare_prints_one_row_an_algorithm(arrays: Path, tmp_path: Path) -> None:
    result = invoke(
        "compare", "fedavg", "fedprox", "--data", arrays, *SMALL, "--seeds", "0,1", "--folder", tmp_path / "both"
    )
    assert result.exit_code == 0, result.output
    assert re.search(r"^fedavg .*±", result.output, re.M)
    assert re.search(r"^fedprox .*±", result.output, re.M)
    assert (tmp_path / "both/report.html").exists()
    (tmp_path / "both/report.html").unlink()
    again = invoke("report", tmp_path / "both")
    assert again.exit_code == 0, again.output
    assert re.findall(r"^fed\w+ .*±.*$", again.output, re.M) == re.findall(r"^fed\w+ .*±.*$", result.output, re.M)
    assert (tmp_path / "both/report.html").exists()


def test_compare_refuses_before_it_trains_anything(arrays: Path, tmp_path: Path) -> None:
    result = invoke("compare", "fedavg", "fedbn", "--data", arrays, *SMALL, "--folder", tmp_path / "both")
    assert result.exit_code == 2, result.output
    assert "no normalisation layer" in result.output
    assert not (tmp_path / "both").exists()


def test_compare_all_leaves_out_what_the_model_does_not_suit(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("fedavg", "fedbn", "fedgcr")
    monkeypatch.setattr("fedatlas.cli.compare.standalone", lambda: list(names))
    result = invoke("compare", "all", "--data", arrays, *SMALL, "--seeds", "0,1", "--folder", tmp_path / "all")
    assert result.exit_code == 0, result.output
    assert result.output.count("is left out") == 2
    assert re.search("^fedbn is left out: FedBN: .* has no normalisation layer", result.output, re.M)
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["fedavg-0", "fedavg-1", "report.html"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedavg,fedprox"], "Separate names by spaces: fedavg fedprox."),
        (["fedavg", "all"], "`all` is every algorithm"),
        (["all", "fedavg"], "`all` is every algorithm"),
        (["fedavg", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["fedavg", "--use", "sample"], "give it with --atlas FILE"),
    ],
)
def test_what_compare_cannot_read_is_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = invoke("compare", *arguments, "--folder", tmp_path)
    assert result.exit_code == 2
    assert said in result.output.replace("\n", " ")


def test_every_client_alone_is_trained_beside_those_that_are_named(arrays: Path, tmp_path: Path) -> None:
    """Said before, a row of the table and of the page; not twice, and not where it is not wanted."""
    common = ["--data", arrays, *SMALL, "--folder"]
    result = invoke("compare", "fedavg", *common, tmp_path / "both", "--seeds", "0,1")
    assert result.exit_code == 0, result.output
    assert "local, every client alone, is trained too: 2 of 4 trainings. --no-local leaves it out." in result.stderr
    assert re.search(r"^local .*±", result.stdout, re.M)
    assert "local: each client alone, the yardstick" in " ".join(result.stdout.split())
    told = {own["label"]: own["about"] for own in read_block(tmp_path / "both/report.html")["algorithms"]}
    assert list(told) == ["fedavg", "local"]
    assert told["local"].startswith("Every client alone")
    assert invoke("train", "-a", "local", *common, tmp_path / "alone").exit_code == 0
    for file in ("clients.jsonl", "rounds.jsonl"):
        assert (tmp_path / "both/local-0" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
    for words in (["fedavg", "--no-local"], ["local", "fedavg"]):
        folder = tmp_path / words[-1]
        result = invoke("compare", *words, *common, folder)
        assert result.exit_code == 0, result.output
        assert "is trained too" not in result.output
        assert (folder / "local-0").exists() == ("local" in words)


def test_the_yardstick_that_is_there_is_taken_if_its_settings_are_the_same(arrays: Path, tmp_path: Path) -> None:
    common = ["--data", arrays, *SMALL, "--folder", tmp_path]
    assert invoke("compare", "fedavg", *common).exit_code == 0
    before = (tmp_path / "local-0/timings.jsonl").read_bytes()
    result = invoke("compare", "fedprox", *common)
    assert result.exit_code == 0, result.output
    assert re.search(r"^local +\d", result.stdout, re.M)
    assert "is trained too" not in result.output
    result = invoke("compare", "fedlc", *common, "--set", "optimizer.lr=0.01")
    assert result.exit_code == 0, result.output
    assert "local is left out: " in result.output
    assert not re.search(r"^local +\d", result.stdout, re.M)
    assert (tmp_path / "local-0/timings.jsonl").read_bytes() == before


def test_runs_side_by_side_have_the_same_bits(arrays: Path, tmp_path: Path) -> None:
    for folder, jobs in (("one", 1), ("two", 2)):
        result = invoke("compare", "fedavg", "fedprox", "--data", arrays, *SMALL, "-j", jobs, "-f", tmp_path / folder)
        assert result.exit_code == 0, result.output
    for name in ("fedavg-0", "fedprox-0"):
        records = [(tmp_path / folder / name / "clients.jsonl").read_bytes() for folder in ("one", "two")]
        assert records[0] == records[1]


def test_one_algorithm_that_breaks_does_not_stop_the_others(arrays: Path, tmp_path: Path) -> None:
    settings = ["--set", "optimizer.lr=1e20", "--set", "optimizer.name=sgd"]
    result = invoke("compare", "fedavg", "feddyn", "--data", arrays, *SMALL, *settings, "-f", tmp_path / "both")
    assert result.exit_code == 1
    assert "fedavg-0 broke: client" in result.output
    assert "feddyn-0 broke: client" in result.output


def test_each_base_gets_the_use_of_an_atlas_as_train_gives_it(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The atlas of a seed is made once, for all bases."""
    made: list[int] = []
    monkeypatch.setattr(train_config, "make_atlas", lambda *given, **how: made.append(1) or make_atlas(*given, **how))
    use = ["--data", shutil.copy(arrays, tmp_path / "own.npz"), *SMALL, "--use", "group", "--groups", 2]
    result = invoke("compare", "fedavg", "fedprox", *use, "--level", "head", "--folder", tmp_path / "both")
    assert result.exit_code == 0, result.output
    assert len(made) == 1
    # A narrow screen has the table in two parts.
    shown = dict.fromkeys(re.findall(r"^(grouped\S*) +\d", result.output, re.M))
    assert [*shown] == ["grouped", "grouped+fedprox"]
    names = ["fedavg-groups-0", "fedprox-groups-0", "local-0", "report.html"]
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == names
    alone = tmp_path / "alone"
    assert invoke("train", "-a", "fedprox", *use, "--level", "head", "--folder", alone).exit_code == 0
    together = tmp_path / "both/fedprox-groups-0"
    for file in ("clients.jsonl", "rounds.jsonl"):
        assert (together / file).read_bytes() == (alone / file).read_bytes(), file


def test_an_atlas_that_is_there_is_used_by_each_base(arrays: Path, tmp_path: Path) -> None:
    atlas = tmp_path / "labels.safetensors"
    assert invoke("map", "--data", arrays, "--source", "label-histogram", "--to", atlas).exit_code == 0
    use = ["--data", arrays, *SMALL, "--atlas", atlas, "--use", "aggregate"]
    result = invoke("compare", "fedavg", "fedprox", *use, "--folder", tmp_path / "both")
    assert result.exit_code == 0, result.output
    found = [Run(tmp_path / f"both/{name}-atlas-0").name for name in ("fedavg", "fedprox")]
    assert found == ["client2vec", "client2vec+fedprox"]


def test_a_base_that_cannot_take_the_atlas_is_refused_before_the_training_or_left_out_of_all(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = ["--data", arrays, *SMALL, "--use", "group", "--folder", tmp_path / "all"]
    result = invoke("compare", "fedavg", "ifca", *use)
    assert result.exit_code == 2, result.output
    assert "ifca has ByLoss for that" in " ".join(result.output.split())
    assert not (tmp_path / "all").exists()
    monkeypatch.setattr("fedatlas.cli.compare.standalone", lambda: ["fedavg", "ifca"])
    result = invoke("compare", "all", *use)
    assert result.exit_code == 0, result.output
    assert re.findall(r"^(\w+) is left out", result.output, re.M) == ["ifca"]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["fedavg-groups-0", "report.html"]
    wrong = invoke("compare", "all", *use, "--use", "trian,group")
    assert wrong.exit_code == 2
    assert "is left out" not in wrong.output
