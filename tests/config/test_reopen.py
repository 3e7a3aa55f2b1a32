"""The data that a finished run is opened with: a newcomer's become of the run's form."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from fedatlas import train
from fedatlas.algorithms import fedavg
from fedatlas.config.config import Config
from fedatlas.config.reopen import run_federation, run_reading
from fedatlas.data import Dataset, Iid, federate
from fedatlas.errors import DataError
from fedatlas.runs import CONFIG, RESOLVED, Run, RunFolder
from fedatlas.testing import tiny_federation
from fedatlas.training import Machine, fingerprint, make_progress, train_run
from raising import raises
from report.run_folders import client, write_run

SMALL = {"model": "cnn", "model_options": {"width": 4}, "rounds": 1, "workers": 1, "progress": False}


def test_a_run_on_clients_that_shift_is_opened_with_the_same_clients_and_knows_their_types(tmp_path: Path) -> None:
    partition = {"name": "permuted-labels", "num_clients": 4, "num_groups": 2, "examples_per_client": 12}
    config = Config.load(
        data={"source": "digits", "partition": partition, "held_out": 1},
        model={"name": "mlp"},
        training={"rounds": 1},
    )
    made = config.federation()
    settings = config.run_settings(machine=Machine(workers=1))
    folder = RunFolder(folder=tmp_path, config=config.to_toml())
    run = train_run(made, config.algorithm(), settings, folder, progress=make_progress(False, "", 1))
    found = run_federation(Run(tmp_path))
    assert torch.equal(found.data.labels, made.data.labels)
    assert fingerprint(found) == fingerprint(made)
    assert [c.type for c in found] == [c["type"] for c in run.resolved["federation"]["clients"]]
    assert [c["domain"] for c in run.resolved["federation"]["clients"]] == [None] * 4
    assert set(run.rounds[-1]["evaluation"]["domains"]) == {"labels as given", "labels permuted 1"}


def test_a_data_set_of_several_sites_is_several_new_clients(tmp_path: Path) -> None:
    run = train(tiny_federation("images"), fedavg(), folder=tmp_path, **SMALL)  # type: ignore[arg-type]
    own = tiny_federation("images").data
    two = replace(own, domain=torch.arange(len(own)) % 2, domains=("north", "south"))
    assert [client.name for client in run_federation(run, two)] == ["north-0", "south-0"]
    whose = replace(own, owner=torch.arange(len(own)) % 3, owners=("a", "b", "c"))
    assert [client.name for client in run_federation(run, whose)] == ["a", "b", "c"]
    tested = run_federation(run, replace(two, is_test=torch.arange(len(own)) < 5)).clients
    assert [client.test.tolist() for client in tested] == [[0, 2, 4], [1, 3]]
    split = run_federation(run, replace(own, is_test=torch.arange(len(own)) < 5))
    assert (split.clients[0].name, split.clients[0].test.tolist()) == (own.name, [0, 1, 2, 3, 4])


def test_a_newcomer_may_lack_classes_and_is_scaled_as_the_run_was(tmp_path: Path) -> None:
    whole = tiny_federation("images").data
    scaled = replace(tiny_federation("images"), data=replace(whole, mean=(0.5,) * 3, std=(0.2,) * 3))
    run = train(scaled, fedavg(), folder=tmp_path, **SMALL)  # type: ignore[arg-type]
    some = (whole.labels > 0).nonzero().flatten()
    brought = Dataset(
        name="new", inputs=whole.inputs[some], labels=2 - whole.labels[some], classes=whole.classes[:0:-1]
    )
    data = run_federation(run, brought).data
    assert (data.classes, data.mean, data.std) == (whole.classes, (0.5,) * 3, (0.2,) * 3)
    assert torch.equal(data.labels, whole.labels[some])
    strange = replace(brought, classes=("strange", *brought.classes[1:]))
    with raises(DataError, "names-unfit", what="classes"):
        run_federation(run, strange)
    with raises(DataError, "data-form"):
        run_federation(run, replace(brought, inputs=brought.inputs[:, :, :4, :4]))
    grey = replace(tiny_federation("images").data, inputs=whole.inputs[:, :1], mean=(), std=())
    with raises(DataError, "data-form"):
        run_federation(run, grey)


def test_a_newcomers_files_are_read_for_the_runs_task_though_the_runs_own_are_gone(tmp_path: Path) -> None:
    resolved = write_run(tmp_path / "run", [client("a")], lambda r, c: 50).resolved

    def reading(new: str, classes: list[str], **data: object) -> dict[str, object]:
        resolved["federation"] |= {"kind": "tokens", "classes": classes}
        resolved["federation"]["form"]["vocabulary"] = ["", "a", "b"]
        (tmp_path / "run" / RESOLVED).write_text(json.dumps(resolved))
        (tmp_path / "run" / CONFIG).write_text(Config.load(data=data).to_toml())
        return run_reading(Run(tmp_path / "run"), new)

    texts = {"source": "gone.csv", "context": 9, "fraction": 0.1}
    assert reading("new.csv", ["", "a", "b"], **texts) == {"context": 9, "label": None}
    assert reading("new.csv", ["no", "yes"], **texts) == {"context": 9, "label": "label"}
    assert reading("new.csv", ["no", "yes"], **texts, label="mood") == {"context": 9, "label": "mood"}
    assert reading("new.npz", ["no", "yes"], **texts) == {}
    assert reading(str(tmp_path), ["no", "yes"], source="gone", size=7) == {"size": 7}
    assert reading("digits", ["no", "yes"], source="gone", size=7) == {}


def test_a_newcomers_tokens_are_numbered_as_the_runs_were(tmp_path: Path) -> None:
    data = Dataset(
        name="texts",
        inputs=torch.arange(60).view(20, 3) % 4,
        labels=torch.arange(20) % 2,
        classes=("no", "yes"),
        vocabulary=("", "a", "b", "c"),
    )
    options = {"model": "char_lstm", "model_options": {"hidden": 4}, "rounds": 1, "workers": 1, "progress": False}
    run = train(federate(data, Iid(num_clients=2)), fedavg(), folder=tmp_path, **options)  # type: ignore[arg-type]
    turned = replace(data, inputs=len(data.vocabulary) - 1 - data.inputs, vocabulary=data.vocabulary[::-1])
    found = run_federation(run, turned).data
    assert found.vocabulary == data.vocabulary
    assert torch.equal(found.inputs, data.inputs)
    with raises(DataError, "names-unfit", what="tokens"):
        run_federation(run, replace(data, vocabulary=("new", *data.vocabulary[1:])))
