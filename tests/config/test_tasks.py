"""Tasks in a config: what is predicted of a table and of an npz file, on the command line and for a newcomer."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedatlas
from fedatlas.cli.app import app
from fedatlas.config.config import Config
from fedatlas.errors import DataError, UsageError
from raising import raises


def write_table(path: Path, rows: int = 60, seed: int = 0, hospitals: int = 2) -> Path:
    """Ages and doses; a measured pressure, and whether there is fever or a cough."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "dose", "pressure", "fever", "cough"])
        for row in range(rows):
            age, dose = rng.integers(20, 90), round(rng.normal(), 3)
            hospital = f"h{row % hospitals}"
            pressure = round(100 + 0.5 * age + 5 * dose, 2)
            writer.writerow([hospital, age, dose, pressure, int(dose > 0), int(age > 50)])
    return path


def test_a_column_of_numbers_is_predicted_and_a_newcomer_adapted(tmp_path: Path) -> None:
    table, folder = write_table(tmp_path / "t.csv"), tmp_path / "run"
    settings = ["data.task=regression", "data.label=pressure", 'data.drop=["fever", "cough"]', "model.name=linear"]
    options = [word for setting in settings for word in ("--set", setting)]
    options += ["--set", "optimizer.lr=0.05", "--set", 'training.metrics=["mae", "r2"]', "--rounds", "20"]
    done = CliRunner().invoke(app, ["train", "--data", str(table), *options, "--folder", str(folder)])
    assert done.exit_code == 0, done.output
    run = fedatlas.Run(folder)
    assert run.metric == "rmse"
    assert run.best["rmse"] < run.evaluations[0]["evaluation"]["rmse"]
    assert run.last["r2"] is not None
    assert "targets 'pressure' (" in done.output
    new = write_table(tmp_path / "new.csv", seed=1, hospitals=1)
    done = CliRunner().invoke(app, ["adapt", str(folder), "--data", str(new), "--tune", "all", "--rounds", "5"])
    assert done.exit_code == 0, done.output
    (record,) = fedatlas.Run(folder).adapted
    assert record["rmse_after"] < record["rmse_before"]


def test_several_columns_of_zeros_and_ones_are_labels(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv")
    settings = ["data.task=multi-label", 'data.label=["fever", "cough"]', 'data.drop=["pressure"]']
    data = Config.load(None, [f"data.source={table}", *settings]).dataset()
    assert (data.task.name, data.classes, tuple(data.labels.shape)) == ("multi-label", ("fever", "cough"), (60, 2))
    frame = fedatlas.from_table(table, task="multi-label", label=["fever", "cough"], drop=["pressure"])
    assert torch.equal(frame.labels, data.labels)
    with raises(UsageError, "settings-conflict", setting="label"):
        fedatlas.from_table(table, label=["fever", "cough"])
    with raises(DataError, "column-unfit", column="age", what="targets"):
        fedatlas.from_table(table, task="multi-label", label=["fever", "age"])
    with raises(UsageError, "task-unfit", got="segmentation"):
        fedatlas.from_table(table, task="segmentation", label="fever")
    with raises(DataError, "not-classes", column="pressure") as caught:
        fedatlas.from_table(table, label="pressure")
    assert "task='regression'" in str(caught.value)
    with raises(UsageError, "unknown-name", got="regresion"):
        fedatlas.from_table(table, task="regresion", label="pressure")


@pytest.mark.parametrize("task", ["regression", "multi-label", "segmentation"])
def test_an_npz_file_holds_the_targets_of_any_task(task: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (12, 1, 5, 5), np.uint8) if task == "segmentation" else rng.normal(size=(12, 4))
    y = {"regression": rng.normal(size=12), "multi-label": rng.integers(2, size=(12, 3))}.get(task)
    if task == "segmentation":
        y = (x[:, 0] > 99).astype(np.int64)
    np.savez(tmp_path / "d.npz", x=x, y=y)
    data = Config.load(None, [f"data.source={tmp_path / 'd.npz'}", f"data.task={task}"]).dataset()
    whole = fedatlas.from_arrays(x, y, task=task)
    assert torch.equal(data.labels, whole.labels)
    assert data.classes == whole.classes
    with raises(UsageError, "option-unfit", source="digits"):
        Config.load(None, [f"data.task={task}"]).dataset()


def test_what_looks_at_classes_says_what_to_use_for_numbers(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv")
    options = ["--data", str(table), "--set", "data.task=regression", "--set", "data.label=pressure"]
    for words in (["check"], ["map", "--to", str(tmp_path / "a.safetensors"), "--source", "class-prototypes"]):
        done = CliRunner().invoke(app, [*words, *options])
        assert done.exit_code in (2, 3), done.output
        assert "feature-average" in done.output.splitlines()[-1]
    done = CliRunner().invoke(
        app, ["map", *options, "--source", "feature-average", "--to", str(tmp_path / "a.safetensors")]
    )
    assert done.exit_code == 0, done.output
