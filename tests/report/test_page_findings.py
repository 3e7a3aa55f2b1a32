"""What a page of runs says about data that look wrong: what the check found, and nothing where nobody checked."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedatlas.report import write_page
from fedatlas.runs.run import CHECK, Run
from report.browser import open_page
from report.browser_pages import invoke, write_arrays, write_records
from report.pages import read_block
from report.run_folders import client, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_labels_that_nobody_checked_are_not_cleared(browser: "Browser", tmp_path: Path) -> None:
    """The check's command comes first, and no sentence says that labels are in order."""
    data = write_arrays(tmp_path / "mine.npz", ("a", "b", "c"))
    settings = ["--model", "mlp", "--set", "model.hidden=[4]", "--rounds", "2", "--workers", "1"]
    assert invoke("train", "--data", data, *settings, "--folder", tmp_path / "run").exit_code == 0
    (tmp_path / "run" / CHECK).unlink()
    with open_page(browser, write_page(tmp_path / "page.html", runs=[Run(tmp_path / "run")])) as page:
        wrong, first = (page.inner_text(f"#answers .answer >> nth={i}") for i in (0, 2))
        assert "were not checked" in wrong
        assert "fedatlas check " in first
        assert "--use group" not in first
    records = write_run(tmp_path / "records", [client(f"c{i}", num_test=50) for i in range(4)], lambda r, c: 20 + c)
    with open_page(browser, write_page(tmp_path / "records.html", runs=[records])) as page:
        assert "the labels and the data were not checked" in page.inner_text("#answers .answer >> nth=1")
        assert "the labels and the data were not checked" in page.inner_text("#why li >> nth=0")


def test_a_training_checks_its_data_and_a_later_report_still_says_what_was_found(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = invoke("train", "--data", "heart", "--rounds", "1", "--workers", "1", "--folder", run)
    assert done.exit_code == 0, done.output
    assert "switzerland (missing coded)" in done.output
    again = invoke("report", run, "--to", tmp_path / "again.html")
    assert again.exit_code == 0, again.output
    for path in (run / "report.html", tmp_path / "again.html"):
        block = read_block(path)
        names = [block["clients"]["name"][own["client"]] for own in block["check"]["suspects"]]
        assert names == ["switzerland", "va"]
        assert "missing-coded" in {own["kind"] for own in block["reasons"]["2"]}
        assert block["advice"][1]["why"] == "until repaired"
    assert "seconds" not in json.loads((run / CHECK).read_text())


def test_an_accuracy_is_held_against_always_answering_the_commonest_label(browser: "Browser", tmp_path: Path) -> None:
    """c0 has 90 and 10 labels and 40 % right; c1 has as many and 96 % right."""
    clients = [client(f"c{i}", num_test=50, labels=(90, 10)) for i in range(2)]
    run = write_run(tmp_path / "run", clients, lambda r, c: (20, 48)[c])
    with open_page(browser, write_page(tmp_path / "page.html", runs=[run])) as page:
        assert "would be right in about 90 %: the model does worse" in page.inner_text("#answers .answer >> nth=1")
        assert "fedavg does worse than that" in page.inner_text("#card")
        rows = [row.inner_text() for row in page.locator("#client-table tbody tr").all()]
        assert ["worse than one answer" in row for row in rows] == [True, False]
        page.click("#client-table tbody tr >> nth=1 >> button")
        assert "right in about 90 %" in page.inner_text("#card")
        assert "does worse" not in page.inner_text("#card")
        page.wait_for_function("() => document.getElementById('card').getBoundingClientRect().bottom > 0")
        page.click("#client-table tbody input >> nth=0")
        assert "1 selected" in page.inner_text("#table-count")


def test_zooming_in_never_empties_the_map(browser: "Browser", tmp_path: Path) -> None:
    with open_page(browser, write_records(tmp_path, 10)) as page:
        for _ in range(6):
            page.click("#zoom-in")
        box = page.locator("#map-canvas").bounding_box()
        assert box is not None
        places = [page.evaluate("client => window.fedatlasPage.screen(client)", i) for i in range(10)]
        assert any(0 <= x <= box["width"] and 0 <= y <= box["height"] for x, y in places)
