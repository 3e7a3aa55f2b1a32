"""FedGCR's scripts: what they measure, the data they carry, the page they write."""

import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.algorithms import ADAMW
from fedatlas.data import Dataset, DomainImbalance, Federation, federate, from_arrays, from_npz
from fedatlas.errors import DataError
from papers.fedgcr import data, evidence, figure_3, measuring, shapes, table_3, table_7, table_14
from papers.fedgcr.published import ABLATIONS, TABLE_1, TABLE_2, TABLE_6, TABLE_7
from papers.fedgcr.report import METRICS, ablation_table, page
from papers.fedgcr.variants import ABLATION, METHODS, variant
from papers.kept_results import pack, unpack
from papers.options import Options
from papers.report import filled
from papers.tables import Task
from raising import raises

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
TYPES = MappingProxyType({"dark": 40, "bright": 200})


def shades(size: int = 60) -> Dataset:
    """Two domains, dark and bright noise; the class is where a bar lies."""
    rng = np.random.default_rng(0)
    images, labels, domains = [], [], []
    for domain, level in TYPES.items():
        label = rng.integers(2, size=size)
        image = np.full((size, 8, 8, 3), level, np.uint8) + rng.integers(0, 30, (size, 8, 8, 3)).astype(np.uint8)
        image[label == 1, :3] += 20
        images.append(image)
        labels.append(label)
        domains += [domain] * size
    return from_arrays(np.concatenate(images), np.concatenate(labels), name="shades", domain=domains)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all scripts measure on four clients of two types."""

    def make(name: str, *, factor: float, other_order: bool, seed: int, folder: str | None) -> Federation:
        return federate(shades(), DomainImbalance(factor=1, quota=24), test="domain", seed=seed)

    monkeypatch.setattr(measuring, "make_federation", make)


def task(options: Options, method: str, **settings: Any) -> Task:
    one = variant(options, "digit-five", 10, method, **settings)
    return Task(name=one.name, settings=one.settings, seed=0, options=options, folder=options.out)


@pytest.mark.usefixtures("few")
def test_a_training_is_measured_by_domain_with_its_groups_and_what_travelled(tmp_path: Path) -> None:
    """The plain model sends 4 prompts of 16 and a head of 2 x 16 + 2, 98 numbers; GC-Net has 16 x 64 + 64 + 64 x 16 +
    16 = 2,128 more, and a client adds its vector of 16 and its loss."""
    options = Options(quick=True, rounds=2, out=tmp_path, workers=1)
    plain, gcr = (measuring.measured(task(options, method)) for method in ("fedavg", "fedgcr"))
    assert plain["bytes_up"] == plain["bytes_down"] == 4 * 98
    assert gcr["bytes_up"] == 4 * (98 + 2128 + 16 + 1)
    assert plain["groups"] == []
    assert {"gmm 3", "gmm 7", "kmeans", "finch", "own"} <= gcr["groups"][-1].keys()
    assert gcr["cluster_accuracy"] == gcr["groups"][-1]["own"] > 0.5
    assert gcr["domain_mean"] == pytest.approx(sum(gcr["domains"].values()) / 2)


@pytest.mark.usefixtures("few")
def test_tables_and_the_page_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--rounds", "1", "--seeds", "0", "--workers", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["table", *arguments])
    table_3.main()
    table_14.main()
    shown = capsys.readouterr().out
    assert "T' = 7" in shown
    assert "(95.45)" in shown
    assert "embedded digits, factor 10, FINCH" in shown
    assert "| embedded digits, factor 10, FINCH (3) |" in shown
    assert "(the one that ships" not in shown  # of the real setting
    assert shown.count("With `--quick` all images are the embedded digits") == 2
    first = evidence.plan(Options(quick=True, rounds=1))
    assert len({(one.key, seed) for one in first for seed in one.seeds}) > 30
    monkeypatch.setattr(evidence, "plan", lambda options: first[:3])
    evidence.main()
    assert "evidence.md: 7 trainings" in capsys.readouterr().out
    text = (tmp_path / "evidence.md").read_text()
    assert "With `--quick` all images are the embedded digits" in text
    assert "At seed 0 " in text
    assert "PACS, factor 1: all methods" in text
    assert "(82.74)" in text
    assert "| 1.00 |" in text  # FedAvg's time over FedAvg's


def test_the_halves_are_shown_over_the_seeds_that_all_of_them_have() -> None:
    found = {
        f"pacs, factor 10, {method}": {
            str(seed): dict.fromkeys(METRICS, 0.4 + seed / 100) for seed in range(3 if method == "fedgcr" else 2)
        }
        for method in ABLATION.values()
    }
    title, _, _, _, *rows = ablation_table(found, "pacs")
    assert title == "### The halves of FedGCR, factor 10, 2 seeds"
    assert [row.split(" | ")[1] for row in rows if row] == [
        f"40.5 ± 0.7 ({paper[0]:g})" for paper in ABLATIONS["pacs"].values()
    ]
    one = ablation_table({name: {"0": seeds["0"]} for name, seeds in found.items()}, "pacs")
    assert one[0] == "### The halves of FedGCR, factor 10, seed 0"


def test_tables_say_what_stands_for_what_and_which_numbers_the_paper_has_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["table", "--only", "^$", "--out", str(tmp_path)])
    shapes.methods_table(1, "digit-five", TABLE_1)
    shapes.methods_table(6, "pacs", TABLE_6)
    table_7.main()
    first, second, third = capsys.readouterr().out.split("### ")[1:]
    assert "generated digits stand in for SYN" in first
    assert "the paper prints an Avg of 51.48 and 51.44" in first
    assert "| TERM | – (67.57) |" in first
    assert "SYN" not in second
    assert "DomainNet is left out" in third
    assert "DomainNet: Avg" not in third


@pytest.mark.usefixtures("few")
def test_the_figure_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--rounds", "1", "--workers", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["figure_3", *arguments, "--only", "^$"])
    with pytest.raises(SystemExit, match="2"):
        figure_3.main()
    assert "there is nothing to draw" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["figure_3", *arguments])
    figure_3.main()
    assert f"figure: {tmp_path / 'figure-3.png'}" in capsys.readouterr().out
    assert (tmp_path / "figure-3.png").exists()


def docs_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the docs' numbers, taken over into a folder of results."""
    options = Options(rounds=50, extra={"precision": "bfloat16"})
    unpack(EVIDENCE / "fedgcr.json", folder)
    return evidence.gather([*evidence.plan(options), *evidence.costs(options)], folder)


