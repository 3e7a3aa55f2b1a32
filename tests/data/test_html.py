"""What a notebook shows of a federation, an atlas, a run and a check."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from fedatlas import Atlas, Federation, Run
from fedatlas.atlas import Advice, Diagnosis, Finding, Member, Suspect, label_histogram
from fedatlas.data.html import curve_picture, points_picture
from report.run_folders import client, write_run
from tiny import line_federation

PICTURE = {"svg", "g", "circle", "path", "polyline", "rect", "text"}
LEFT = ("style", "text-align:left")
EVIL = "<script>alert('&')</script>"


class Cells(HTMLParser):
    """Collects the tags and the texts of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert tag in PICTURE or set(attrs) <= {LEFT}
        others = [name for name, value in attrs if (name, value) != LEFT]
        assert not [name for name in others if name.startswith("on") or name in ("href", "src", "style")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(shown: Federation | Atlas | Run | Diagnosis) -> list[str]:
    found = Cells()
    found.feed(shown._repr_html_())
    assert found.tags <= {"table", "caption", "tr", "th", "td", "p", "title"} | PICTURE
    return found.texts


def named(federation: Federation, name: str) -> Federation:
    clients = (replace(federation.clients[0], name=name), *federation.clients[1:])
    return replace(federation, clients=clients)


def test_a_federation_shows_its_clients_and_escapes_their_names() -> None:
    federation = named(line_federation(([1.0, 2.0], [0, 1]), ([2.0], [1])), EVIL)
    texts = read(federation)
    assert texts[:5] == ["Federation of line", "clients", "2", "held out", "0"]
    start = texts.index(EVIL)
    assert texts[start : start + 3] == [EVIL, "even", "2"]


def test_of_many_clients_the_first_twelve_are_shown() -> None:
    texts = read(line_federation(*[([1.0], [0])] * 15))
    assert sum(text.startswith("client-") for text in texts) == 12
    assert texts[-1] == "… and 3 more"


def test_an_atlas_shows_its_halves_and_its_clients() -> None:
    texts = read(label_histogram(named(line_federation(([1.0], [0]), ([2.0], [1])), EVIL)))
    assert texts[:3] == ["Atlas", "clients", "2"]
    assert texts[texts.index("half 'label'") + 1] == "width 2"
    assert texts[texts.index("source") + 1] == "label_histogram"
    assert texts.count(EVIL) == 2  # in the picture, and in the table


def test_points_keep_their_distances_inside_the_picture() -> None:
    """x from 0 to 4 goes to 8 to 252 of 260 pixels, so 1 is at 8 + 244 / 4 = 69; equal ones go to the middle."""
    picture = points_picture([(0, 5), (1, 5), (4, 5)], ["a", "b", "c"], about="three")
    assert re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', picture) == [
        ("8.0", "130.0"),
        ("69.0", "130.0"),
        ("252.0", "130.0"),
    ]


def test_a_curve_goes_from_0_at_the_bottom_to_1_at_the_top_and_an_amount_to_its_largest() -> None:
    share = curve_picture([1, 2, 3], [0, 0.5, 1], about="accuracy")
    assert 'points="52.0,100.0 170.0,56.0 288.0,12.0"' in share
    assert ">100 %<" in share
    amount = curve_picture([1, 2], [4.0, 2.0], about="rmse", percent=False)
    assert 'points="52.0,12.0 288.0,56.0"' in amount
    assert ">4<" in amount


def test_a_federation_draws_how_many_examples_of_each_class_a_client_has() -> None:
    """Two of class 0 fill the bar's 22 pixels, one of class 1 half of it."""
    shown = line_federation(([1.0, 2.0, 3.0], [0, 0, 1]))._repr_html_()
    assert re.findall(r'<rect [^>]*height="([\d.]+)"><title>([^<]*)<', shown) == [
        ("22.0", "up: 2"),
        ("11.0", "down: 1"),
    ]


def test_a_check_shows_suspects_and_what_to_do() -> None:
    no = Finding(False, 0.0, "")
    found = Diagnosis(
        data="heart",
        clients=(Member(name=EVIL, examples=3, classes=2),),
        num_classes=2,
        inputs=no,
        label_shares=no,
        labelling=Finding(True, 1.0, ""),
        groups=(0,),
        suspects=(Suspect(EVIL, "labels-inverted", "they look inverted", "a few of them", ""),),
        different=(),
        remarks=(),
        advice=(Advice("fedatlas check --data heart", "once more"),),
        seconds=0.0,
    )
    texts = read(found)
    assert texts[:3] == ["Check of heart", "clients", "1"]
    assert texts[texts.index("labelling differs") + 1] == "yes"
    assert texts[texts.index(EVIL) + 1] == "labels-inverted"
    assert texts[-2:] == ["fedatlas check --data heart", "once more"]


def test_a_run_shows_what_it_reached(tmp_path: Path) -> None:
    run = write_run(tmp_path / "<b>", [client("a")], lambda round, name: 60)
    texts = read(run)
    assert texts[0] == "Run of fedavg"
    assert texts[texts.index("folder") + 1] == str(tmp_path / "<b>")
    assert texts[texts.index("last accuracy") + 1].startswith("60.0% (round ")
    assert texts[-4:] == ["worst served", "accuracy", "a", "60.0%"]
