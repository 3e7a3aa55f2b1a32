"""The page in a real browser: what a person does with it, and what it must never do."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedatlas.cli import Stage, tell_of_heart
from fedatlas.runs import Run
from report.browser import DESKTOP, PHONE, open_page, read_axe, script
from report.browser_pages import HOSTILE, invoke, write_records, write_training

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

NAMES = tuple(f"ward {i}" for i in range(10))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Ten clients, their training and its page."""
    return write_training(tmp_path_factory.mktemp("training"), NAMES)


@pytest.fixture
def page(browser: "Browser", training: tuple[Run, Path]) -> Iterator["Page"]:
    with open_page(browser, training[1]) as opened:
        yield opened


def draw_lasso(page: "Page", around: list[int]) -> None:
    """Draw a lasso with the mouse around clients: a box, a few pixels larger than their places."""
    page.click("#lasso")
    assert page.get_attribute("#lasso", "aria-pressed") == "true"
    places = [script(page, "client => window.fedatlasPage.screen(client)", client) for client in around]
    page.locator("#map-canvas").scroll_into_view_if_needed()
    box = page.locator("#map-canvas").bounding_box()
    assert box is not None
    left, right = (box["x"] + edge for edge in (min(x for x, _ in places) - 6, max(x for x, _ in places) + 6))
    top, bottom = (box["y"] + edge for edge in (min(y for _, y in places) - 6, max(y for _, y in places) + 6))
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top)):
        page.mouse.move(x, y, steps=6)
    page.mouse.up()


def inside(page: "Page", around: list[int], count: int) -> list[int]:
    """Return the clients whose places are in the box of a lasso around some of them."""
    places = [script(page, "client => window.fedatlasPage.screen(client)", client) for client in range(count)]
    xs, ys = zip(*(places[client] for client in around), strict=True)
    low, high = (min(xs) - 6, min(ys) - 6), (max(xs) + 6, max(ys) + 6)
    return [i for i, (x, y) in enumerate(places) if low[0] < x < high[0] and low[1] < y < high[1]]


def selected(page: "Page") -> list[int]:
    return sorted(script(page, "() => window.fedatlasPage.state.selected"))


def rows(page: "Page") -> list[int]:
    """Return the clients in the table, in its order."""
    found: list[Locator] = page.locator("#client-table tbody tr").all()
    return [int(row.get_attribute("data-client") or -1) for row in found]


def train_again(command: str, folder: Path) -> Run:
    """Run a command of the page as it stands, but into another folder."""
    program, *words = shlex.split(command)
    assert program == "fedatlas"
    words[words.index("--folder") + 1] = str(folder)
    done = invoke(*words, "--workers", 1)
    assert done.exit_code == 0, done.output
    return Run(folder)


def same_records(one: Run, other: Run) -> bool:
    files = ("rounds.jsonl", "clients.jsonl")
    return all((one.folder / file).read_bytes() == (other.folder / file).read_bytes() for file in files)


def test_a_lasso_becomes_a_command_and_a_config_that_train_the_same(
    page: "Page", training: tuple[Run, Path], tmp_path: Path
) -> None:
    expected = inside(page, [2, 3], 10)
    assert 2 <= len(expected) < 10
    draw_lasso(page, [2, 3])
    assert selected(page) == expected
    assert page.get_attribute("#selection", "data-count") == str(len(expected))
    page.select_option("#action", "held_out")
    by_command = train_again(page.inner_text("#command"), tmp_path / "command")
    page.select_option("#form", "config")
    (tmp_path / "page.toml").write_text(page.inner_text("#command"))
    done = invoke("train", "--config", tmp_path / "page.toml", "--folder", tmp_path / "config", "--workers", 1)
    assert done.exit_code == 0, done.output
    names = [NAMES[client] for client in expected]
    by_hand = ["train", "--config", training[0].folder / "config.toml", "--folder", tmp_path / "hand", "--workers", 1]
    done = invoke(*by_hand, "--set", f"data.held_out={names!r}".replace("'", '"'))
    assert done.exit_code == 0, done.output
    assert [c["name"] for c in by_command.resolved["federation"]["clients"] if c["held_out"]] == names
    assert same_records(by_command, Run(tmp_path / "config"))
    assert same_records(by_command, Run(tmp_path / "hand"))


@pytest.mark.parametrize("action", ["leave_out", "group"])
def test_other_actions_are_commands_that_run(page: "Page", tmp_path: Path, action: str) -> None:
    script(page, "clients => window.fedatlasPage.select(clients)", [0, 4])
    page.select_option("#action", action)
    run = train_again(page.inner_text("#command"), tmp_path / "again")
    assert len(run.client_names) == (8 if action == "leave_out" else 10)


