"""The tool that measures groups: what it keeps, and what its tables say."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from papers.tools import groups
from papers.tools.group_cells import CELLS
from papers.tools.group_tables import paired, tables


def result(cell: str, method: str, seed: int, accuracy: float, **more: Any) -> dict[str, Any]:
    usual = {"options": [], "rounds": 20, "kinds": {}, "train loss": 0.5, "models": 4, "megabytes": 1220.6, "ari": 1.0}
    return {"cell": cell, "method": method, "seed": seed, "accuracy": accuracy} | usual | {"extra work": 0.0} | more


def test_a_table_has_a_row_for_each_method_and_the_best_of_ifca_s_starts() -> None:
    found = [
        result("turned", "ifca", 0, 0.7, **{"train loss": 0.2, "ari": 0.5}),
        result("turned", "ifca", 0, 0.9, **{"train loss": 0.3}),
        result("turned", "auto", 1, 0.86, **{"extra work": 0.1}),
        result("turned", "auto", 0, 0.84, **{"extra work": 0.1}),
        result("turned", "fedavg", 0, 0.6, models=0, ari=None),
    ]
    assert tables(found).splitlines()[2:] == [
        "| turned | FedAvg | 60.0 | 60.0 | – | 1 | 1,221 | – |",
        "| turned | **auto** | 85.0 | 84.0, 86.0 | 1.00 | 4, 4 | 1,221 | 10 % |",
        "| turned | IFCA | 70.0 | 70.0 | 0.50 | 4 | 1,221 | – |",
    ]


def test_methods_are_compared_on_the_same_seeds() -> None:
    """auto less FedAvg is 10, 12 and 14 points: mean 12, sd 2, and 4.303 x 2 / sqrt(3) = 4.97."""
    accuracies = {"auto": (0.8, 0.82, 0.84, 0.9), "fedavg": (0.7, 0.7, 0.7)}
    found = [result("turned", name, seed, own) for name, all in accuracies.items() for seed, own in enumerate(all)]
    assert paired(found).splitlines()[2:] == ["| turned | FedAvg | +12.00 ± 4.97 | +10.0, +12.0, +14.0 |"]


def test_domains_have_a_table_of_their_own_with_who_left() -> None:
    kinds = {"a": 0.5, "b": 0.75}
    found = [
        result("sets", "auto", 0, 0.6, kinds=kinds, trials=[[], ["b"]]),
        result("sets", "auto", 1, 0.6, kinds=kinds, trials=[[], []]),
    ]
    assert tables(found).splitlines() == [
        "| sets | domain mean | by seed | a | b | more work | left, by seed |",
        "|---|---|---|---|---|---|---|",
        "| **auto** | 62.5 | 62.5, 62.5 | 50.0 | 75.0 | – | b; nobody |",
    ]


def test_what_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    options = argparse.Namespace(
        cells=["heart"], seeds=[0], methods=["fedavg", "ifca"], starts=2, rounds=1, data=tmp_path, device="cpu"
    )
    asked: list[groups.Job] = []

    def run(jobs: Sequence[groups.Job]) -> Iterator[dict[str, Any]]:
        asked.extend(jobs)
        return map(groups.play, jobs)

    file = tmp_path / "kept.json"
    first = groups.Kept.read(file).measured(groups.jobs(options, {}), run)
    assert [job.options for job in asked] == [(), (0,), (1,)]
    assert 0.2 < first[0]["accuracy"] <= 1
    assert set(first[0]["kinds"]) == {"cleveland", "hungarian", "switzerland", "va"}
    assert first[1]["megabytes"] > 2 * first[0]["megabytes"]  # four models down, one up, against one and one
    again = groups.Kept.read(file).measured(groups.jobs(options, {}), run)
    assert len(asked) == 3
    assert again == json.loads(file.read_text()) == first


def test_cfl_is_tuned_by_shares_of_its_longest_changes() -> None:
    """Without a split the mean change is at most 0.2 long and a client's 0.5: a share of 2 and 0.6 is 0.4 and 0.3."""
    options = argparse.Namespace(
        cells=["heart"], methods=["cfl"], tuning_seeds=[1], rounds=9, data=Path(), device="cpu",
        grid=[(1, 0, 0.5), (2, 0.6, 0)],
    )  # fmt: skip

    def run(jobs: Sequence[groups.Job]) -> Iterator[dict[str, Any]]:
        for job in jobs:
            accuracy = 0.8 if job.options == (0.4, 0.3, 0) else 0.7
            more = {"options": list(job.options), "rounds": 9, "lengths": [0.2, 0.5]}
            yield result("heart", "cfl", job.seed, accuracy, **more)

    assert groups.tuned(options, groups.Kept(None), run) == {"heart": (0.4, 0.3, 0)}


def test_all_of_cifar10_is_its_training_and_its_test_part(tmp_path: Path) -> None:
    """24 clients share 288 images, 12 each, of which a sixth is for the test."""
    rng = np.random.default_rng(0)
    parts = {f"x_{part}": rng.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 240), ("test", 48))}
    labels = {f"y_{part}": np.arange(n) % 10 for part, n in (("train", 240), ("test", 48))}
    np.savez(tmp_path / "cifar10.npz", **parts, **labels)
    clients = CELLS["permuted-cifar10-whole"].federation(tmp_path, 0)
    assert [(len(client.train), len(client.test)) for client in clients] == [(10, 2)] * 24
    assert len({str(client.kind) for client in clients}) == 4
