"""What a notebook shows of a federation, an atlas and a run."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from fedatlas import Atlas, Federation, Run
from fedatlas.atlas import label_histogram
from report.run_folders import client, write_run
from tiny import line_federation

EVIL = "<script>alert('&')</script>"


class Cells(HTMLParser):
    """Collects the tags and the texts of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        assert not attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(shown: Federation | Atlas | Run) -> list[str]:
    found = Cells()
    found.feed(shown._repr_html_())
    assert found.tags <= {"table", "caption", "tr", "th", "td", "p"}
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
    assert EVIL in texts


def test_a_run_shows_what_it_reached(tmp_path: Path) -> None:
    run = write_run(tmp_path / "<b>", [client("a")], lambda round, name: 60)
    texts = read(run)
    assert texts[0] == "Run of fedavg"
    assert texts[texts.index("folder") + 1] == str(tmp_path / "<b>")
    assert texts[texts.index("last accuracy") + 1].startswith("60.0% (round ")
