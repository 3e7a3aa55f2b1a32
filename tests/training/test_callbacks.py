"""Callbacks see the run's records, loggers' own readers read them back, and only ``stop`` ends a run."""

import csv
import importlib.util
import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedatlas
from fedatlas import Callback, CsvLog, EarlyStopping, MlflowLog, TensorBoardLog, WandbLog
from fedatlas.errors import UsageError
from fedatlas.testing import tiny_federation
from fedatlas.training.callbacks import Beginning
from fedatlas.training.rounds import Round
from raising import raises

SETTINGS = fedatlas.Settings(rounds=4, evaluate_every=2, workers=1)


def train(folder: Path, *callbacks: Callback, **more: Any) -> fedatlas.Run:
    settings = more.pop("settings", SETTINGS)
    return fedatlas.train(
        tiny_federation(), "fedavg", settings, folder=folder, progress=False, callbacks=callbacks, **more
    )


class Watch(Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def at_start(self, beginning: Beginning) -> None:
        self.seen.append(("start", beginning.round, beginning.metric))

    def at_round(self, found: Round) -> None:
        self.seen.append(("round", found.record.round))

    def at_evaluation(self, round: int, metrics: Mapping[str, Any]) -> None:
        self.seen.append(("evaluation", round, metrics["accuracy"]))

    def at_end(self) -> None:
        self.seen.append("end")


def test_a_callback_hears_of_the_start_each_round_each_evaluation_and_the_end(tmp_path: Path) -> None:
    watch = Watch()
    run = train(tmp_path / "a", watch)
    scores = {entry["round"]: entry["evaluation"]["accuracy"] for entry in run.evaluations}
    assert watch.seen == [
        ("start", 0, "accuracy"),
        ("round", 1),
        ("evaluation", 2, scores[2]),
        ("round", 2),
        ("round", 3),
        ("evaluation", 4, scores[4]),
        ("round", 4),
        "end",
    ]
    with raises(UsageError, "wrong-type", setting="callbacks"):
        train(tmp_path / "b", print)  # type: ignore[arg-type]


def test_early_stopping_counts_evaluations_without_a_better_one() -> None:
    """With patience 2, 0.5 0.6 0.6 0.55 end after the fourth: two in a row are not above 0.6. A loss goes down."""
    beginning = Beginning(folder=Path(), resolved={"training": {}}, round=0, metric="accuracy", higher_is_better=True)
    for metric, values in ((None, (0.5, 0.6, 0.6, 0.55)), ("loss", (3.0, 2.0, 2.0, 2.5))):
        patience = EarlyStopping(patience=2, metric=metric)
        patience.at_start(beginning)
        stops = []
        for number, value in enumerate(values, 1):
            patience.at_evaluation(number, {metric or "accuracy": value})
            stops.append(patience.stop)
        assert stops == [False, False, False, True]


def test_a_run_that_stops_early_can_be_resumed_to_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    class After(Callback):
        rounds = 0

        def at_round(self, found: Round) -> None:
            self.rounds = found.record.round

        @property
        def stop(self) -> bool:
            return self.rounds == 3

    assert len(train(tmp_path / "a", After()).rounds) == 3
    whole, resumed = train(tmp_path / "b"), train(tmp_path / "a", resume=True)
    assert whole.rounds == resumed.rounds


def test_csv_has_a_row_for_each_round_and_goes_on_when_resumed(tmp_path: Path) -> None:
    first = fedatlas.Settings(rounds=2, evaluate_every=2, workers=1)
    train(tmp_path, CsvLog(), settings=first)
    run = train(tmp_path, CsvLog(), resume=True)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    assert rows[0]["accuracy"] == ""
    assert float(rows[3]["accuracy"]) == run.last["accuracy"]
    assert float(rows[3]["domains/" + next(iter(run.last["domains"]))]) == next(iter(run.last["domains"].values()))


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="the package tensorboard is not installed")
def test_tensorboard_s_reader_reads_the_figures_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tmp_path, TensorBoardLog())
    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    found = [(event.step, event.value) for event in reader.Scalars("accuracy")]
    assert found == [(e["round"], pytest.approx(e["evaluation"]["accuracy"])) for e in run.evaluations]
    assert [event.step for event in reader.Scalars("train_loss")] == [1, 2, 3, 4]


@pytest.mark.skipif(not importlib.util.find_spec("mlflow"), reason="the package mlflow-skinny is not installed")
def test_mlflow_s_client_reads_the_figures_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = train(tmp_path, MlflowLog())
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("fedatlas")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.data.params["algorithm"] == "fedavg"
    history = client.get_metric_history(logged.info.run_id, "accuracy")
    assert [(one.step, one.value) for one in history] == [
        (e["round"], e["evaluation"]["accuracy"]) for e in run.evaluations
    ]


def test_weights_and_biases_is_asked_for_one_run_with_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the package notes what it is asked for."""
    asked: list[Any] = []
    begun = SimpleNamespace(
        log=lambda row, step: asked.append((step, row.get("accuracy"))), finish=lambda: asked.append("finish")
    )
    package = SimpleNamespace(init=lambda **given: asked.append(given) or begun)
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = train(tmp_path, WandbLog())
    scores = {entry["round"]: entry["evaluation"]["accuracy"] for entry in run.evaluations}
    begin, *rows, end = asked
    assert (begin["mode"], begin["dir"], begin["config"]["algorithm"]) == ("offline", str(tmp_path), "fedavg")
    assert rows == [(1, None), (2, scores[2]), (3, None), (4, scores[4])]
    assert end == "finish"


@pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="the package wandb is not installed")
def test_wandb_s_own_messages_read_the_file_of_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = train(tmp_path, WandbLog())
    wandb.teardown()  # its process writes the file in its own time
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    read = list(map(Record.FromString, wandb_parts(file.read_bytes())))
    (begun,) = [one.run for one in read if one.HasField("run")]
    assert begun.project == "fedatlas"
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert settings["algorithm"] == "fedavg"
    logged: dict[int, float] = {}
    for one in read:
        row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in one.history.item}
        if "accuracy" in row:
            logged[row["_step"]] = row["accuracy"]
    assert logged == {entry["round"]: entry["evaluation"]["accuracy"] for entry in run.evaluations}


def wandb_parts(content: bytes) -> Iterator[bytes]:
    """The messages of a W&B file, as in LevelDB's log: seven bytes, then blocks of 32 KiB.

    A block has pieces, each after its check, length and kind: whole (1), or a message's first, middle or last (2-4).
    """
    place, message = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        message += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield message
            message = b""


def test_a_logger_whose_package_is_missing_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with raises(UsageError, "package-missing", package="wandb"):
        train(tmp_path, WandbLog())
