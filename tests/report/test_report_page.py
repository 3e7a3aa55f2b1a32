import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedatlas import train
from fedatlas.algorithms import fedavg
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.report import write_report
from fedatlas.runs.run import Run
from raising import raises
from report.run_folders import FOUR, client, four_correct, write_run
from tiny import Norms, blob_federation

VOID = {"meta", "link", "img", "br"}
IMAGES = np.arange(4 * 8 * 3 * 4 * 4, dtype=np.uint32).astype(np.uint8).reshape(4, 8, 3, 4, 4)
VECTORS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]], dtype=np.float32)


class Page(HTMLParser):
    """What a page holds, and whether its elements close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.open, self.elements = text, [], []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def of_class(self, name: str) -> list[tuple[str, dict[str, str | None]]]:
        return [(tag, a) for tag, a in self.elements if name in (a.get("class") or "").split()]

    @property
    def said(self) -> str:
        return "\n".join(self.words)


def report(runs: list[Run], folder: Path, **options: str) -> Page:
    return Page(write_report(runs, folder / "report.html", **options).read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", FOUR, four_correct, vectors=VECTORS, images=IMAGES)


@pytest.fixture
def other(tmp_path: Path) -> Run:
    return write_run(tmp_path / "other", FOUR, lambda r, c: 60, algorithm="fedprox", vectors=VECTORS, images=IMAGES)


def test_the_page_names_every_client_with_its_accuracy(run: Run, tmp_path: Path) -> None:
    page = report([run], tmp_path)
    for name, accuracy in (("anna", "90.0"), ("bert", "70.0"), ("cleo", "50.0"), ("dora", "30.0")):
        assert name in page.words
        assert accuracy in page.words
    assert page.said.count("held out") >= 2
    assert "4 clients in 2 domains, 1 of them held out of training" in page.said


def test_clients_that_were_not_or_hardly_tested_are_named(run: Run, tmp_path: Path) -> None:
    assert "Not tested" not in report([run], tmp_path).said
    assert "Few test examples" not in report([run], tmp_path).said
    resolved = json.loads((run.folder / "resolved.json").read_text())
    for member, count in zip(resolved["federation"]["clients"][:2], (0, 9), strict=True):
        member["num_test"] = count
    (run.folder / "resolved.json").write_text(json.dumps(resolved))
    text = report([Run(run.folder)], tmp_path).text
    assert "<b>Not tested</b>, and so in no figure: anna." in text
    assert "may be chance: bert (9)." in text


def test_the_page_needs_nothing_from_outside(run: Run, other: Run, tmp_path: Path) -> None:
    page = report([run, other], tmp_path)
    assert "script" not in {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        for key in ("src", "href"):
            if attributes.get(key):
                assert attributes[key].startswith(("data:", "#")), attributes
    assert "http" not in page.text.replace("http-equiv", "")
    assert "url(" not in page.text
    assert "default-src 'none'" in page.text


def test_links_and_ids_belong_together(run: Run, other: Run, tmp_path: Path) -> None:
    page = report([run, other], tmp_path)
    ids = [a["id"] for _, a in page.elements if "id" in a]
    links = [a["href"][1:] for tag, a in page.elements if tag == "a"]
    assert len(ids) == len(set(ids))
    assert links == ids == ["results", "clients", "rounds", "spread", "similarity", "settings"]


ADAPTED = {
    "client": "dora",
    "round": 7,
    "domain": "y",
    "origin": "as the run's clients began",
    "num_examples": 40,
    "num_steps": 100,
    "num_tuned": 3,
    "seconds": 1.25,
    "accuracy_before": 0.3,
    "accuracy_after": 0.45,
    "embedding": [0.5, -1.0, 0.0],
}


def test_clients_that_were_brought_in_later_are_shown_before_and_after(run: Run, tmp_path: Path) -> None:
    assert "newcomers" not in [a.get("id") for _, a in report([run], tmp_path).elements]
    (run.folder / "adapted.json").write_text(json.dumps([ADAPTED]))
    page = report([run], tmp_path)
    assert "newcomers" in [a.get("id") for _, a in page.elements]
    assert "30.0 → 45.0" in page.words
    assert "3 numbers, 40 examples, 100 steps, 1.2 s" in page.words
    assert "dora, number 2: -1.000" in page.words
    assert "fedavg, dora: 30.0 → 45.0; start: as the run's clients began; model of round 7" in page.words
    tested = {**ADAPTED, "client": "<eve>", "num_tuned": 0, "embedding": None}
    (run.folder / "adapted.json").write_text(json.dumps([tested]))
    page = report([run], tmp_path)
    assert "nothing is personal: tested only" in page.words
    assert "fedavg, <eve>" in page.words
    assert "Their" not in page.said


def test_names_are_shown_as_they_are_never_as_markup(tmp_path: Path) -> None:
    bad = '<script>alert("x")</script>&amp;'
    clients = [client(bad, bad), client("plain", "y"), client("third", bad, held_out=True)]
    runs = [
        write_run(tmp_path / f"{i}", clients, lambda r, c: 50, algorithm=name, data=bad, vectors=VECTORS[:3])
        for i, name in enumerate((bad, "plain"))
    ]
    for chosen in (runs, runs[:1]):
        page = report(chosen, tmp_path, title=bad)
        assert "<script" not in page.text
        assert bad in page.words


def test_equal_runs_give_equal_pages(run: Run, other: Run, tmp_path: Path) -> None:
    first = write_report([run, other], tmp_path / "first.html").read_bytes()
    second = write_report([Run(run.folder), Run(other.folder)], tmp_path / "second.html").read_bytes()
    assert first == second


def test_the_best_of_each_column_is_emphasised(run: Run, other: Run, tmp_path: Path) -> None:
    """Fedprox has 60 right everywhere: accuracy 180 / 400 = 45 < 65, worst domain (.3) < .5, sigma_type .15 = .15."""
    page = report([run, other], tmp_path)
    rows = page.text.split("<tbody>")[1].split("</tbody>")[0].split("</tr>")
    best = [re.findall(r'<td class="best">([\d.]+)', row) for row in rows[:2]]
    assert best[0] == ["65.00", "65.00", "50.00", "15.00", "50.00", "67.50", "1.5"]
    assert best[1] == ["15.00", "14.14", "60.00", "1.5"]
    assert "lower is fairer" in page.said


def test_one_run_has_no_comparison_but_its_domains_and_extremes(run: Run, tmp_path: Path) -> None:
    page = report([run], tmp_path)
    assert "Results" not in page.words
    cards = re.findall(r"<dl><dt>(.*?)</dt><dd>([\d.]+).*?<small title=\"(.*?)\"", page.text)
    assert ("mean accuracy", "65.0", "weighed by test examples") in cards
    assert ("worst domain", "50.0", "y") in cards
    assert ("best client", "90.0", "anna") in cards
    assert ("worst client", "50.0", "cleo") in cards
    assert ("held-out accuracy", "30.0", "clients that never trained") in cards


def test_held_out_clients_are_dashed_over_the_rounds(run: Run, tmp_path: Path) -> None:
    lines = [a for tag, a in report([run], tmp_path).of_class("line") if tag == "path"]
    assert sum("stroke-dasharray" in line for line in lines) == 1
    assert len(lines) == 5  # x, y, held-out, all clients, training loss


def test_several_seeds_are_a_mean_with_a_band(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(seed), FOUR, lambda r, c, seed=seed: 50 + 10 * seed, seed=seed) for seed in range(3)
    ]
    page = report(runs, tmp_path)
    assert page.of_class("band")
    assert "3 runs each" in page.said
    assert "Run 3 times, with seeds 0; 1; 2" in page.said
    assert "60.0 ± 10.0" in page.words  # each client of 100: 50, 60, 70


def test_more_than_six_algorithms_get_a_panel_each(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(i), FOUR, four_correct, algorithm=f"method-{i}") for i in range(7)]
    page = report(runs, tmp_path)
    assert len(page.of_class("multiples")) == 1
    assert sum(a.get("aria-label", "").startswith("Accuracy of method-") for _, a in page.elements) == 7


def test_each_card_shows_the_clients_own_images(run: Run, tmp_path: Path) -> None:
    samples = report([run], tmp_path).of_class("samples")
    assert len(samples) == 4
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(samples[1][1]["src"].split(",")[1]))))
    assert pixels.shape == (4, 8 * 4 + 7, 3)  # eight images of 4 x 4 with a column between
    np.testing.assert_array_equal(pixels[:, 5:9], IMAGES[1, 1].transpose(1, 2, 0))


def test_data_without_images_or_domains_has_neither(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [client("a"), client("b")], lambda r, c: 50 + c, vectors=VECTORS[:2])
    page = report([run], tmp_path)
    assert not page.of_class("samples")
    assert "By client" in page.words
    assert "Accuracy by domain" not in page.words
    assert "sigma_client" in page.words
    assert "token" in page.said


def test_a_run_without_portraits_has_no_similarity(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FOUR, four_correct)
    assert "How alike the clients are" not in report([run], tmp_path).words


def test_similarity_says_the_cosine_of_two_clients(run: Run, tmp_path: Path) -> None:
    """(1, 0, 0) and (1, 1, 0): 1 / sqrt 2 = .71; within domains twice that, between them .5, 0, 0 and 0."""
    page = report([run], tmp_path)
    assert "anna and bert: 0.71" in page.words
    assert "bert and cleo: 0.50" in page.words
    assert re.search(r"of one domain: 0\.71; of different domains: 0\.1[23]\.", page.said)


def test_a_run_without_an_evaluation_has_a_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FOUR, four_correct, rounds=3, planned=10, evaluated=[], vectors=VECTORS)
    page = report([run], tmp_path)
    assert "no evaluation yet" in page.words
    assert "3 of 10 rounds so far" in page.said
    assert "No client was evaluated yet." in page.words
    assert "anna" in page.words


def test_a_run_killed_before_its_first_round_has_a_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FOUR, four_correct, rounds=0, planned=5)
    assert "Nothing was recorded yet." in report([run], tmp_path).words


def test_one_client_has_a_page(tmp_path: Path) -> None:
    vectors = np.zeros((1, 3), dtype=np.float32)
    run = write_run(tmp_path / "run", [client("alone")], lambda r, c: 50, rounds=1, vectors=vectors)
    page = report([run], tmp_path)
    assert "1 client." in page.said
    assert "How alike the clients are" not in page.words


def test_of_many_clients_sixty_have_cards_and_all_are_in_the_table(tmp_path: Path) -> None:
    clients = [client(f"client-{i}", "large" if i < 290 else "small") for i in range(300)]
    vectors = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    run = write_run(tmp_path / "run", clients, lambda r, c: c % 100, rounds=2, vectors=vectors)
    page = report([run], tmp_path)
    cards = page.text.split('class="card"')[1:]
    assert len(cards) == 60
    assert sum(bool(re.search(r">client-29\d<", card)) for card in cards) == 10  # the whole small domain
    assert "60 of the 300 clients are shown" in page.said
    assert {f"client-{i}" for i in range(300)} <= set(page.words)
    assert len(page.text) < 1_000_000


def test_a_domain_for_each_of_many_clients_still_has_room(tmp_path: Path) -> None:
    clients = [client(f"client-{i}", f"domain-{i}") for i in range(150)]
    run = write_run(tmp_path / "run", clients, lambda r, c: 50, rounds=1)
    page = report([run], tmp_path)
    widths = [float(attributes["width"]) for tag, attributes in page.elements if tag == "rect"]
    assert min(widths) > 0


def test_runs_with_other_splits_say_whose_clients_are_shown(tmp_path: Path) -> None:
    clients = [client("a"), client("b")]
    one = write_run(tmp_path / "one", clients, lambda r, c: 40, fingerprint="one")
    two = write_run(tmp_path / "two", clients, lambda r, c: 80, fingerprint="two", seed=1)
    page = report([one, two], tmp_path)
    assert "The runs do not all share one split of the data." in page.said
    assert "1 of 2 runs have them" in page.said
    assert "40.0" in page.words  # client a, of the first split alone
    assert "60.0" in page.said  # the mean accuracy over both


def test_how_to_reproduce_is_a_command_where_there_is_a_config(run: Run, other: Run, tmp_path: Path) -> None:
    (run.folder / "config.toml").write_text("seed = 0\n")
    said = report([run, other], tmp_path).said
    assert f"fedatlas train --config {run.folder / 'config.toml'} --folder {run.folder}-again" in said
    assert said.count("made from Python") == 1


def test_portraits_of_another_run_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", FOUR, four_correct, vectors=VECTORS[:2])
    with raises(RunFolderError, "wrong-count", got=2, wanted=4):
        report([run], tmp_path)


def test_portraits_that_were_cut_short_are_refused(run: Run, tmp_path: Path) -> None:
    path = run.folder / "portraits.npz"
    path.write_bytes(path.read_bytes()[:200])
    with raises(RunFolderError, "file-unreadable", path=str(path)):
        report([run], tmp_path)


def test_a_report_that_cannot_be_written_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(RunFolderError, "file-unwritable", path=str(tmp_path / "file")):
        write_report([run], tmp_path / "file" / "report.html")


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with raises(UsageError, "data-empty", what="runs"):
        write_report([], tmp_path / "report.html")


def test_a_run_that_was_trained_has_a_page(tmp_path: Path) -> None:
    run = train(blob_federation(6, held_out=1), fedavg(), model=Norms(), rounds=2, workers=1, folder=tmp_path / "run")
    page = Page(run.report().read_text(encoding="utf-8"))
    assert {"client-0", "client-5", "How alike the clients are"} <= set(page.words)
    assert f"{100 * run.last['accuracy']:.1f}" in page.words
