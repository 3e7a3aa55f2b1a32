import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from fedatlas.atlas import Atlas
from fedatlas.atlas.client2vec.settings import EPOCHS
from fedatlas.cli.app import app
from fedatlas.cli.catalogue import CATALOGUES
from fedatlas.cli.map import map_
from fedatlas.cli.terminal import print_lines, print_rows
from fedatlas.config.config import Config
from fedatlas.config.schema import SETTINGS
from fedatlas.runs.run import Run

SMALL = ["--model", "mlp", "--set", "training.rounds=2", "--set", "model.hidden=[8]", "--workers", "1"]


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a user's own arrays: 120 small images of three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (rng.uniform(0, 80, (120, 6, 6, 3)) + 80 * y[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    np.savez(path, x=x, y=y)
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_train_keeps_a_run_and_its_report(arrays: Path, tmp_path: Path) -> None:
    result = invoke("train", "--data", arrays, *SMALL, "--algorithm", "fedprox", "--folder", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "fedprox" in result.output
    run = Run(tmp_path / "run")
    assert len(run.rounds) == 2
    assert (tmp_path / "run/report.html").exists()
    assert (tmp_path / "run/config.toml").exists()


def test_a_run_goes_on_from_its_folder_alone(arrays: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert invoke("train", "--data", arrays, *SMALL, "--folder", folder).exit_code == 0
    result = invoke("train", "--folder", folder, "--resume", "--rounds", 4)
    assert result.exit_code == 0, result.output
    assert [entry["round"] for entry in Run(folder).rounds] == [1, 2, 3, 4]


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


@pytest.mark.filterwarnings("default")
def test_a_warning_is_a_line_and_the_page_is_named(tmp_path: Path) -> None:
    owner = ["a"] * 9 + ["b"] * 9 + ["c"]
    np.savez(tmp_path / "own.npz", x=np.eye(19, dtype=np.float32), y=np.arange(19) % 2, owner=owner)
    result = invoke("map", "--data", tmp_path / "own.npz", "--source", "label-histogram", "--to", tmp_path / "a.st")
    assert result.exit_code == 0, result.output
    assert re.search("^note: natural-id: 1 of 3 owners in own .* left out: c", result.output, re.M)
    assert f"page: {tmp_path / 'a.html'}" in result.output


def test_an_atlas_is_made_of_the_vectors_of_a_file(tmp_path: Path) -> None:
    """All examples of a client have one vector, so that is their mean."""
    owner = np.repeat(["a", "b"], 8)
    np.savez(tmp_path / "own.npz", x=np.eye(16, dtype=np.float32), y=np.arange(16) % 2, owner=owner)
    vectors = np.repeat([[3.0, 0.0, 4.0], [0.0, 2.0, 0.0]], 8, axis=0).astype(np.float32)
    np.savez(tmp_path / "vectors.npz", examples=vectors, classes=np.eye(2, 3, dtype=np.float32))
    made = [
        "map",
        "--data",
        tmp_path / "own.npz",
        "--source",
        "feature-average",
        "--to",
        tmp_path / "a.safetensors",
    ]
    result = invoke(*made, "--encoder", "precomputed", "--encoder-path", tmp_path / "vectors.npz")
    assert result.exit_code == 0, result.output
    atlas = Atlas.load(tmp_path / "a.safetensors")
    assert atlas.names == ("a", "b")
    assert atlas.half("feature").tolist() == [[3.0, 0.0, 4.0], [0.0, 2.0, 0.0]]
    for given, said in (
        (["--encoder", "precomputed"], "give --encoder-path FILE"),
        (["--encoder-path", tmp_path / "vectors.npz"], "--encoder builtin has none"),
        (["--encoder", "precomputed", "--encoder-path", tmp_path / "else.npz"], "there is no such file"),
    ):
        result = invoke(*made, *given)
        assert result.exit_code == 2
        assert said in " ".join(result.output.split())


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


def test_list_names_everything_with_a_line() -> None:
    result = invoke("list")
    assert result.exit_code == 0
    for name in ("fedprox", "client2vec", "digits", "cifar10", "dirichlet", "resnet18", "adam"):
        assert re.search(rf"^{name} +\S+", result.output, re.M), name
    assert re.search(r"^client2vec is any of them .* --atlas FILE", result.output, re.M)


def test_list_tells_what_leaves_a_client() -> None:
    result = invoke("list", "--disclosures")
    assert re.search(r"^fedavg +nothing beyond the change of the model", result.output, re.M)
    assert re.search(r"^map client2vec global +up to 128 of its examples", result.output, re.M)
    assert re.search(r"^map client2vec federated +the change of the index network", result.output, re.M)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--algorithm", "fedpox"], "Did you mean 'fedprox'"),
        (["train", "--set", "training.cohort=5000"], "cohort must be between 1 and the"),
        (["train", "--model", "resnet81"], "Did you mean 'resnet18'"),
        (["train", "--device", "cuda"], "torch sees no GPU here"),
        (["train", "--device", "gpu"], "torch knows no device 'gpu'; use --device cpu, cuda or cuda:N"),
        (["map", "--device", "gpu"], "torch knows no device 'gpu'"),
        (["adapt", "nowhere"], "holds no run"),
        (["flower", "node", "--client", "a", "--device", "gpu"], "torch knows no device 'gpu'"),
        (["train", "--set", "training.cohort=abc"], "training.cohort must be a whole number, a fraction or nothing"),
        (["train", "--data", "nowhere.npz"], "nowhere.npz"),
        (["list", "algorithm"], "Did you mean 'algorithms'"),
        (["compare", "fedavg", "--seeds", "one"], "--seeds takes whole numbers"),
        (["report", "nowhere"], "holds no run"),
    ],
)
def test_a_mistake_gets_one_clear_message(arguments: list[str], message: str, tmp_path: Path) -> None:
    if arguments[0] in ("train", "compare"):
        arguments = [*arguments, "--folder", str(tmp_path / "run")]
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_square_brackets_are_printed_as_they_are(
    arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "q[red]1:heart:"
    result = invoke("train", "--data", arrays, *SMALL, "--folder", folder)
    assert result.exit_code == 0, result.output
    assert f"run: {folder}\nreport: {folder / 'report.html'}" in result.output
    assert f"{folder} already holds a run" in invoke("train", "--data", arrays, *SMALL, "--folder", folder).output
    print_rows([{"client": "a[bold]b", "accuracy": "90.0"}], "[percent]")
    print_lines("a [title]", {"one": "fedatlas[hub]"})
    assert re.findall(r"\S*\[\w+\]\S*", capsys.readouterr().out) == [
        "a[bold]b",
        "[percent]",
        "[title]",
        "fedatlas[hub]",
    ]


def test_resuming_where_there_is_nothing_says_so_and_begins(arrays: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(arrays), "--model", "mlp", "--workers", "1", "--resume"]
    arguments += ["--folder", str(tmp_path / "run")]
    first, second = (invoke("train", *arguments, "--rounds", rounds) for rounds in ("1", "2"))
    assert first.exit_code == second.exit_code == 0
    assert "holds no run yet: a new one begins" in first.output.replace("\n", " ")
    assert "holds no run" not in second.output
    assert len(Run(tmp_path / "run").rounds) == 2


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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


def test_resuming_and_overwriting_at_once_is_refused(arrays: Path, tmp_path: Path) -> None:
    both = ["--resume", "--overwrite", "--folder", str(tmp_path / "run")]
    for command in (["train"], ["compare", "fedavg"]):
        result = invoke(*command, "--data", arrays, *SMALL, *both)
        assert result.exit_code == 2
        assert "give one of the two" in result.output.replace("\n", " ")
    assert not (tmp_path / "run/resolved.json").exists()


def test_the_help_of_every_option_says_something_and_names_the_defaults() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        for parameter in getattr(command, "params", ()):
            assert name == "flower" or parameter.name == "help" or parameter.help, (name, parameter.name)
    helps = {parameter.name: parameter.help for parameter in commands["train"].params}
    keys = {"algorithm": "algorithm.name", "data": "data.source", "seed": "seed", "rounds": "training.rounds"}
    for title, key in keys.items():
        assert f"default {SETTINGS[key].default}." in helps[title]
    assert "default sample,aggregate." in helps["use"]
    (kind,) = (parameter.help for parameter in commands["list"].params if parameter.name == "kind")
    assert [title for title in CATALOGUES if title not in kind] == []


def test_a_place_that_cannot_be_written_is_named_before_the_work(arrays: Path, tmp_path: Path) -> None:
    data = ["--data", arrays, "--source", "label-histogram"]
    assert invoke("train", "--data", arrays, *SMALL, "--folder", tmp_path / "run").exit_code == 0
    for command, usual in ((["map", *data], "atlas.safetensors"), (["report", tmp_path / "run"], "report.html")):
        result = invoke(*command, "--to", tmp_path)
        assert result.exit_code == 2, result.output
        assert f"is a folder. Write --to {tmp_path / usual}." in result.output
        result = invoke(*command, "--to", arrays / usual)
        assert result.exit_code == 2, result.output
        assert f"--to: {arrays} is a file, and a folder is needed there" in result.output
        assert "accuracy" not in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedavg,fedprox"], "Separate names by spaces: fedavg fedprox."),
        (["fedavg", "all"], "`all` is every algorithm"),
        (["all", "fedavg"], "`all` is every algorithm"),
        (["fedavg", "--jobs", "0"], "--jobs must be at least 1, got 0"),
    ],
)
def test_what_compare_cannot_read_is_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    result = invoke("compare", *arguments, "--folder", tmp_path)
    assert result.exit_code == 2
    assert said in result.output.replace("\n", " ")


