from pathlib import Path

from papers.options import Options
from papers.tables import Cell, Table, write_table

TABLE = Table(
    title="Table 2: DomainNet, two methods",
    setting="A setting.",
    columns=("PACS", "CIFAR-10 best"),
    rows={"Digit-Five": [Cell("a", 1.5), Cell("b")], "DomainNet": [Cell("a"), Cell("b", 2.5)]},
)
RESULTS = {"a": [{"best": 0.5}], "b": [{"best": 0.25}]}


def test_a_quick_table_names_the_data_that_were_used(tmp_path: Path) -> None:
    text = write_table(TABLE, RESULTS, Options(quick=True, out=tmp_path))
    assert text.startswith("### Table 2: embedded digits, two methods, --quick")
    assert "| | embedded digits | embedded digits best |" in text
    assert "| embedded digits | 50.0 (1.5) | 25.0 |" in text
    assert "| embedded digits (2) | 50.0 | 25.0 (2.5) |" in text
    for name in ("DomainNet", "PACS", "CIFAR-10", "Digit-Five"):
        assert name not in text
    assert "in brackets the paper's, of its own data" in text
    assert (tmp_path / "table-2.md").read_text() == text


def test_a_whole_table_keeps_the_papers_names_and_numbers(tmp_path: Path) -> None:
    text = write_table(TABLE, RESULTS, Options(out=tmp_path))
    assert "| DomainNet | 50.0 | 25.0 (2.5) |" in text
    assert "| Digit-Five | 50.0 (1.5) | 25.0 |" in text
