"""The helper that papers' scripts share: measured once, kept, and shown beside the paper's number."""

import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch

from fedatlas.errors import DataError, TrainingError, UsageError
from fedatlas.runs import Run
from papers import tables
from papers.kept_results import pack, unpack
from papers.options import Options
from papers.tables import Cell, Numbers, Table, Task, Variant, figures, measure, render, trained
from raising import raises


def counted(task: Task) -> Numbers:
    """Leave a mark for every call, and return what the settings say plus the seed."""
    task.folder.mkdir(parents=True, exist_ok=True)
    with (task.folder / "calls").open("a") as file:
        file.write("x")
    if task.settings.get("breaks"):
        raise TrainingError("loss is nan", client="a", round=3, stage="training", code="not-finite")
    if task.settings.get("mistaken"):
        raise DataError("no images in /there", code="data-empty")
    if task.settings.get("fails"):
        raise RuntimeError("no such file")
    return {"best": task.settings["value"] + task.seed / 100}


def variant(name: str, **settings: object) -> Variant:
    return Variant(name=name, measure=counted, settings=settings)


def calls(out: Path) -> int:
    return sum(len(file.read_text()) for file in out.glob("runs/*/calls"))


def test_a_variant_is_measured_once_for_each_seed_whatever_its_name(tmp_path: Path) -> None:
    options = Options(out=tmp_path, seeds=(0, 1))
    first = measure([variant("a", value=0.5), variant("same", value=0.5)], options)
    again = measure([variant("other", value=0.5)], options)
    assert first == {"a": again["other"], "same": again["other"]}
    assert [numbers["best"] for numbers in again["other"]] == [0.5, 0.51]
    assert calls(tmp_path) == 2


def test_side_by_side_gives_the_same_numbers(tmp_path: Path) -> None:
    variants = [variant(f"v{i}", value=i / 10) for i in range(3)]
    alone = measure(variants, Options(out=tmp_path / "one"))
    assert measure(variants, Options(out=tmp_path / "two", jobs=2)) == alone


def test_a_broken_training_is_kept_and_a_failure_of_the_script_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = [variant("diverges", breaks=True), variant("typo", fails=True), variant("fine", value=0.2)]
    options = Options(out=tmp_path)
    results = measure(variants, options)
    assert "loss is nan" in results["diverges"][0]["broken"]
    assert results["typo"] == []
    assert results["fine"][0]["best"] == 0.2
    printed = capsys.readouterr().err
    assert "no such file" in printed
    assert printed.count("Traceback") == 1
    measure(variants, options)
    assert calls(tmp_path) == 4


def test_a_mistake_of_the_user_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure([variant("a", mistaken=True)], Options(out=tmp_path)) == {"a": []}
    printed = capsys.readouterr().err
    assert printed.rstrip().endswith("a, seed 0: failed, and will be tried again next time: no images in /there")
    assert "Traceback" not in printed


def test_what_is_refused_twice_for_the_same_reason_is_not_tried_a_third_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = [variant(name, mistaken=True, value=number) for number, name in enumerate("abc")]
    with raises(UsageError, "trainings-refused") as caught:
        measure(variants, Options(out=tmp_path))
    assert str(caught.value) == "no images in /there"
    printed = capsys.readouterr().err
    assert printed.count("no images in /there") == 2
    assert "c, seed 0" not in printed


def test_only_runs_the_named_variants_and_shows_all(tmp_path: Path) -> None:
    variants = [variant("fedavg", value=0.1), variant("moon", value=0.2)]
    measure(variants[1:], Options(out=tmp_path))
    results = measure(variants, Options(out=tmp_path, only="avg$"))
    assert [len(results[name]) for name in ("fedavg", "moon")] == [1, 1]
    assert measure([variant("new", value=0.3)], Options(out=tmp_path, only="avg$")) == {"new": []}


def test_a_table_shows_ours_beside_the_papers() -> None:
    results: dict[str, list[Numbers]] = {"a": [{"best": 0.4}, {"best": 0.5}], "b": [{"broken": "nan"}], "c": []}
    cells = (Cell("a", paper=42.24), Cell("b", paper=59.29), Cell("c"), Cell(None, paper=1.0))
    table = Table(title="Table 1", setting="S.", columns=("one", "two", "three", "four"), rows={"FedAvg": cells})
    # Mean of 40 and 50, sample standard deviation sqrt(2 * 25) = 7.07.
    assert "| FedAvg | 45.0 ± 7.1 (42.24) | broke (59.29) | – | – (1) |" in render(table, results)
    assert "in brackets the paper's" in render(table, results)
    alone = Table(title="T", setting="S.", columns=("one",), rows={"FedAvg": (Cell("a"),)})
    assert "in brackets" not in render(alone, results)
    with raises(UsageError, "wrong-count", got=4, wanted=1):
        render(Table(title="T", setting="S.", columns=("one",), rows={"FedAvg": cells}), results)


def test_a_training_from_sections_resumes_and_counts_its_images(tmp_path: Path) -> None:
    settings = {
        "data": {"source": "digits", "partition": {"name": "by-domain", "clients_per_domain": 1}},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"rounds": 2, "cohort": 2, "epochs": 2},
    }
    task = Task(name="t", settings=settings, seed=0, options=Options(out=tmp_path, workers=1), folder=tmp_path / "run")
    numbers = trained(task)
    assert numbers["rounds"] == 2
    assert len(numbers["curve"]) == 2
    sizes = [c["num_train"] for c in json.loads((tmp_path / "run/resolved.json").read_text())["federation"]["clients"]]
    rounds = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert numbers["images"] == 2 * sum(sizes[client] for entry in rounds for client in entry["cohort"])
    assert trained(task) == numbers


