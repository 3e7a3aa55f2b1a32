"""A new client's table is read and prepared as the run's was."""

from pathlib import Path

import pytest
import torch

from fedatlas.adapting.adapter import Adapter
from fedatlas.cli.train_config import train_config
from fedatlas.config import Config, run_reading
from fedatlas.data import load_dataset
from fedatlas.errors import DataError
from fedatlas.runs import Run
from fedatlas.training import Machine
from raising import raises

ROWS = "a,10,x,0\na,20,y,3\na,,x,0\nb,30,x,1\nb,40,y,0\nb,50,y,2\n" * 4


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "all.csv").write_text("ward,age,kind,score\n" + ROWS)
    data = {
        "source": str(tmp_path / "all.csv"),
        "client": "ward",
        "label": "score",
        "classes": {"low": [0], "high": [1, 2, 3]},
        "drop": [],
    }
    config = Config.load(
        None,
        ["training.rounds=2", "model.hidden=[4]"],
        data=data,
        model={"name": "mlp"},
        algorithm={"name": "fedper"},
    )
    return train_config(config, tmp_path / "run", machine=Machine(workers=1), show=False)


def test_a_newcomers_rows_are_scaled_and_encoded_as_the_runs(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text("age,kind,score\n25,x,0\n,q,1\n35,y,0\n45,x,0\n")
    options = run_reading(run, file)
    assert options == {
        "label": "score",
        "classes": {"low": [0], "high": [1, 2, 3]},
        "categorical": ["kind"],
        "drop": [],
    }
    data = load_dataset(file, options=options)
    with pytest.warns(UserWarning, match=r"'kind' has categories that were unknown in training: 'q' \(1 of 4 rows"):
        adapter = Adapter(run, data=data)
    age, kind = run.resolved["federation"]["form"]["preparation"]
    assert (kind["categories"], age["indicator"]) == (["x", "y"], True)
    scaled = (25 - age["mean"]) / age["std"]
    expected = torch.tensor([[scaled, 0, 1, 0], [0, 1, 0, 0]])
    torch.testing.assert_close(adapter.federation.data.inputs[:2], expected)
    assert adapter.federation.data.classes == ("low", "high")
    assert adapter.adapt(0, rounds=1, steps=2).num_examples == 3


def test_a_newcomer_may_have_one_class_but_not_other_columns(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text("age,kind,score\n25,x,0\n35,y,0\n")
    assert load_dataset(file, options=run_reading(run, file)).classes == ("low", "high")
    file.write_text("years,kind,score\n25,x,0\n35,y,1\n")
    with raises(DataError, "names-unfit", missing=["age"], got=["years"]):
        Adapter(run, data=load_dataset(file, options=run_reading(run, file)))


def test_a_run_prepares_rows_without_labels_for_its_network(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "patients.csv"
    file.write_text("name,kind,age\nann,y,30\nbob,x,\n")
    age, _ = run.resolved["federation"]["form"]["preparation"]
    inputs = run.prepare(file)
    torch.testing.assert_close(inputs, torch.tensor([[(30 - age["mean"]) / age["std"], 0, 0, 1], [0, 1, 1, 0]]))
    assert run.model("a")(inputs)[1].shape == (2, 2)
    file.write_text("name,kind\nann,y\n")
    with raises(DataError, "names-unfit", missing=["age"]):
        run.prepare(file)


def test_a_run_on_heart_reads_another_hospitals_table_as_its_own(tmp_path: Path) -> None:
    heart = Config.load(None, ["data.source=heart", "training.rounds=1", "model.name=linear"])
    run = train_config(heart, tmp_path / "run", machine=Machine(workers=1), show=False)
    head = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num\n"
    (tmp_path / "oslo.csv").write_text(head + "60,1,4,140,260,0,1,112,1,3,2,,7,4\n50,0,1,,200,0,0,150,0,0,,,3,0\n")
    data = load_dataset(tmp_path / "oslo.csv", options=run_reading(run, tmp_path / "oslo.csv"))
    assert data.classes == ("healthy", "ill")
    assert Adapter(run, data=data).federation.data.inputs.shape == (2, 31)
