"""What a page of runs says about data that look wrong: what the check found, and nothing where nobody checked."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedatlas import check, federate, load_dataset
from fedatlas.atlas import Advice, Cells, Diagnosis, Finding, Member, Suspect
from fedatlas.config import run_federation
from fedatlas.data import NaturalId
from fedatlas.report import write_page
from fedatlas.runs import CHECK, Run
from report.browser import DESKTOP, PHONE, open_page
from report.browser_pages import invoke, write_arrays, write_records
from report.pages import read_block, unpack
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
        assert "would be right in 90 %: the model does worse" in page.inner_text("#answers .answer >> nth=1")
        assert "fedavg does worse than that" in page.inner_text("#card")
        rows = [row.inner_text() for row in page.locator("#client-table tbody tr").all()]
        assert ["worse than one answer" in row for row in rows] == [True, False]
        page.click("#client-table tbody tr >> nth=1 >> button")
        assert "right in 90 % of its training examples" in page.inner_text("#card")
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


def test_a_fixed_answer_is_judged_by_the_labels_of_the_test_part(tmp_path: Path) -> None:
    """Of the training labels most are 0; how often 0 is right, the test part says."""
    run = tmp_path / "run"
    done = invoke("train", "--data", "heart", "--rounds", "1", "--workers", "1", "--folder", run)
    assert done.exit_code == 0, done.output
    own = read_block(run / "report.html")["fixed_answers"]
    federation = run_federation(Run(run))
    right = []
    for i in range(len(federation)):
        label = int(federation.label_counts(i).argmax())
        tested = federation.label_counts(i, "test")
        right.append(float(tested[label] / tested.sum()))
    assert own["of"] == "test"
    assert [value / 10000 for value in unpack(own["right"])] == pytest.approx(right, abs=1e-4)


def test_a_suspect_card_says_how_to_see_it_in_a_spreadsheet(browser: "Browser", tmp_path: Path) -> None:
    """In plain words; the test's figure is behind a mark, and shown with the focus."""
    found = replace(
        check(federate(load_dataset("heart"), NaturalId(min_samples=1))),
        suspects=(
            Suspect(
                "va",
                "labels-inverted",
                "its labels look inverted",
                "",
                "",
                figure="z = 5.1",
                cells=Cells("average oldpeak", ("mean of", "ill here"), (("oldpeak", "0.74"),)),
            ),
        ),
    )
    with open_page(browser, write_page(tmp_path / "page.html", diagnosis=found)) as page:
        card = page.locator("#card")
        assert "In a spreadsheet: average oldpeak." in card.inner_text()
        assert card.locator(".seen tbody td").inner_text() == "0.74"
        assert "z = " not in page.inner_text("body")
        mark = card.locator(".exact")
        assert mark.get_attribute("aria-label") == "For statisticians: z = 5.1"
        mark.focus()
        assert "5.1" in mark.evaluate("mark => getComputedStyle(mark, '::after').content")
    shared = write_page(tmp_path / "shared.html", diagnosis=found, share=True)
    assert "oldpeak" not in shared.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0]


def test_a_click_beside_a_dot_leaves_the_card_and_charts_keep_their_size(browser: "Browser", tmp_path: Path) -> None:
    with open_page(browser, write_records(tmp_path, 10)) as page:
        chosen = page.get_attribute("#card", "data-client")
        assert chosen is not None
        box = page.locator("#map-canvas").bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 3, box["y"] + 3)
        assert page.get_attribute("#card", "data-client") == chosen
        sizes = "() => [...document.querySelectorAll('#time svg.curves')].map(own => own.getAttribute('viewBox'))"
        before = page.evaluate(sizes)
        page.evaluate(
            "() => { const own = document.getElementById('round'); own.value = 1;"
            " own.dispatchEvent(new Event('input')); }"
        )
        page.wait_for_function("() => window.fedatlasPage.state.frame === 1")
        assert page.evaluate(sizes) == before


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_a_name_brings_the_top_of_its_card_into_view(browser: "Browser", tmp_path: Path, size: dict[str, int]) -> None:
    """From the answers and from the table; on a phone the card lies in the page and covers nothing."""
    with open_page(browser, write_records(tmp_path, 10), size=size, reduced_motion="reduce") as page:
        for button in ("#answers .link", "#client-table tbody tr >> nth=3 >> th button"):
            page.locator(button).first.click()
            page.wait_for_function(
                "() => { const top = document.querySelector('#card h3').getBoundingClientRect().top;"
                " return top >= 0 && top < innerHeight; }"
            )
        still = "() => getComputedStyle(document.getElementById('card')).position"
        assert page.evaluate(still) == ("sticky" if size is DESKTOP else "static")