def test_when_the_time_is_up_a_run_is_shown_as_far_as_it_came_and_goes_on_next_time(tmp_path: Path) -> None:
    settings = {
        "data": {"source": "digits", "partition": {"name": "by-domain", "clients_per_domain": 1}},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"rounds": 3, "cohort": 1},
    }
    one = Variant(name="one", measure=trained, settings=settings)
    in_time = Options(out=tmp_path, workers=1)
    passed = replace(in_time, extra={"deadline": 1.0})
    assert measure([one], passed) == {"one": []}
    task = Task(name="one", settings=settings, seed=0, options=passed, folder=tmp_path / "runs" / f"{one.key}-0")
    early = trained(task)
    assert (early["rounds"], early["unfinished"]) == (1, "round 1 of 3")
    (done,) = measure([one], in_time)["one"]
    assert done["rounds"] == 3
    assert "unfinished" not in done


def test_at_ctrl_c_a_round_is_finished_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that keeps its optimizer's state cannot be left in the middle of a round."""

    class Interrupting(_Silent):
        def __enter__(self) -> Self:
            signal.raise_signal(signal.SIGINT)
            return self

    settings = {
        "data": {"source": "digits", "partition": {"name": "by-domain", "clients_per_domain": 1}},
        "model": {"name": "mlp", "hidden": [8]},
        "optimizer": {"name": "adam", "keep_state": True},
        "training": {"rounds": 3, "cohort": 1, "checkpoint_every": 3},
    }
    one = Variant(name="one", measure=trained, settings=settings)
    options = Options(out=tmp_path, workers=1)
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(tables, "make_progress", lambda *_: Interrupting())
        with pytest.raises(KeyboardInterrupt):
            measure([one], options)
    assert signal.getsignal(signal.SIGINT) == handler
    run = Run(tmp_path / "runs" / f"{one.key}-0")
    assert len(run.rounds) == 1
    assert run.checkpoint().state.round == 1
    (done,) = measure([one], options)["one"]
    assert done["rounds"] == 3


class _Silent:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        return None

    def start_from(self, round: int) -> None:
        return None

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        return None


def test_results_travel_in_one_file_and_are_not_measured_again(tmp_path: Path) -> None:
    def result(name: str, seed: int) -> dict[str, object]:
        return {"name": name, "seed": seed, "numbers": {"best": 0.5, "clock": [1.0, 2.0]}}

    there, back, file = tmp_path / "there", tmp_path / "back", tmp_path / "kept.json"
    (there / "results").mkdir(parents=True)
    for name, seed in (("FedAvg", 0), ("FedAvg", 1), ("atlas of cifar10", 0)):
        (there / "results" / f"{name}-{seed}.json").write_text(json.dumps(result(name, seed)))
    assert pack(there, file) == 3
    assert unpack(file, back) == 2
    assert unpack(file, back) == 0
    found = json.loads((back / "results" / "FedAvg-1.json").read_text())
    assert found == {"name": "FedAvg", "seed": 1, "numbers": {"best": 0.5}}


def test_figures_are_means_over_the_last_five_and_ten() -> None:
    """Twelve rounds of accuracies 0.01 to 0.12: the last five have the mean 0.1, the last ten 0.075; the worst client's
    is over five, clients' own over ten."""
    tested = [{"round": i, "evaluation": {"accuracy": i / 100, "worst_client": i / 200}} for i in range(1, 13)]
    rounds = [{**entry, "cohort": [0], "own": {"accuracy": entry["evaluation"]["accuracy"]}} for entry in tested]  # type: ignore[index]
    resolved = {"federation": {"clients": [{"name": "a", "num_train": 3}]}, "training": {"epochs": 1}}
    best, last = {"accuracy": 0.12, "round": 12}, {"accuracy": 0.12}
    timings = [{"round": i, "train": 1.0} for i in range(1, 13)]
    run: Any = SimpleNamespace(
        evaluations=tested, rounds=rounds, timings=timings, resolved=resolved, best=best, last=last, seconds=1.0
    )
    numbers = figures(run)
    found = [numbers[key] for key in ("last_five", "last_ten", "worst_client", "own")]
    assert found == pytest.approx([0.1, 0.075, 0.05, 0.075])


def test_a_cell_may_have_a_scale_and_digits_of_its_own() -> None:
    cells = (Cell("a", key="seconds", scale=1.0, digits=0), Cell("a"))
    table = Table(title="T", setting="S.", columns=("one", "two"), rows={"FedAvg": cells})
    assert "| FedAvg | 7 | 40.0 |" in render(table, {"a": [{"best": 0.4, "seconds": 7.2}]})


def test_a_training_has_the_seed_of_its_task(tmp_path: Path) -> None:
    settings = {
        "data": {"source": "digits", "partition": {"name": "by-domain", "clients_per_domain": 1}},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"rounds": 1, "cohort": 1},
    }
    trained(
        Task(name="t", settings=settings, seed=3, options=Options(out=tmp_path, workers=1), folder=tmp_path / "run")
    )
    assert json.loads((tmp_path / "run/resolved.json").read_text())["seeds"]["batches"] == 3


def test_a_variant_may_have_seeds_of_its_own(tmp_path: Path) -> None:
    own = Variant(name="a", measure=counted, settings={"value": 0.5}, seeds=(7,))
    (numbers,) = measure([own], Options(out=tmp_path, seeds=(0, 1)))["a"]
    assert numbers["best"] == pytest.approx(0.57)


@pytest.mark.parametrize("settings", [{"value": 0.5}, {"breaks": True}, {"fails": True}])
def test_a_process_gives_a_gpu_s_memory_back_after_each_training(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append("back"))
    measure([variant("a", **settings)], Options(out=tmp_path, seeds=(0, 1)))
    assert given == ["back", "back"]