def test_the_page_in_the_docs_is_the_one_that_its_numbers_give(tmp_path: Path) -> None:
    text = (EVIDENCE / "fedgcr.md").read_text()
    assert filled(text, {"evidence": page(docs_results(tmp_path))}) == text


def test_what_the_docs_hold_is_taken_over_and_given_back(tmp_path: Path) -> None:
    assert sum(map(len, docs_results(tmp_path).values())) == 102
    assert pack(tmp_path, tmp_path / "again.json") == 102 + 6  # and the probes of two data sets, three seeds each
    assert (tmp_path / "again.json").read_bytes() == (EVIDENCE / "fedgcr.json").read_bytes()


@pytest.mark.parametrize("content", ["[]", "{", '{"one": {"name": "x"}}', None])
def test_a_file_of_other_numbers_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "other.json"
    if content is not None:
        file.write_text(content)
    with raises(DataError, "file-unreadable", path=str(file)):
        unpack(file, tmp_path)


def test_all_methods_have_one_optimizer_and_as_many_groups_as_types() -> None:
    for method in METHODS.values():
        base = measuring.make_algorithm(method, {}, 4).optimizer
        assert getattr(base, "base", base) == ADAMW
    assert measuring.make_algorithm("fedgcr", {}, 4) == measuring.make_algorithm("fedgcr", {"num_groups": 4}, 5)
    assert measuring.make_algorithm("fedgcr", {"preset": "as_published_code"}, 4).optimizer.keep_state


def test_the_paper_s_rows_are_whole() -> None:
    for table in (TABLE_1, TABLE_2, TABLE_6):
        assert table.keys() == METHODS.keys()
        assert {len(row) for row in table.values()} == {9}
    assert all(table.keys() == METHODS.keys() for table in TABLE_7.values())
    assert all(table.keys() == ABLATION.keys() for table in ABLATIONS.values())
    # Tables 5 and 13 begin with FedAvg and end with FedGCR at factor 10.
    for name, table in (("digit-five", TABLE_1), ("pacs", TABLE_6), ("domainnet", TABLE_2)):
        assert ABLATIONS[name]["neither"] == table["FedAvg"][6:]
        assert ABLATIONS[name]["both (FedGCR)"] == table["FedGCR"][6:]


def test_the_packed_examples_are_those_that_were_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replace(shades(), name="pacs")
    monkeypatch.setattr(data, "load_dataset", lambda name, data_folder: whole)
    monkeypatch.setattr(data, "MOST_TRAIN", {"pacs": {"dark": 30, "bright": 20}})
    monkeypatch.setattr(data, "SIDE", 8)
    chosen = data.chosen("pacs", None)
    assert chosen.is_test is not None
    assert (~chosen.is_test).sum() == 50
    assert chosen.is_test.sum() == 29  # a quarter of each class of each domain, rounded
    data.pack(chosen, tmp_path / "pacs.npz")
    again = from_npz(tmp_path / "pacs.npz", name="pacs")
    assert torch.equal(again.inputs, chosen.inputs)
    assert torch.equal(again.labels, chosen.labels)
    assert again.is_test is not None
    assert torch.equal(again.is_test, chosen.is_test)
    assert [again.domains[i] for i in again.domain] == [chosen.domains[i] for i in chosen.domain]  # type: ignore
