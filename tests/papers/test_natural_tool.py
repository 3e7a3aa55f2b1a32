import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedatlas.seeds import numpy_generator
from papers.tools import natural
from papers.tools.natural import Table, in_nature, measure, plants, read


@pytest.fixture
def table() -> Table:
    """Return four clinics of 80 rows, of two columns of numbers, and labels that depend on both."""
    rng = numpy_generator(0, "clinics")
    rows = pd.DataFrame({"clinic": np.repeat(["a", "b", "c", "d"], 80), "age": rng.normal(60, 9, 320).round(1)})
    rows["weight"] = rng.normal(75, 12, 320).round(1)
    score = (rows.age - 60) / 9 + (rows.weight - 75) / 12 + rng.normal(0, 0.3, 320)
    return Table(name="clinics", rows=rows.assign(ill=np.where(score > 0, "yes", "no")), client="clinic", label="ill")


def test_each_fault_is_planted_at_one_client_alone(table: Table) -> None:
    planted = list(plants(table, seed=5))
    assert [own.kind for own in planted] == [*natural.KINDS] * 3
    for own in planted:
        others = own.rows[own.rows.clinic != own.client].reset_index(drop=True)
        whole = table.rows[table.rows.clinic != own.client].reset_index(drop=True)
        pd.testing.assert_frame_equal(others, whole, check_dtype=False)
        mine = own.rows[own.rows.clinic == own.client]
        before = table.rows[table.rows.clinic == own.client]
        if own.kind == "labels-inverted":
            assert (mine.ill != before.ill).all()
        elif own.kind == "same-examples":
            assert len(mine) == 80 + 30
        else:
            changed = (mine[["age", "weight"]] != before[["age", "weight"]]).sum().sum()
            assert changed == (80 if own.kind == "other-scale" else 80 // 7)


def test_all_that_is_planted_in_alike_clinics_is_found(table: Table) -> None:
    found = measure(table, seed=5)
    assert found == dict.fromkeys(natural.KINDS, (3, 3, 0))


def test_tables_are_read_from_a_folder(table: Table, tmp_path: Path) -> None:
    table.rows.to_csv(tmp_path / "clinics.csv", index=False)
    (tmp_path / "meta.json").write_text(json.dumps({"clinics": ["clinic", "ill"]}))
    (again,) = read(tmp_path, "")
    assert in_nature(again) == "| clinics | 4, 320 | none |"
