"""Nodes with tables: scaled by the sums of all, and encoded alike, though none sees another's rows."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedatlas.config import Config
from fedatlas.data import Cells, CellTable, ColumnSums, Dataset, from_cells
from fedatlas.errors import DataError
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.node.gate import wanted_by
from fedatlas.flower.node.policy import policy_text
from fedatlas.flower.node.settings import open_node
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.server.app import serve
from fedatlas.flower.server.newcomers import adapt_newcomers
from fedatlas.parts import TABLE_SUMS
from fedatlas.testing import InProcessGrid
from flower_network import simulated
from hospitals import SETTINGS, hospitals, joined, write_all
from raising import raises
from tiny import same_bits


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "run.toml").write_text(Config.load(None, SETTINGS).to_toml())
    return Config.load(tmp_path / "run.toml")


def test_nodes_end_with_the_bits_of_one_table_of_all_their_rows(tmp_path: Path, config: Config) -> None:
    nodes = dict(sorted(hospitals(tmp_path).items()))
    write_all(tmp_path, list(nodes))
    run = serve(config, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes), tmp_path / "flower")
    federation = joined(nodes, config)
    here = simulated(config, federation, tmp_path / "here")
    form = run.resolved["federation"]["form"]
    assert federation.data.preparation is not None
    assert form["preparation"] == federation.data.preparation.described()
    assert form["shape"] == [31]
    assert same_bits(run.parameters(), here.parameters())


def test_a_newcomer_is_prepared_with_the_runs_sums(tmp_path: Path, config: Config) -> None:
    nodes = dict(sorted(hospitals(tmp_path).items()))
    config = Config.load(tmp_path / "run.toml", ["flower.clients=3"])
    (tmp_path / "run.toml").write_text(config.to_toml())
    (tmp_path / "policy.toml").write_text(policy_text(wanted_by(config)))
    nodes["va"]["policy"] = str(tmp_path / "policy.toml")
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes)
    grid.online.discard(4)
    run = serve(config, grid, tmp_path / "run")
    three = DataForm.from_values(run.resolved["federation"]["form"])
    grid.online.add(4)
    adapt_newcomers(config, grid, tmp_path / "run")
    (record,) = json.loads((tmp_path / "run" / "adapted.json").read_text())
    assert (record["client"], record["num_tested"]) == ("va", 50)
    data = open_node(nodes["va"], config).federation.data
    own, adopted = data.inputs, three.adopt(data).inputs
    assert own.shape[1] != adopted.shape[1] == 31
    assert three.preparation is not None
    age = three.preparation.columns[0]
    torch.testing.assert_close(adopted[0, 0], torch.tensor((data.table.values[0, 0] - age.mean) / age.std).float())


def tiny(name: str, ages: list[float], blood: list[str]) -> Dataset:
    columns: dict[str, Cells] = {"age": np.array(ages, float), "blood": blood, "label": ["a", "b"]}
    return from_cells(CellTable(name=name, where=name, columns=columns))


def test_sums_are_united_and_a_held_out_node_sends_none() -> None:
    """Ages 1, 3 and 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5; the third client's categories are unknown."""
    one, two = tiny("one", [1, 3], ["A", "B"]), tiny("two", [5, 7], ["0", "A"])
    held_out = tiny("three", [99, 9], ["C", "A"])
    rows = torch.arange(2)
    form = DataForm.of(one, rows).unite(DataForm.of(two, rows)).unite(DataForm.of(held_out))
    again = DataForm.from_values(form.values())
    assert again.sums is not None
    assert again.sums.described() == form.sums.described()  # type: ignore[union-attr]
    settled = again.settled()
    assert settled.preparation is not None
    assert settled.preparation.entries == ("age", "blood=0", "blood=A", "blood=B")
    assert settled.preparation.columns[0].mean == 4.0
    assert settled.preparation.columns[0].std == np.sqrt(5)
    assert DataForm.from_values(settled.values()) == settled
    assert DataForm.from_values(settled.record()) == settled
    with pytest.warns(UserWarning, match=r"'blood' has categories that were unknown in training: 'C' \(1 of 2 rows"):
        inputs = settled.adopt(held_out).inputs
    torch.testing.assert_close(inputs[0], torch.tensor([95 / 5**0.5, 0.0, 0.0, 0.0]))


def test_all_that_a_table_sends_is_declared() -> None:
    sums = DataForm.of(tiny("one", [1, 3], ["A", "B"])).sums
    assert sums is not None
    assert {one.name for one in TABLE_SUMS} == sums.described().keys() - {"columns", "kinds"}


def test_tables_that_do_not_fit_are_refused() -> None:
    one = DataForm.of(tiny("one", [1, 3], ["A", "B"]))
    other = tiny("two", [5, 7], ["0", "A"])
    assert other.table is not None
    with raises(DataError, "names-unfit", missing=["age"], got=["years"]):
        one.unite(DataForm.of(replace(other, table=replace(other.table, columns=("years", "blood")))))
    with raises(DataError, "kind-mismatch", column="blood", got="number", wanted="category"):
        one.unite(DataForm.of(tiny("two", [5, 7], ["0", "1"])))
    features = DataForm(kind="features", shape=(3,), classes=("a", "b"))
    with raises(DataError, "kind-mismatch", got="features of shape [3]", wanted="the rows of a table"):
        one.unite(features)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"count": [2, -1]}, "wrong-value"),
        ({"squares": [7.9, 0.0]}, "wrong-value"),
        ({"total": [float("nan"), 0.0]}, "wrong-value"),
        ({"total": [4.0]}, "wrong-count"),
        ({"columns": ["age", "age"]}, "wrong-count"),
    ],
)
def test_sums_that_no_table_has_are_refused(change: dict[str, list[object]], code: str) -> None:
    """Of 1 and 3 the squares' sum is 10; no two numbers with the sum 4 have less than 8."""
    table = tiny("one", [1, 3], ["A", "B"]).table
    assert table is not None
    sums = table.sums().described()
    assert sums["squares"] == [10.0, 0.0]
    with raises(DataError, code, what="columns"):
        ColumnSums.from_described({**sums, **change})
