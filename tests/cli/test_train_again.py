"""``fedatlas train`` where a folder already holds a run: go on with it, or replace it."""

import re
from pathlib import Path

from commands import SMALL, invoke
from fedatlas.runs import Run


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_goes_on_from_its_folder_alone(arrays: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert invoke("train", "--data", arrays, *SMALL, "--folder", folder).exit_code == 0
    result = invoke("train", "--folder", folder, "--resume", "--rounds", 4)
    assert result.exit_code == 0, result.output
    assert [entry["round"] for entry in Run(folder).rounds] == [1, 2, 3, 4]


def test_resuming_where_there_is_nothing_says_so_and_begins(arrays: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(arrays), "--model", "mlp", "--workers", "1", "--resume"]
    arguments += ["--folder", str(tmp_path / "run")]
    first, second = (invoke("train", *arguments, "--rounds", rounds) for rounds in ("1", "2"))
    assert first.exit_code == second.exit_code == 0
    assert "holds no run yet: a new one begins" in first.output.replace("\n", " ")
    assert "holds no run" not in second.output
    assert len(Run(tmp_path / "run").rounds) == 2


def test_a_run_is_not_resumed_to_fewer_rounds_and_a_finished_one_says_so(arrays: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert invoke("train", "--data", arrays, *SMALL, "--folder", folder).exit_code == 0
    before = _contents(folder)
    result = invoke("train", "--folder", folder, "--resume", "--rounds", 1)
    assert result.exit_code == 2
    assert "already has 2 rounds, and 1 were asked for" in result.output.replace("\n", " ")
    assert _contents(folder) == before
    result = invoke("train", "--folder", folder, "--resume", "--rounds", 2, "--workers", 2)
    assert result.exit_code == 0, result.output
    assert "already had all 2 rounds: nothing was left to do" in result.output.replace("\n", " ")
    after = _contents(folder)
    assert [name for name in before if name != "report.html" and before[name] != after[name]] == []


def test_another_seed_is_named_in_few_words_when_a_run_is_resumed(arrays: Path, tmp_path: Path) -> None:
    assert invoke("train", "--data", arrays, *SMALL, "--folder", tmp_path / "run").exit_code == 0
    result = invoke("train", "--folder", tmp_path / "run", "--resume", "--seed", 3, "--rounds", 4)
    assert result.exit_code == 2
    assert "(seed: 0 then, 3 now; " in result.output.replace("\n", " ")
    result = invoke("train", "--folder", tmp_path / "run", "--resume", "--set", "data.test_fraction=0.5")
    assert re.search(r"\(federation.partition: '?\.*.*0\.25 .* then, .*0\.5 .* now\)", result.output.replace("\n", " "))
    assert len(result.output) - len(str(tmp_path)) < 400


def test_resuming_and_overwriting_at_once_is_refused(arrays: Path, tmp_path: Path) -> None:
    both = ["--resume", "--overwrite", "--folder", str(tmp_path / "run")]
    for command in (["train"], ["compare", "fedavg"]):
        result = invoke(*command, "--data", arrays, *SMALL, *both)
        assert result.exit_code == 2
        assert "give one of the two" in result.output.replace("\n", " ")
    assert not (tmp_path / "run/resolved.json").exists()


def test_a_run_is_overwritten_only_when_the_new_one_begins(arrays: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other.safetensors"
    own = ["--set", "atlas.make={source = 'label-histogram'}"]
    assert invoke("train", "--data", arrays, *SMALL, *own, "--folder", folder).exit_code == 0
    before = _contents(folder)
    assert invoke("map", "--data", "digits", "--source", "label-histogram", "--to", other).exit_code == 0
    bad = [
        ["--atlas", str(other)],
        ["--seed", "1", *own, "--set", "training.cohort=5000"],
        ["--seed", "1", *own, "--algorithm", "fedbn"],
    ]
    for settings in bad:
        result = invoke("train", "--data", arrays, *SMALL, *settings, "--folder", folder, "--overwrite")
        assert result.exit_code == 2, result.output
        assert _contents(folder) == before
    result = invoke("train", "--data", arrays, *SMALL, *own, "--seed", 1, "--folder", folder, "--overwrite")
    assert result.exit_code == 0, result.output
    after = _contents(folder)
    assert after.keys() == before.keys()
    assert after["atlas.safetensors"] != before["atlas.safetensors"]
