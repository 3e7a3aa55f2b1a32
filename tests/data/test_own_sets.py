"""Data sets of torch and of Hugging Face become clients as they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedatlas
from fedatlas.errors import DataError, UsageError
from raising import raises


def test_a_torch_data_set_is_read_as_its_arrays() -> None:
    x, y = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    data = fedatlas.from_torch(TensorDataset(x, y))
    assert torch.equal(data.inputs, x)
    assert torch.equal(data.labels, y)


def test_a_list_of_data_sets_is_one_for_each_client() -> None:
    parts = [TensorDataset(torch.full((4 + i, 2), float(i)), torch.arange(4 + i) % 2) for i in range(3)]
    federation = fedatlas.federate(fedatlas.from_torch(parts))
    assert [client.name for client in federation] == ["client-0", "client-1", "client-2"]
    for number, client in enumerate(federation):
        assert len(client.train) + len(client.test) == 4 + number
        assert set(federation.data.inputs[client.train].flatten().tolist()) == {float(number)}


def test_what_cannot_be_read_is_told() -> None:
    with raises(DataError, "wrong-type", what="items"):
        fedatlas.from_torch(torch.zeros(4, 2).unbind())
    with raises(DataError, "wrong-shape", what="inputs"):
        fedatlas.from_torch([(np.zeros(2), 0), (np.zeros(3), 1)])


def test_a_hugging_face_data_set_brings_names_and_owners(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"numbers": [[float(i), 1.0] for i in range(8)], "label": [0, 1] * 4, "who": ["ann"] * 4 + ["bob"] * 4}
    labels = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features(
        {"numbers": datasets.Sequence(datasets.Value("float32")), "label": labels, "who": datasets.Value("string")}
    )
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "set")
    found = datasets.load_from_disk(tmp_path / "set")
    data = fedatlas.from_huggingface(found, owner="who")
    assert data.classes == ("no", "yes")
    assert data.owners == ("ann", "bob")
    assert data.inputs[3].tolist() == [3.0, 1.0]
    with raises(UsageError, "unknown-name", got="client"):
        fedatlas.from_huggingface(found, owner="client")