def test_another_seed_is_named_in_few_words_when_a_run_is_resumed(arrays: Path, tmp_path: Path) -> None:
    assert invoke("train", "--data", arrays, *SMALL, "--folder", tmp_path / "run").exit_code == 0
    result = invoke("train", "--folder", tmp_path / "run", "--resume", "--seed", 3, "--rounds", 4)
    assert result.exit_code == 2
    assert "(seed: 0 then, 3 now; " in result.output.replace("\n", " ")
    result = invoke("train", "--folder", tmp_path / "run", "--resume", "--set", "data.test_fraction=0.5")
    assert re.search(r"\(federation.partition: '?\.*.*0\.25 .* then, .*0\.5 .* now\)", result.output.replace("\n", " "))
    assert len(result.output) - len(str(tmp_path)) < 400


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


def test_an_atlas_is_mapped_and_used(arrays: Path, tmp_path: Path) -> None:
    atlas = tmp_path / "labels.safetensors"
    result = invoke("map", "--data", arrays, "--source", "label-histogram", "--to", atlas)
    assert result.exit_code == 0, result.output
    assert "what left each client: the client's vector: the share of each class" in result.output
    assert (tmp_path / "labels.html").exists()
    settings = ["--data", arrays, *SMALL, "--atlas", atlas, "--use", "sample,aggregate", "--set", "training.cohort=2"]
    result = invoke("train", *settings, "--folder", tmp_path / "run")
    assert result.exit_code == 0, result.output
    algorithm = Run(tmp_path / "run").resolved["algorithm"]
    assert algorithm["name"] == "client2vec"
    assert algorithm["sampler"]["part"] == "SimilarToLast"
    result = invoke("train", *settings, "--use", "trian", "--folder", tmp_path / "other")
    assert "Did you mean 'train'" in result.output.replace("\n", " ")


def test_map_makes_as_many_passes_as_the_function_does() -> None:
    assert inspect.signature(map_).parameters["epochs"].default == EPOCHS


def test_a_table_is_trained_on_and_the_command_says_what_it_found(tmp_path: Path) -> None:
    result = invoke("train", "--data", "heart", "--model", "linear", "--rounds", "2", "--folder", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert re.search(r"heart: 920 rows; label 'num' \(ill: 509, healthy: 411\); client 'hospital' \(4: ", result.output)
    assert "heart: 31 inputs from 13 columns" in result.output
    (tmp_path / "t.csv").write_text("site,age,result\na,1,2\nb,2,3\n")
    result = invoke("train", "--data", str(tmp_path / "t.csv"))
    assert result.exit_code == 2
    assert "no column is the label; the columns are 'site', 'age', 'result'" in result.output