def test_the_page_adapts_its_run_to_selected_clients(page: "Page", training: tuple[Run, Path]) -> None:
    script(page, "clients => window.fedatlasPage.select(clients)", [3])
    page.select_option("#action", "adapt")
    words = shlex.split(page.inner_text("#command"))
    assert words == ["fedatlas", "adapt", str(training[0].folder), "--client", "ward 3"]
    done = invoke(*words[1:], "--rounds", 1, "--steps", 1)
    assert done.exit_code == 0, done.output


def test_a_client_is_found_by_its_name(page: "Page") -> None:
    page.fill("#map-search", "ward 7")
    page.press("#map-search", "Enter")
    assert page.get_attribute("#card", "data-client") == "7"
    assert "ward 7" in page.inner_text("#card h3")
    page.fill("#table-search", "ward 7")
    assert rows(page) == [7]
    page.fill("#table-search", "nobody")
    assert rows(page) == []


def test_the_table_starts_with_the_worst_and_sorts_by_any_column(page: "Page", training: tuple[Run, Path]) -> None:
    run = training[0]
    last = {own["client"]: own["accuracy"] for own in run.clients if own["round"] == 3}
    worst_first = [last[NAMES[client]] for client in rows(page)]
    assert worst_first == sorted(worst_first)
    page.click("#client-table th button >> nth=0")
    assert rows(page) == list(range(10))
    page.click("#client-table th button >> nth=0")
    assert rows(page) == list(range(9, -1, -1))


def test_the_slider_shows_an_earlier_round(page: "Page", training: tuple[Run, Path]) -> None:
    before = page.inner_text("#time")
    page.locator("#round").focus()
    page.keyboard.press("Home")
    first = [own["accuracy"] for own in training[0].clients if own["round"] == 1]
    said = page.inner_text("#time")
    assert said != before
    assert "round 1:" in said
    assert f"{100 * sum(first) / len(first):.0f}" in said


def test_accuracy_and_weights_over_time_are_drawn_and_follow_slider_and_client(
    page: "Page", training: tuple[Run, Path]
) -> None:
    titles = [own.inner_text() for own in page.locator("#time h3").all()]
    wanted = ("Accuracy by algorithm", "Accuracy by group", "Weight in the mean", "Each client in round 3")
    assert [any(title.startswith(own) for title in titles) for own in wanted] == [True] * 4
    marks = "() => [...document.querySelectorAll('#time .reference')].map(line => line.getAttribute('x1'))"
    last = script(page, marks)
    assert len(last) == 3
    page.locator("#round").focus()
    page.keyboard.press("Home")
    assert all(float(now) < float(then) for now, then in zip(script(page, marks), last, strict=True))
    script(page, "client => window.fedatlasPage.choose(client)", 6)
    page.wait_for_function("() => document.querySelector('#time').textContent.includes('ward 6')")
    weight = next(own["weight"] for own in training[0].clients if own["round"] == 1 and own["client"] == "ward 6")
    assert f"weight {100 * weight:.2g} %" in page.inner_text("#round-words")
    pictures = page.locator("#time svg").all()
    assert ["ward 6" in (own.get_attribute("aria-label") or "") for own in pictures] == [False, True, True, False]
    page.click("#play")
    page.wait_for_function("() => document.querySelector('#play').textContent === 'Play'", timeout=10_000)
    assert script(page, "() => window.fedatlasPage.state.frame") is None


def test_every_switch_of_the_map_can_be_used(page: "Page") -> None:
    for name in ("plane", "colour", "area", "grouping"):
        for option in page.locator(f"#{name} option").all():
            page.select_option(f"#{name}", option.get_attribute("value") or "")
    for name in ("zoom-in", "zoom-out", "zoom-all", "lines", "lines"):
        page.click(f"#{name}")
    assert page.inner_text("#kept")
    assert page.inner_text("#legend")


def test_all_can_be_done_with_the_keyboard(page: "Page") -> None:
    def focus(wanted: str) -> None:
        for _ in range(120):
            page.keyboard.press("Tab")
            if script(page, "wanted => document.activeElement.matches(wanted)", wanted):
                return
        raise AssertionError(f"Tab never comes to {wanted}")

    focus("#map-canvas")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    chosen = page.get_attribute("#card", "data-client")
    page.keyboard.press("Space")
    assert selected(page) == [int(chosen or -1)]
    assert page.get_attribute("#selection", "data-count") == "1"
    page.keyboard.press("Escape")
    assert selected(page) == []
    focus("#client-table th button")
    page.keyboard.press("Enter")
    assert rows(page) == list(range(10))
    focus("#client-table tbody input")
    page.keyboard.press("Space")
    assert len(selected(page)) == 1


def test_the_rows_that_are_shown_are_saved_as_csv(page: "Page") -> None:
    page.fill("#table-search", "ward 4")
    with page.expect_download() as saved:
        page.click("#csv")
    lines = saved.value.path().read_text(encoding="utf-8-sig").splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("ward 4,")
    assert "in %" in lines[0]
    shown = page.inner_text("#client-table tbody tr >> nth=0 >> .with-bar").split()[0]
    assert float(lines[1].split(",")[1]) == pytest.approx(float(shown), abs=0.51), "in percent, as the head says"