def _diagnosis(**findings: Finding) -> Diagnosis:
    """Two groups of two clients, whom nobody suspects, and in what they differ."""
    ways = dict.fromkeys(("inputs", "label_shares", "labelling"), Finding(False, 0.0, "No."))
    advice = (
        Advice("fedatlas train --data mine.npz --use group", "a model for each group that gains"),
        Advice("fedatlas compare fedavg fedper --data mine.npz", "each client's own last layer"),
    )
    people = tuple(Member(name=f"c{i}", examples=40, classes=2) for i in range(4))
    return Diagnosis(
        **(ways | findings),
        data="mine",
        clients=people,
        num_classes=2,
        groups=(0, 0, 1, 1),
        suspects=(),
        different=(),
        remarks=(),
        advice=advice,
        seconds=0.0,
    )


def _served(folder: Path, *algorithms: str) -> list[Run]:
    """Under the first algorithm the second group is served badly, under the others all are served well."""
    clients = [client(f"c{i}") for i in range(4)]
    return [
        write_run(
            folder / name, clients, lambda r, c, bad=(i == 0): 20 + c if bad and c > 1 else 90 - c, algorithm=name
        )
        for i, name in enumerate(algorithms)
    ]


GAP = "ts whole group, group 1, is served badly: mean accuracy 23 %, of the others 90 %."
CAUSES = {
    "labels": (
        {"labelling": Finding(True, 0.5, "'0' in group 0 is '1' in group 1: this explains 100 % of their difference.")},
        "Labels mean other things in other groups: '0' in group 0 is '1' in group 1: this explains 100 % of their "
        f"difference. I{GAP}",
    ),
    "inputs": (
        {"inputs": Finding(True, 2.0, "The same class differs between groups 0 and 1, 2.0 times as much.")},
        f"Inputs differ. The same class differs between group 0 and group 1, 2.0 times as much. I{GAP}",
    ),
    "inputs of others": (
        {"inputs": Finding(True, 2.0, "The same class differs between groups 2 and 3, 2.0 times as much.")},
        f"The cause is not known. What stands out: i{GAP}",
    ),
    "shares of the labels": (
        {"label_shares": Finding(True, 0.5, "By 0.50, where 0 is chance.")},
        f"The cause is not known. What stands out: i{GAP}",
    ),
}


@pytest.mark.parametrize("way", CAUSES)
def test_the_first_answer_says_what_the_check_found_about_the_worst_served(
    browser: "Browser", tmp_path: Path, way: str
) -> None:
    found, said = CAUSES[way]
    path = write_page(tmp_path / "page.html", runs=_served(tmp_path, "fedavg"), diagnosis=_diagnosis(**found))
    with open_page(browser, path) as page:
        assert page.inner_text("#answers .answer >> nth=1").split("\n")[-1] == said
        assert "What to try first?" in page.inner_text("#answers .answer >> nth=2")


def test_shares_of_the_labels_are_named_where_nothing_else_stands_out(browser: "Browser", tmp_path: Path) -> None:
    run, found = _served(tmp_path, "other", "fedavg")[1], Finding(True, 0.5, "By 0.50, where 0 is chance.")
    path = write_page(tmp_path / "page.html", runs=[run], diagnosis=_diagnosis(label_shares=found))
    with open_page(browser, path) as page:
        assert (
            page.inner_text("#answers .answer >> nth=1").split("\n")[-1]
            == "The cause is not known. Clients differ in the shares of their labels. By 0.50, where 0 is chance."
        )


def test_what_a_page_holds_is_ticked_off_and_the_next_step_comes_first(browser: "Browser", tmp_path: Path) -> None:
    runs = _served(tmp_path, "fedavg", "grouped")
    with open_page(browser, write_page(tmp_path / "page.html", runs=runs, diagnosis=_diagnosis())) as page:
        words = page.inner_text("#answers .answer >> nth=2").replace("\u00a0", " ")
        assert words.startswith("What to try next?\n\n✓ Done: grouped serves all 4 clients at 87 % or better.")
        assert page.inner_text("#answers .answer code") == "fedatlas compare fedavg fedper --data mine.npz"
        assert "1 more command" in words
        tried = page.locator("#try [data-command]")
        commands = [own.get_attribute("data-command") or "" for own in tried.all()]
        assert [command.split()[1] for command in commands] == ["compare", "export", "train"]
        assert "✓ Done: grouped serves all 4 clients" in tried.nth(2).inner_text().replace("\u00a0", " ")
        assert commands[1].endswith("--client c0")


def test_a_page_on_which_all_is_done_says_so(browser: "Browser", tmp_path: Path) -> None:
    diagnosis = replace(_diagnosis(), advice=_diagnosis().advice[1:])
    with open_page(
        browser, write_page(tmp_path / "page.html", runs=_served(tmp_path, "fedavg", "fedper"), diagnosis=diagnosis)
    ) as page:
        words = page.inner_text("#answers .answer >> nth=2").replace("\u00a0", " ")
        assert words == "What to try next?\n\n✓ Done: fedper serves all 4 clients at 87 % or better."
        assert page.locator("#try [data-command]").count() == 1
