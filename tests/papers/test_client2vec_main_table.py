"""Client2Vec's main table and its controls: what is trained, what is found again, and the two controls themselves."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedatlas.parts import Batch, Output
from papers.client2vec import main_table, statistics
from papers.client2vec.variants import ConfidencePenalty
from papers.kept_results import read_packed
from papers.options import Options

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
EXTRA = {"encoder": "conse", "embeddings": "", "index_epochs": 100, "length": "short", "feed_forward": 2048}
EXTRA |= {"bases": "", "strategies": "GLOBAL", "precision": "bfloat16", "compile": False}


def test_the_table_has_every_base_case_and_policy_and_finds_what_was_measured() -> None:
    options = Options(extra=EXTRA)
    main, others = main_table.main_variants(options), main_table.controls(options)
    assert len(main) == 2 * 4 * 4
    assert len({one.key for one in (*main, *others)}) == len(main) + len(others)
    kept = read_packed(EVIDENCE / "client2vec.json")
    known = {one.name: [seed for seed in (0, 1, 2) if f"{one.key}-{seed}" in kept] for one in (*main, *others)}
    assert known["FedAvg, averaged: original"] == [0, 1, 2]
    for case in ("original", "GLOBAL iii", "GLOBAL i+ii+iii"):
        assert known[f"FedAvg, kept: {case}"] == [0, 1, 2]
    assert known["FedAvg, kept: GLOBAL iii, divergence alone"] == [0]


def test_the_paper_s_numbers_stand_beside_the_best() -> None:
    options = Options(extra=EXTRA)
    main, others = main_table.main_variants(options), main_table.controls(options)
    table = main_table.tables(options, main, others, main_table.retested(main))[0]
    best = list(main_table.COLUMNS).index("best")
    papers = {name: cells[best].paper for name, cells in table.rows.items()}
    assert papers["FedDyn, kept: GLOBAL i+ii+iii"] == 70.59
    assert papers["FedAvg, averaged: original"] == 42.24
    assert papers["FedAvgM, kept: GLOBAL iii"] == 61.09
    assert papers["FedDyn, kept: GLOBAL iii"] is None


def test_the_penalty_is_minus_the_entropy() -> None:
    """Two answers: sure (entropy 0 to rounding) and even between two classes (log 2). Weight 3: -3 log 2 / 2."""
    logits = torch.tensor([[100.0, 0.0], [1.0, 1.0]])
    term = ConfidencePenalty(weight=3.0)
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))
    found = term.loss(SimpleNamespace(), batch, Output(torch.zeros(2, 1), logits))  # type: ignore[arg-type]
    assert found.item() == pytest.approx(-1.5 * 0.6931472, abs=1e-6)


def test_recomputed_statistics_are_the_images_own() -> None:
    """Two batches with means 1 and 3 and variances 2 (unbiased, of 0, 2) and 8 (of 1, 5): means 2 and 5."""
    network = nn.Sequential(nn.BatchNorm1d(1))
    norm = network[0]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.fill_(7.0)
    statistics.recompute(network, [torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [5.0]])])
    assert (norm.running_mean.item(), norm.running_var.item()) == (2.0, 5.0)
    assert not norm.training


@pytest.mark.slow
def test_the_command_trains_tests_again_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        options = ["--quick", "--rounds", "1", "--bases", "FedAvg", "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["x", *options, *words])
        main_table.main()
        return capsys.readouterr().out

    first = run()
    assert "| FedAvg, kept: GLOBAL iii, tested again |" in first
    assert "embedded digits" in first
    trained: list[Any] = []
    monkeypatch.setattr(statistics, "indexed", lambda task: trained.append(task))
    assert run() == first
    assert not trained