def test_who_is_wrong_who_is_served_worst_and_what_helps_are_seen_at_once(browser: "Browser", tmp_path: Path) -> None:
    path = tell_of_heart(Stage(tmp_path, rounds=20, workers=1))
    with open_page(browser, path) as page:
        assert "hungarian: labels inverted" in page.inner_text("#top")
        worst, command = (page.inner_text(f"#answers .answer >> nth={i}") for i in (1, 2))
        assert "hungarian: accuracy" in worst
        assert "labels look inverted" in worst
        assert 'data.held_out=["hungarian"]' in command
        assert "without the column chol, and without hungarian (tested, but does not train)" in command
        assert "Suspect: labels inverted" in page.inner_text("#card")
        assert "data.held_out" in page.inner_text("#card .remedy")
        page.click("#card summary >> text=Some of its rows")
        examples = page.locator("#card .examples tbody tr")
        assert {row.inner_text().split()[0] for row in examples.all()} == {"healthy", "ill"}
        page.click("#contents >> text=Who is served badly?")
        assert "hungarian" in page.inner_text("#served >> text=worst client >> xpath=..")
        assert "labels inverted" in page.inner_text("#client-table tbody tr >> nth=0")
        assert "its labels look inverted" in page.inner_text("#why li >> nth=0")
        commands = [own.get_attribute("data-command") or "" for own in page.locator("#try [data-command]").all()]
        assert commands[0].endswith("--set 'data.held_out=[\"hungarian\"]'"), "the first answer's command comes first"


def test_a_dark_page_is_printed_light_and_fits_the_paper(browser: "Browser", training: tuple[Run, Path]) -> None:
    with open_page(browser, training[1], size={"width": 700, "height": 1000}, color_scheme="dark") as opened:
        ground = "() => getComputedStyle(document.body).backgroundColor"
        dark = script(opened, ground)
        script(opened, f"() => addEventListener('beforeprint', () => {{ window.printed = ({ground})(); }})")
        opened.pdf()
        assert script(opened, "() => window.printed") != dark
        assert script(opened, ground) == dark
        opened.emulate_media(media="print", color_scheme="dark")
        wide = (
            "() => [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > 701)"
            ".map(e => `${e.tagName} ${e.className}`)"
        )
        assert script(opened, wide) == []


def test_hostile_names_stay_names(browser: "Browser", tmp_path: Path) -> None:
    run, path = write_training(tmp_path, HOSTILE)
    with open_page(browser, path) as page:
        assert page.locator("#card img[src='x']").count() == 0
        assert script(page, "() => document.querySelectorAll('script').length") == 2
        for client in range(len(HOSTILE)):
            script(page, "client => window.fedatlasPage.choose(client)", client)
            assert page.get_attribute("#card h3", "title") == HOSTILE[client]
        script(page, "clients => window.fedatlasPage.select(clients)", list(range(8)))
        words = shlex.split(page.inner_text("#command"))
        again = train_again(page.inner_text("#command"), tmp_path / "again")
    assert words[:2] == ["fedatlas", "train"]
    held = [client["name"] for client in again.resolved["federation"]["clients"] if client["held_out"]]
    assert held == [name for name in run.client_names if name in HOSTILE[:8]]
    assert not Path("owned").exists()


@pytest.mark.parametrize("count", [10, 60, *(pytest.param(count, marks=pytest.mark.slow) for count in (500, 1000))])
def test_a_page_of_many_clients_is_small_and_fits_a_phone(browser: "Browser", tmp_path: Path, count: int) -> None:
    path = write_records(tmp_path, count)
    assert path.stat().st_size < 1_000_000
    for size in (DESKTOP, PHONE):
        with open_page(browser, path, size=size) as page:
            assert script(page, "() => document.documentElement.scrollWidth - innerWidth") <= 0
            shown = page.locator("#client-table tbody tr").count()
            assert shown == min(count, 25)
            page.fill("#map-search", f"client-{count - 1:05d}")
            page.press("#map-search", "Enter")
            assert page.get_attribute("#card", "data-client") == str(count - 1)
            # One client is named though there are too many to name all, and the map is drawn without an error.
            script(page, "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_there_is_nothing_that_axe_calls_a_barrier(
    browser: "Browser", training: tuple[Run, Path], scheme: str, size: dict[str, int]
) -> None:
    axe = read_axe()
    with open_page(browser, training[1], size=size, color_scheme=scheme, reduced_motion="reduce") as page:
        script(page, "clients => window.fedatlasPage.select(clients)", [0, 4])
        script(page, axe)
        found = script(page, "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations")
    told = [f"{own['id']}: {own['help']}: {[node['target'] for node in own['nodes'][:3]]}" for own in found]
    assert told == []
