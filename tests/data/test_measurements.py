"""Tables of measurements: columns found, gaps kept, numbers scaled by sums, and fifteen broken tables."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from fedatlas.data import Client, Dataset, Federation, Iid, NaturalId, federate, from_table, load_dataset
from fedatlas.data.preparation import Preparation
from fedatlas.data.table import Table
from fedatlas.errors import DataError, UsageError
from raising import raises

HEAD = "hospital,age,chol,blood,label\n"
ROWS = "a,63,233,A,1\na,41,,B,0\nb,57,300,A,1\nb,62,260,0,0\n"


def write(folder: Path, content: str, name: str = "t.csv") -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def numbers(*columns: Sequence[float]) -> Table:
    """Return a table of columns of numbers."""
    values = np.array(columns, float).T
    width = values.shape[1]
    return Table(columns=tuple("abcdef"[:width]), kinds=("number",) * width, values=values, categories=((),) * width)


def test_two_clients_sums_give_the_mean_and_deviation_of_all_their_rows() -> None:
    """2 and 4 have the sums (2, 6, 20), 6 and a gap (1, 6, 36): mean 12/3 = 4, variance 56/3 - 16 = 8/3."""
    table = numbers([2, 4, 6, np.nan])
    one, two = table.sums(np.array([0, 1])), table.sums(np.array([2, 3]))
    assert (one.count.tolist(), one.total.tolist(), one.squares.tolist()) == ([2], [6.0], [20.0])
    assert (two.count.tolist(), two.missing.tolist(), two.total.tolist()) == ([1], [1], [6.0])
    preparation = Preparation.from_sums([one, two])
    (column,) = preparation.columns
    assert column.mean == 4.0
    assert column.std == pytest.approx((8 / 3) ** 0.5)
    assert preparation.entries == ("a", "a missing")
    expected = [[-2 / column.std, 0], [0, 0], [2 / column.std, 0], [0, 1]]
    np.testing.assert_allclose(preparation.inputs(table), expected, rtol=1e-6)


def test_a_column_without_a_gap_has_no_indicator_one_without_a_value_no_input_and_a_constant_is_only_moved() -> None:
    table = numbers([1, 2], [np.nan, np.nan], [0.1, 0.1])
    preparation = Preparation.from_sums([table.sums()])
    assert preparation.entries == ("a", "c")
    assert [column.std for column in preparation.columns] == [0.5, 1.0, 1.0]
    np.testing.assert_allclose(preparation.inputs(table), [[-1, 0], [1, 0]], atol=1e-7)
    assert any(line == "left out, as no training row has a value: b" for line in preparation.lines())
    with raises(DataError, "data-empty", what="columns"):
        Preparation.from_sums([numbers([np.nan]).sums()])


def test_large_numbers_with_a_small_spread_keep_it() -> None:
    """Years around 2,000,000 that differ by 1: the squares are near 4e12, where doubles still count by 1e-3."""
    table = numbers([2_000_000, 2_000_001, 2_000_002])
    (column,) = Preparation.from_sums([table.sums([i]) for i in range(3)]).columns
    assert column.std == pytest.approx((2 / 3) ** 0.5, rel=1e-3)


def test_categories_become_one_input_each_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    rows = "a,10,1\na,9,0\nb,,1\nb,10,0\n"
    data = from_table(write(tmp_path, "site,stage,y\n" + rows), categorical=["stage"])
    assert data.table is not None
    assert (data.table.kinds, data.table.categories) == (("category",), (("9", "10"),))
    assert data.preparation is not None
    assert data.preparation.entries == ("stage=9", "stage=10", "stage missing")
    assert data.inputs.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


def split(data: Dataset) -> Federation:
    """Return three clients, the last held out: rows 0-1 train, 2 tests; 3-4 train, 5 tests; 6 is held out."""
    parts = [([0, 1], [2]), ([3, 4], [5]), ([6], [6])]
    clients = (
        Client(name=str(i), train=torch.tensor(train), test=torch.tensor(test), held_out=i == 2)
        for i, (train, test) in enumerate(parts)
    )
    return Federation(data=data, clients=tuple(clients)).prepare()


def test_only_the_training_rows_of_clients_that_train_count(tmp_path: Path) -> None:
    """Of 1, 2, 3, 4 the mean is 2.5; the test rows and the held-out client have 1,000 and the category z."""
    rows = ["1,p", "2,p", "1000,z", "3,q", "4,q", ",z", "1000,z"]
    text = "age,kind,y\n" + "".join(f"{row},{i % 2}\n" for i, row in enumerate(rows))
    federation = split(from_table(write(tmp_path, text)))
    assert federation.data.preparation is not None
    assert federation.data.preparation.entries == ("age", "kind=p", "kind=q")
    age = federation.data.preparation.columns[0]
    assert (age.mean, age.std) == (2.5, 1.25**0.5)
    assert federation.data.inputs[5].tolist() == [0.0, 0.0, 0.0]
    assert federation.data.inputs[6, 1:].tolist() == [0.0, 0.0]
    more = federation.hold_out(["1"]).data.preparation
    assert more is not None
    assert (more.columns[0].mean, more.entries) == (1.5, ("age", "kind=p"))


def test_folds_are_scaled_by_their_own_training_rows() -> None:
    federation = federate(load_dataset("heart"), NaturalId())
    for fold in range(2):
        part = federation.fold(fold, 4)
        rows = torch.cat([client.train for client in part]).numpy()
        assert part.data.table is not None
        assert part.data.preparation is not None
        mean = part.data.preparation.columns[0].mean
        assert mean == pytest.approx(part.data.table.column("age")[rows].mean())
        assert float(part.data.inputs[rows, 0].mean()) == pytest.approx(0, abs=1e-6)


def test_columns_are_found_by_their_usual_names_and_told(tmp_path: Path) -> None:
    text = "Patient_ID,Site,age,Diagnosis,domain\np1,x,3,sick,n\np2,x,4,well,n\np1,y,5,sick,s\n"
    data = from_table(write(tmp_path, text, "visits.csv"))
    assert (data.owners, data.classes, data.domains) == (("x", "y"), ("sick", "well"), ("n", "s"))
    assert data.table is not None
    assert data.table.columns == ("age",)
    assert data.inputs.tolist() == [[3.0], [4.0], [5.0]]
    assert data.remarks == (
        "visits: 3 rows; label 'Diagnosis' (sick: 2, well: 1); client 'Site' (2: x, y); domain 'domain'; ids "
        "'Patient_ID' (not used); 1 column of measurements with 0 of 3 cells missing",
    )
    named = from_table(tmp_path / "visits.csv", client="domain", label="Site", id=None, domain=None, drop=["Diagnosis"])
    assert (named.owners, named.classes) == (("n", "s"), ("x", "y"))
    assert named.table is not None
    assert named.table.columns == ("Patient_ID", "age")


@pytest.mark.parametrize(
    ("site", "identity"),
    [("Hospital Name", "Patient ID"), ("siteId", "patientNumber"), ("CLINIC_ID", "mrn"), ("center.no", "PATIENTID")],
)
def test_usual_names_are_found_however_they_are_written(tmp_path: Path, site: str, identity: str) -> None:
    data = from_table(write(tmp_path, f"{identity},{site},age,Target Name\n7,x,3,sick\n9,y,4,well\n"))
    assert data.owners == ("x", "y")
    assert data.table is not None
    assert data.table.columns == ("age",)


def test_a_column_that_counts_the_rows_is_told(tmp_path: Path) -> None:
    rows = "".join(f"{119 - i},{i % 7},{'ab'[i % 2]}\n" for i in range(20))
    data = from_table(write(tmp_path, "visit,age,label\n" + rows, "visits.csv"))
    assert [remark for remark in data.remarks if "counts the rows" in remark] == [
        "visits: column 'visit' counts the rows (100 to 119), and is used as a measurement. If it is an id, leave it "
        "out: drop=['visit'] (on the command line, --set 'data.drop=[\"visit\"]')"
    ]
    assert len(from_table(tmp_path / "visits.csv", drop=["visit"]).remarks) == 1


def test_labels_are_joined_to_classes(tmp_path: Path) -> None:
    file = write(tmp_path, "age,num\n1,0\n2,4\n3,1.0\n4,0\n")
    data = from_table(file, classes={"healthy": [0], "ill": [1, 2, 3, 4]})
    assert (data.classes, data.labels.tolist()) == (("healthy", "ill"), [0, 1, 1, 0])
    assert from_table(file).classes == ("0", "1", "4")
    assert from_table(file, classes=["4", "1", "0", "7"]).labels.tolist() == [2, 0, 1, 2]
    with raises(DataError, "names-unfit", got="4", row=2):
        from_table(file, classes={"healthy": [0], "ill": [1]})
    with raises(UsageError, "name-repeated", got="0", setting="classes"):
        from_table(file, classes={"healthy": [0], "ill": [0, 1, 4]})
    with raises(UsageError, "wrong-type", setting="classes"):
        from_table(file, classes="healthy")


def test_all_forms_of_a_table_give_the_same(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    csv = write(tmp_path, HEAD + ROWS)
    frame = pandas.read_csv(csv)
    parquet.write_table(arrow.Table.from_pandas(frame, preserve_index=False), tmp_path / "t.parquet")
    records = [{key: value for key, value in row.items() if value == value} for row in frame.to_dict("records")]
    write(tmp_path, "\n".join(json.dumps(row) for row in records), "t.jsonl")
    write(tmp_path, (HEAD + ROWS).replace(",", "\t"), "t.tsv")
    write(tmp_path, (HEAD + ROWS).replace(",", ";"), "semicolons.csv")
    write(tmp_path, "\ufeff" + HEAD + ROWS, "bom.csv")
    wanted = from_table(csv)
    assert wanted.inputs.tolist()[1] == [41.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    for source in ("t.parquet", "t.jsonl", "t.tsv", "semicolons.csv", "bom.csv"):
        found = from_table(tmp_path / source)
        assert found.inputs.tolist() == wanted.inputs.tolist(), source
        assert (found.owners, found.classes) == (wanted.owners, wanted.classes)
    framed = from_table(frame)
    assert framed.name == "frame"
    assert torch.equal(framed.inputs, wanted.inputs)
    assert torch.equal(framed.owner, wanted.owner)


def test_values_of_a_frame_that_are_missing_or_dates_are_seen(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"x": pandas.array([1, None, 3], dtype="Int64"), "kind": ["u", None, "v"], "y": [True, False, True]}
    )
    data = from_table(frame)
    assert data.classes == ("False", "True")
    assert data.table is not None
    assert data.table.missing.tolist() == [[False, False], [True, True], [False, False]]
    with raises(DataError, "column-unfit", what="dates", column="day"):
        from_table(frame.assign(day=pandas.Timestamp("2020-01-31")))
    with raises(UsageError, "wrong-type", setting="text"):
        from_table(frame, text="kind")


def test_domains_take_their_rows_of_the_table_along() -> None:
    heart = load_dataset("heart")
    part = heart.of_domains(["va", "cleveland"])
    assert part.table is not None
    assert heart.table is not None
    assert part.table.column("age")[:200].tolist() == heart.table.column("age")[heart.owner == 3].tolist()
    assert len(part.table) == len(part) == 503


DATES = ("2020-01-31", "31.1.2020", "1/31/2020", "2020-01-31 12:30")


@pytest.mark.parametrize(
    ("content", "code", "fields"),
    [
        (HEAD.replace("label", "sex") + ROWS, "column-missing", {"what": "label"}),
        (HEAD.replace("blood", "target") + ROWS, "column-unclear", {"columns": ["target", "label"]}),
        ("hospital,label\na,1\nb,0\n", "column-missing", {"what": "inputs"}),
        (HEAD + ROWS.replace(",0\n", ",1\n"), "one-class", {"column": "label", "got": "1"}),
        (HEAD + ROWS.replace("57", "old"), "column-unfit", {"what": "text", "column": "age", "row": 3, "got": "old"}),
        (HEAD.replace("chol", "age") + ROWS, "name-repeated", {"column": "age"}),
        ("id,age,y\n7,1,0\n8,2,1\n7,3,0\n", "name-repeated", {"column": "id", "got": "7", "first": 1, "row": 3}),
        *(
            (f"age,day,y\n1,{day},0\n2,{day},1\n", "column-unfit", {"what": "dates", "column": "day", "got": day})
            for day in DATES
        ),
        (HEAD + ROWS.replace("b,57,300,A,1", "b;57;300;A;1"), "wrong-count", {"what": "separators", "row": 3}),
        (HEAD + ROWS + "b,1,2\n", "wrong-count", {"what": "cells", "row": 5, "got": 3, "wanted": 5}),
        ("", "data-empty", {"what": "rows"}),
        (HEAD, "data-empty", {"what": "rows"}),
        ("site,age,y\na,,0\na,,1\n", "data-empty", {"what": "columns"}),
        (HEAD + ROWS.replace("300", "inf"), "not-finite", {"column": "chol", "row": 3}),
        (HEAD + ROWS.replace("A,1\na", "A,\na"), "value-missing", {"column": "label", "row": 1, "count": 1}),
        (HEAD + ROWS.replace("b,", "?,"), "value-missing", {"column": "hospital", "row": 3, "count": 2}),
        ("age;y\n1,5;0\n2,25;1\n", "column-unfit", {"what": "decimal commas", "column": "age", "got": "1,5"}),
        (
            "age,y\n" + "".join(f"{i} years,{i % 2}\n" for i in range(20, 40)),
            "column-unfit",
            {"what": "units", "column": "age", "row": 1, "got": "20 years"},
        ),
        ("PK\x03\x04[Content_Types].xml", "file-unreadable", {"what": "binary"}),
        ("age,y\n1,0\n2,\0\n", "file-unreadable", {"what": "binary"}),
        ("age,y\n1,0.5\n2,1\n", "not-classes", {"column": "y", "got": "0.5"}),
        ("age,y\n" + "".join(f"1,{i}\n" for i in range(60)), "not-classes", {"count": 60}),
        ("age,y\n" + "".join(f"1,name {i}\n" for i in range(60)), "not-classes", {"count": 60}),
        (
            "who,y\n" + "".join(f"person {i},{i % 2}\n" for i in range(60)),
            "column-unfit",
            {"what": "categories", "column": "who"},
        ),
    ],
)
def test_a_broken_table_is_answered_by_one_line(
    tmp_path: Path, content: str, code: str, fields: dict[str, object]
) -> None:
    with raises(DataError, code, **fields) as caught:
        from_table(write(tmp_path, content))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path)) or fields.get("what") == "columns"


def test_an_older_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes((HEAD + ROWS.replace("b,", "Zürich,")).encode("latin-1"))
    with raises(DataError, "file-unreadable", what="encoding", line=4):
        from_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(("hôpital" + HEAD + ROWS).encode("latin-1"))
    with raises(DataError, "file-unreadable", what="encoding", line=1):
        from_table(tmp_path / "t.csv")


def test_wrong_names_of_columns_are_answered_by_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path, HEAD + ROWS)
    for options in ({"label": "lable"}, {"client": "hospitl"}, {"drop": ["bloot"]}, {"categorical": ["blod"]}):
        with raises(UsageError, "unknown-name"):
            from_table(file, **options)
    with raises(UsageError, "option-unfit", settings=("context",)):
        from_table(file, context=5)
    with raises(UsageError, "option-unfit", settings=("drop",)):
        from_table(write(tmp_path, "text,client\nabc,ann\n", "texts.csv"), drop=["client"])
    with raises(DataError, "column-unfit", what="nested", column="x", row=2):
        from_table(write(tmp_path, '{"x": 1, "y": 0}\n{"x": [1], "y": 1}\n', "t.jsonl"))
    with raises(DataError, "wrong-type", row=2):
        from_table(write(tmp_path, '{"x": 1, "y": 0}\n[1]\n', "t.jsonl"))


def test_one_client_and_a_client_with_one_row_are_told(tmp_path: Path) -> None:
    alone = from_table(write(tmp_path, HEAD + ROWS.replace("b,", "a,")))
    assert "(1: a; one client alone can share nothing)" in alone.remarks[0]
    data = from_table(write(tmp_path, HEAD + ROWS + "c,50,200,A,1\n"))
    with pytest.warns(UserWarning, match="1 of 3 owners in t have fewer than 2 examples and are left out: c"):
        assert len(federate(data, NaturalId())) == 2


def test_a_column_without_any_value_is_told_and_kept_in_the_table(tmp_path: Path) -> None:
    rows = "".join(f"{'ab'[i // 4]},{i},,{i % 2}\n" for i in range(8))
    federation = federate(from_table(write(tmp_path, "site,age,ca,y\n" + rows)), NaturalId())
    assert federation.data.table is not None
    assert federation.data.table.kinds == ("number", "empty")
    assert federation.data.inputs.shape == (8, 1)
    assert federation.remarks[-1] == "t: left out, as no training row has a value: ca"


def test_ten_thousand_columns_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = (f"{'ab'[i % 2]},{i // 2 % 2}," + ",".join(map(str, rng.integers(0, 99, 10_000))) for i in range(16))
    names = ",".join(f"g{i}" for i in range(10_000))
    federation = federate(from_table(write(tmp_path, f"site,y,{names}\n" + "\n".join(lines))), NaturalId())
    assert federation.data.inputs.shape == (16, 10_000)


def test_a_few_lengths_of_time_are_categories(tmp_path: Path) -> None:
    rows = "".join(f"{2 * (i % 3)} weeks,{i % 2}\n" for i in range(12))
    data = from_table(write(tmp_path, "since,y\n" + rows))
    assert data.table is not None
    assert data.table.categories == (("0 weeks", "2 weeks", "4 weeks"),)


def test_a_byte_order_mark_is_not_a_part_of_the_first_name(tmp_path: Path) -> None:
    data = from_table(write(tmp_path, "\ufeff" + HEAD + ROWS))
    assert data.owners == ("a", "b")


def test_long_ids_keep_their_last_digits(tmp_path: Path) -> None:
    data = from_table(write(tmp_path, "id,age,y\n12345678901234567,5,0\n12345678901234568,6,1\n"))
    assert len(data) == 2


def test_rows_of_clients_may_count_alike(tmp_path: Path) -> None:
    data = from_table(write(tmp_path, "id,site,age,y\n1,a,5,0\n2,a,6,1\n1,b,7,0\n"))
    assert data.table is not None
    assert data.table.columns == ("age",)


def test_heart_comes_with_its_hospitals_and_its_attribution() -> None:
    """UCI's counts: 303, 294, 123 and 200 patients, of whom 139, 106, 115 and 149 are ill."""
    data = load_dataset("heart")
    assert data.owners == data.domains == ("cleveland", "hungarian", "switzerland", "va")
    assert data.owner is not None
    assert data.owner.bincount().tolist() == [303, 294, 123, 200]
    assert data.owner[data.labels == 1].bincount().tolist() == [139, 106, 115, 149]
    assert data.classes == ("healthy", "ill")
    assert data.table is not None
    zeros = data.owner[torch.from_numpy(data.table.column("chol") == 0)]
    assert zeros.bincount(minlength=4).tolist() == [0, 0, 123, 49]
    fewer = load_dataset("heart", options={"drop": ["chol"], "categorical": []})
    assert fewer.table is not None
    assert len(fewer.table.columns) == 12
    assert set(fewer.table.kinds) == {"number"}
    notice = (Path(load_dataset.__code__.co_filename).parents[1] / "embedded" / "NOTICE.md").read_text()
    assert all(name in notice for name in ("Janosi", "Steinbrunn", "Pfisterer", "Detrano", "CC BY 4.0"))


def test_rows_with_values_that_are_all_kept_for_the_test_are_told_apart_from_empty_columns(tmp_path: Path) -> None:
    """Of four rows two have an age; with half of the rows for the test, a seed puts just these two there."""
    (tmp_path / "four.csv").write_text("hospital,label,age\na,0,\na,1,\na,0,3\na,1,4\n")
    data = from_table(tmp_path / "four.csv")
    with raises(DataError, "data-empty", what="columns") as caught:
        federate(data, Iid(num_clients=1), test_fraction=0.5, seed=0)
    assert "none of the 2 training rows has a value" in str(caught.value)
