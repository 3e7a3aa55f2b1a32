"""What a reader can see of a fault in a spreadsheet: the same figures as a count or an average of the file's rows."""

import csv
from pathlib import Path
from statistics import fmean

import pytest

from fedatlas import check, federate, from_table
from fedatlas.atlas.doctor.cells import with_cells
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.data import EMBEDDED, NaturalId


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the embedded patients with the labels of va exchanged: 0 healthy, 1 ill."""
    path = tmp_path_factory.mktemp("table") / "heart.csv"
    with (EMBEDDED / "heart.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    for row in rows:
        ill = row[-1] != "0"
        row[-1] = "ill" if ill != (row[0] == "va") else "healthy"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


@pytest.fixture(scope="module")
def suspects(table: Path) -> tuple[Suspect, ...]:
    data = from_table(table, label="num", client="hospital")
    return check(federate(data, NaturalId(min_samples=1))).suspects


def test_inverted_labels_show_in_averages_of_the_file(table: Path, suspects: tuple[Suspect, ...]) -> None:
    (own,) = (one for one in suspects if one.kind == "labels-inverted")
    assert own.client == "va"
    assert own.cells is not None
    assert own.cells.columns[1:] == ("healthy here", "ill here", "healthy elsewhere", "ill elsewhere")
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert own.cells.rows
    for column, *means in own.cells.rows:
        by_hand = [
            fmean(
                float(row[column])
                for row in rows
                if row["num"] == label and here == (row["hospital"] == "va") and row[column]
            )
            for here in (True, False)
            for label in ("healthy", "ill")
        ]
        assert [float(mean) for mean in means] == pytest.approx(
            by_hand, abs=0.5 * 10 ** -len(means[0].partition(".")[2])
        )
        assert (by_hand[0] < by_hand[1]) != (by_hand[2] < by_hand[3]), "the other way round"
    column, *means = own.cells.rows[0]
    assert own.cells.how.startswith(
        f"average {column} by label. va: 'ill' {means[1]}, 'healthy' {means[0]}. The others"
    )


def test_a_column_that_is_wrong_anywhere_is_not_averaged(tmp_path: Path) -> None:
    """At c labels are exchanged; both columns show it, and at b 99 stands for missing in one of them."""
    rows = [
        (who, "yx"[(k + (who == "c")) % 2], 10 * (k % 2) + k / 20, 5 * (k % 2) + k / 20)
        for who in "abc"
        for k in range(20)
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["client,label,one,two", *(",".join(map(str, row)) for row in rows)]))
    federation = federate(from_table(path), NaturalId(min_samples=1))
    inverted = Suspect("c", "labels-inverted", "", "", "")
    for wrong, shown in (((), ["one", "two"]), ((Suspect("b", "missing-coded", "", "", "", "one"),), ["two"])):
        own = with_cells([inverted, *wrong], federation)[0]
        assert own.cells is not None
        assert sorted(row[0] for row in own.cells.rows) == shown


def test_a_number_for_missing_shows_in_a_count_of_rows(suspects: tuple[Suspect, ...]) -> None:
    said = {own.client: own.cells.how for own in suspects if own.kind == "missing-coded" and own.cells is not None}
    assert said["va"].startswith(
        "of the 200 rows of va 49 have chol = 0 and 7 have no value; at the others half of the values are from "
    )
    assert said["switzerland"].startswith("of the 123 rows of switzerland 123 have chol = 0; ")
