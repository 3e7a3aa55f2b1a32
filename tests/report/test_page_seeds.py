"""A page of several seeds, each with a split of its own: figures say of which runs they are, and what ± means."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedatlas.report import results_table, table_note, write_page
from fedatlas.runs import Run
from report.browser import open_page
from report.run_folders import client, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RIGHT = {"fedavg": ((40, 60), (50, 90), (30, 60)), "fedprox": ((50, 70), (62, 102), (41, 71))}
"""By seed, of 100 test examples of client a and 120 of client b."""
CLIENTS = [client("a"), client("b", num_test=120)]


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [
        write_run(
            tmp_path / f"{name}-{seed}",
            CLIENTS,
            lambda r, c, own=own: own[c],
            algorithm=name,
            seed=seed,
            fingerprint=f"split {seed}",
        )
        for name, found in RIGHT.items()
        for seed, own in enumerate(found)
    ]


def test_tiles_of_several_seeds_are_over_all_of_them_or_say_of_which(
    browser: "Browser", runs: list[Run], tmp_path: Path
) -> None:
    """Of 220: .4545, .6364, .4091: .50 ± .1203. The worst .4, .5, .3: .40 ± .10. Over clients .45, .625, .4: .49 ± .12.

    Seed 0 alone: client a, .40.
    """
    with open_page(browser, write_page(tmp_path / "page.html", runs=runs)) as page:
        tiles = {
            tile.split("\n")[0]: tile.split("\n")[1:] for tile in page.locator("#figures .figure").all_inner_texts()
        }
        over = "mean ± standard deviation over 3 runs"
        assert tiles["accuracy over test examples"] == ["50 ± 12 %", over]
        assert tiles["worst client"] == ["40 ± 10 %", over]
        assert tiles["accuracy over clients"] == ["49 ± 12 %", over]
        assert tiles["clearly below the mean over clients"][1].endswith(", seed 0")
        assert "a: accuracy 40 %" in page.inner_text("#answers").replace("\u00a0", " ")
        assert "(seed 0)" in page.inner_text("#answers")
        assert "Clients, their figures and the map are of seed 0." in page.inner_text("#top")


def test_plus_and_minus_is_the_standard_deviation_in_the_terminal_and_on_the_page(
    browser: "Browser", runs: list[Run], tmp_path: Path
) -> None:
    """No interval is written so: fedprox is 20, 24, 22 of 220 better: .10, and half 4.303 x .0091 / sqrt 3 = .0226."""
    row = results_table(runs)[0]
    assert (row["accuracy"], row["worst client"]) == ("50.0 ± 12.0", "40.0 ± 10.0")
    assert table_note(runs) == "accuracies in percent; mean ± standard deviation over runs"
    assert table_note(runs[:1]) == "accuracies in percent"
    with open_page(browser, write_page(tmp_path / "page.html", runs=runs)) as page:
        first, second = page.locator("#comparison tbody tr").all_inner_texts()
        assert "50 ± 12" in first
        assert "40 ± 10" in first
        assert "+10 (+8 to +12)" in second
        note = page.locator("#comparison + .note, #comparison .note").first.inner_text()
        assert "± is the standard deviation over runs. In brackets: 95 % intervals, of differences over seeds." in note
        assert "+10 points of accuracy against fedavg (95 % interval +8 to +12, over 3 seeds)." in page.inner_text(
            "#top"
        )


def test_one_run_has_its_interval_in_brackets(browser: "Browser", runs: list[Run], tmp_path: Path) -> None:
    """100 of 220, half 1.96 x sqrt(.4545 x .5455 / 220) = .0658."""
    with open_page(browser, write_page(tmp_path / "page.html", runs=runs[:1])) as page:
        tile = page.locator("#figures .figure").first.inner_text().split("\n")
        assert tile[1:] == ["45 % (39–52)", "each test example counts alike; 95 % interval"]
        assert "±" not in page.inner_text("body")
