"""Rows of a client's table for its card: of several classes, in the columns that differ most from the others."""

from __future__ import annotations

import io

import numpy as np
import torch

from fedatlas.data import Client, Dataset, Federation, Regression, Table
from fedatlas.runs.example_rows import client_rows
from fedatlas.runs.previews import portraits

VALUES = np.array([[1, 5, 0], [1, 7, 0], [1, np.nan, 1], [3, 5, 0], [3, 7, 1], [3, 6, 1]])


def federation(**changes: object) -> Federation:
    """Two hospitals of three patients. Ages are far apart, the weights alike, of colours one differs."""
    table = Table(
        columns=("weight", "age", "colour"),
        kinds=("number", "number", "category"),
        values=VALUES[:, [1, 0, 2]],
        categories=((), (), ("red", "blue")),
    )
    settings: dict[str, object] = {
        "name": "patients",
        "inputs": torch.zeros(6, 3),
        "labels": torch.tensor([0, 0, 1, 1, 1, 0]),
        "classes": ("well", "ill"),
        "table": table,
    }
    data = Dataset(**(settings | changes))  # type: ignore[arg-type]
    parts = torch.arange(6).split(3)
    clients = tuple(Client(name=f"h{i}", train=part, test=part[:0]) for i, part in enumerate(parts))
    return Federation(data=data, clients=clients, partition="by hand")


def test_rows_are_of_both_classes_and_the_column_that_differs_most_comes_first() -> None:
    """Ages 1 and 3 are two standard deviations apart; a missing weight counts as 3 x 1/3; a third of colours, 2/3."""
    rows = client_rows(federation(), [0, 1], count=2)
    assert rows is not None
    assert rows[0].tolist() == [
        ["label", "age", "weight", "colour"],
        ["well", "1", "5", "red"],
        ["ill", "1", "", "blue"],
        ["", "1", "6", "67% red"],
        ["", "3", "6", "67% blue"],
    ]
    assert rows[1, 1:3, 0].tolist() == ["well", "ill"]


def test_a_column_that_one_client_lacks_is_told_as_missing() -> None:
    values = VALUES.copy()
    values[2, 1], values[3:, 1] = 6, np.nan
    table = Table(columns=("a", "b", "c"), kinds=("number",) * 3, values=values, categories=((),) * 3)
    rows = client_rows(federation(table=table), [1], count=1)
    assert rows is not None
    assert rows[0, :, 1].tolist() == ["b", "", "100% missing", "6"]


def test_features_without_names_texts_and_numbers_to_predict_have_rows_too() -> None:
    bare = client_rows(federation(table=None, inputs=torch.arange(18.0).view(6, 3)), [0], count=1)
    assert bare is not None
    assert bare[0, :2].tolist() == [["label", "input 1", "input 2", "input 3"], ["well", "0", "1", "2"]]
    numbers = torch.tensor([[0.5], [2.0], [3.0], [4.0], [5.0], [6.0]])
    told = client_rows(federation(labels=numbers, classes=("dose",), task=Regression()), [0], count=2)
    assert told is not None
    assert told[0, 1:3, 0].tolist() == ["0.5", "2"]
    words = {"table": None, "inputs": torch.tensor([[0, 1]] * 6), "vocabulary": ("good", "day")}
    texts = client_rows(federation(**words), [0], count=2)
    assert texts is not None
    assert texts[0, :3].tolist() == [["label", "text"], ["well", "good day"], ["ill", "good day"]]


def test_a_run_keeps_the_rows_as_texts_that_need_no_code_to_read() -> None:
    with np.load(io.BytesIO(portraits(federation()) or b""), allow_pickle=False) as file:
        assert file["rows"].shape == (2, 9, 4)
        assert file["rows"].dtype.kind == "U"
        assert file["pictured"].tolist() == [0, 1]
