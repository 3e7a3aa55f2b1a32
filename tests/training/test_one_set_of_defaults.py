"""One set of defaults for Python and the command line, and progress where there is no terminal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedatlas
from fedatlas.algorithms import fedbn, fedgcr, fedpce
from fedatlas.cli import fitted, print_rows
from fedatlas.config import Config
from fedatlas.errors import UsageError
from fedatlas.testing import tiny_federation
from fedatlas.training.progress import Bar, Lines, Silent, make_progress
from raising import raises


@pytest.mark.parametrize("form", ["owner", "domain", "plain", "test"])
def test_federate_alone_makes_the_clients_of_the_config(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {"x": rng.normal(size=(80, 3)).astype(np.float32), "y": rng.integers(3, size=80)}
    if form == "test":
        cut = {"train": slice(0, 60), "test": slice(60, 80)}
        arrays = {f"{k}_{part}": v[own] for k, v in arrays.items() for part, own in cut.items()}
    elif form == "owner":
        arrays["owner"] = np.repeat(np.arange(8), 10)
    elif form == "domain":
        arrays["domain"] = np.repeat(["a", "b"], 40)
    np.savez(tmp_path / "d.npz", **arrays)
    here = fedatlas.federate(fedatlas.from_npz(tmp_path / "d.npz"))
    there = Config.load(None, [f"data.source={tmp_path / 'd.npz'}"]).federation()
    assert here.partition == there.partition
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.train, other.train)
        assert torch.equal(one.test, other.test)


def test_an_algorithm_may_be_a_name_and_the_model_suits_the_data() -> None:
    federation = tiny_federation()
    run = fedatlas.train(federation, "fedprox", rounds=1)
    usual = {"features": "mlp", "image": "cnn", "tokens": "char_lstm"}
    assert (run.name, run.resolved["model"]["name"]) == ("fedprox", usual[federation.data.kind])
    with raises(UsageError, "unknown-name", got="fedvag"):
        fedatlas.train(federation, "fedvag", rounds=1)
    runs = fedatlas.compare(federation, ["fedavg", "fedprox"], fedatlas.Settings(rounds=1))
    assert [run.name for run in runs] == ["fedavg", "fedprox"]


def test_a_recipe_brings_a_model_that_fits_it() -> None:
    assert fedbn().usual_model("image") == ("cnn", {"norm": "batch"})
    assert fedpce().usual_model("image") == ("cnn", {"norm": "instance"})
    assert fedgcr().usual_model("image") == ("prompted_vit", {})
    assert fedatlas.algorithms.fedavg().usual_model("tokens") == ("char_lstm", {})
    assert Config.load(None, ["algorithm.name=fedbn"]).model() == ("cnn", {"norm": "batch"})
    narrow = Config.load(None, ["algorithm.name=fedbn", "model.width=4"])
    assert narrow.model() == ("cnn", {"norm": "batch", "width": 4})


def test_lines_tell_each_evaluated_round(capsys: pytest.CaptureFixture[str]) -> None:
    fedatlas.train(tiny_federation(), "fedavg", fedatlas.Settings(rounds=3, evaluate_every=2))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(", accuracy")[0] for line in lines] == ["fedavg: round 2 of 3", "fedavg: round 3 of 3"]


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_progress(None, "x", 3), Lines)
    assert isinstance(make_progress(False, "x", 3), Silent)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert isinstance(make_progress(True, "x", 3), Bar)


def test_wide_tables_are_cut_into_blocks_and_one_row_is_turned() -> None:
    """Columns of width 5 with their gap: name and two of them take 15, so three columns make two blocks of 16."""
    titles = ("name", "wwww", "xxxx", "yyyy")
    rows = [dict(zip(titles, row, strict=True)) for row in (("aaaa", "1", "2", "3"), ("b", "4", "5", "6"))]
    assert [list(block[0]) for block in fitted(rows, 16)] == [["name", "wwww", "xxxx"], ["name", "yyyy"]]
    assert fitted(rows, 20) == [rows]
    assert fitted(rows[:1], 10)[0][2] == {"name": "yyyy", "aaaa": "3"}


def test_federate_alone_serves_any_choice_of_domains() -> None:
    """The usual imbalance needs more examples than two domains have; then each domain is a client."""
    data = fedatlas.load_dataset("digits", domains=["handwritten", "printed"])
    assert [client.name for client in fedatlas.federate(data)] == ["handwritten-0", "printed-0"]


def test_a_table_s_note_is_not_squeezed_under_a_narrow_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"algorithm": "fedavg", **{f"figure {number}": "59.5" for number in range(12)}}
    print_rows([row], "accuracies in percent; start: the run's model")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["algorithm", "fedavg"]
    assert len(printed) == 14
    assert printed[-1] == "accuracies in percent; start: the run's model"
