from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import fedatlas
from fedatlas.cli import print_results
from fedatlas.data import Origin
from fedatlas.errors import UsageError
from fedatlas.report import results_table
from fedatlas.report.block import Subject
from fedatlas.report.members import members_of_run
from fedatlas.report.page import render
from fedatlas.report.tables import columns_of
from fedatlas.runs import Run
from raising import raises
from report.run_folders import FOUR, client, four_correct, write_run


def test_the_figures_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    """Accuracies .9, .7 (domain x) and .5 (domain y, twice the examples); Dora is held out.

    accuracy (90 + 70 + 100) / 400 = .65; domain mean (.8 + .5) / 2 = .65; sigma_type |.8 - .5| / 2 = .15;
    sigma_client sqrt((.2^2 + 0 + .2^2) / 3) = .1633; best in round 2: (100 + 70 + 100) / 400 = .675.
    """
    run = write_run(tmp_path / "run", FOUR, four_correct, rounds=3, seconds=0.5)
    assert results_table([run]) == [
        {
            "algorithm": "fedavg",
            "accuracy": "65.0",
            "domain mean": "65.0",
            "worst domain": "50.0",
            "sigma_type": "15.0",
            "sigma_client": "16.3",
            "worst client": "50.0",
            "held out": "30.0",
            "best": "67.5",
            "best round": "2",
            "seconds": "1.5",
        }
    ]


def test_seeds_of_one_algorithm_become_mean_and_sample_deviation(tmp_path: Path) -> None:
    """Accuracies .6 and .8: mean .7, deviation sqrt(2 * .1^2 / 1) = .1414; 1 and 3 seconds: 2 ± 1.4142."""
    low = write_run(tmp_path / "low", [client("a")], lambda r, c: 60, seed=0, rounds=1, seconds=1)
    high = write_run(tmp_path / "high", [client("a")], lambda r, c: 80, seed=1, rounds=1, seconds=3)
    (row,) = results_table([low, high])
    assert row["runs"] == "2"
    assert row["accuracy"] == "70.0 ± 14.1"
    assert row["seconds"] == "2.0 ± 1.4"


def test_a_folder_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [client("a")], lambda r, c: 60)
    other = write_run(tmp_path / "other", [client("a")], lambda r, c: 80, seed=1)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    again = [Run(tmp_path / "other" / ".." / "run"), Run(tmp_path / "link")]
    assert results_table([run, *again]) == results_table([run])
    assert results_table([run, other, *again]) == results_table([run, other])
    assert render(Subject(runs=[run, other, *again])) == render(Subject(runs=[run, other]))


def test_clients_with_a_type_are_shown_by_it_in_place_of_their_domain(tmp_path: Path) -> None:
    clients = [{**client("a", "x"), "type": "rotated 90"}, client("b", "x"), client("c")]
    run = write_run(tmp_path / "run", clients, lambda r, c: 60)
    assert members_of_run(run).domains == ("rotated 90", "x", None)


def test_folds_and_partition_seeds_are_repetitions_but_partitions_are_not(tmp_path: Path) -> None:
    first = Origin(data="toy", rule="Dirichlet(alpha=1)", seed=0, test="client", held_out="0", fold=0, folds=5)
    origins = [
        first,
        replace(first, seed=7, fold=1),
        replace(first, rule="Dirichlet(alpha=2)"),
        replace(first, held_out="['a', 'b']"),
    ]
    runs = [
        write_run(tmp_path / str(i), [client("a")], lambda r, c: 60, origin=origin, fingerprint=str(origin))
        for i, origin in enumerate(origins)
    ]
    rows = results_table(runs)
    assert [row["runs"] for row in rows] == ["2", "1", "1"]
    assert rows[1]["algorithm"] == "fedavg (partition=Dirichlet(alpha=2), held_out=0)"
    assert rows[2]["algorithm"] == "fedavg (partition=Dirichlet(alpha=1), held_out=['a', 'b'])"


def test_without_a_record_of_its_origin_a_run_is_told_by_its_partitions_line(tmp_path: Path) -> None:
    known = Origin(data="toy", rule="Iid()", seed=0, test="client")
    lacking = [None, replace(known, rule=None), replace(known, test=None)]
    for i, origin in enumerate(lacking):
        runs = [
            write_run(tmp_path / f"{i}-{line}", [client("a")], lambda r, c: 60, partition=line, origin=origin)
            for line in ("Iid(), seed 0", "Iid(), seed 0, fold 0 of 5")
        ]
        assert [row["algorithm"] for row in results_table(runs)] == [
            "fedavg (partition=Iid(), seed 0)",
            "fedavg (partition=Iid(), seed 0, fold 0 of 5)",
        ]


def test_one_algorithm_under_two_settings_is_told_apart_by_them(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(mu), [client("a")], lambda r, c: 60, algorithm="fedprox", options={"mu": mu})
        for mu in (0.1, 1.0)
    ]
    assert [row["algorithm"] for row in results_table(runs)] == ["fedprox (mu=0.1)", "fedprox (mu=1)"]


def test_runs_under_names_of_the_users_own_go_by_them(tmp_path: Path) -> None:
    """Two names are two rows, though their settings are the same; one name with other settings is told apart."""
    written = {"a": ("weak", 0.1), "b": ("weak", 0.1), "c": ("strong", 0.1), "d": ("strong", 1.0), "e": ("fedprox", 1)}
    runs = []
    for folder, (name, mu) in written.items():
        options = {"mu": mu}
        runs.append(write_run(tmp_path / folder, [client("a")], lambda r, c: 60, algorithm="fedprox", options=options))
        algorithms = f"[algorithms]\n{name} = {{ name = 'fedprox' }}" if name != "fedprox" else ""
        (tmp_path / folder / "config.toml").write_text(f"[algorithm]\nname = '{name}'\n{algorithms}\n")
    rows = results_table(runs)
    assert [row["algorithm"] for row in rows] == ["weak", "strong (mu=0.1)", "strong (mu=1)", "fedprox"]
    assert [row["runs"] for row in rows] == ["2", "1", "1", "1"]
    write_run(tmp_path / "f", [client("a")], lambda r, c: 60, algorithm="client2vec+fedprox")
    config = (tmp_path / "a/config.toml").read_text()
    (tmp_path / "f/config.toml").write_text(f"{config}[atlas]\nfile = 'atlas.safetensors'\n")
    assert Run(tmp_path / "f").label == "client2vec+weak"
    (tmp_path / "a/config.toml").write_text("[algorithm")
    assert Run(tmp_path / "a").label == "fedprox"


def test_best_rounds_of_several_seeds_are_a_span(tmp_path: Path) -> None:
    early = write_run(tmp_path / "early", [client("a")], lambda r, c: 90 - r, seed=0, rounds=4)
    late = write_run(tmp_path / "late", [client("a")], lambda r, c: 50 + r, seed=1, rounds=4)
    assert results_table([early, late])[0]["best round"] == "1–4"


def test_columns_that_no_run_has_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [client("a"), client("b")], lambda r, c: 50)
    (row,) = results_table([run])
    assert not {"domain mean", "worst domain", "sigma_type", "held out"} & row.keys()


def test_all_rows_have_the_same_keys_and_a_dash_where_a_run_has_no_figure(tmp_path: Path) -> None:
    done = write_run(tmp_path / "done", FOUR, four_correct)
    begun = write_run(tmp_path / "begun", FOUR, four_correct, algorithm="fedprox", evaluated=[])
    rows = results_table([done, begun])
    assert rows[0].keys() == rows[1].keys()
    assert (rows[1]["accuracy"], rows[1]["held out"], rows[1]["best round"]) == ("–", "–", "–")


def test_a_run_whose_clients_have_no_test_data_has_no_figures(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [client("a")], lambda r, c: 50, rounds=1)
    (tmp_path / "run" / "rounds.jsonl").write_text(
        '{"round": 1, "cohort": [0], "answered": [0], "train_loss": 1.0, "evaluation": {}}\n'
    )
    assert results_table([run])[0]["accuracy"] == "–"


def test_a_task_without_accuracy_is_shown_by_its_main_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The network says 0, and learns nothing; a's numbers are 1 and b's 3, so that rmse is 1 and 3, sigma_client 1."""
    y = np.repeat([1.0, 3.0], 8).astype(np.float32)
    data = fedatlas.from_arrays(np.ones((16, 1), np.float32), y, owner=["a"] * 8 + ["b"] * 8, task="regression")
    network = nn.Linear(1, 1)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    settings = fedatlas.Settings(rounds=1, model=network, optimizer=fedatlas.SGD(lr=1e-12), workers=1)
    run = fedatlas.train(fedatlas.federate(data), "fedavg", settings, folder=tmp_path / "run", progress=False)
    (row,) = results_table([run])
    assert "accuracy" not in row
    assert (row["rmse"], row["best"]) == (f"{run.last['rmse']:.4g}",) * 2
    assert (row["worst client"], row["sigma_client"]) == ("3", "1")
    better = columns_of(run)[0]
    assert (better.title, better.lower_is_better) == ("rmse", True)
    print_results([run])
    assert "rmse: lower is better" in capsys.readouterr().out


def test_other_data_in_one_table_is_refused(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [client("a")], lambda r, c: 50)
    other = write_run(tmp_path / "other", [client("a")], lambda r, c: 50, data="else")
    with raises(UsageError, "data-differ"):
        results_table([one, other])


def test_no_run_is_refused() -> None:
    with raises(UsageError, "data-empty", what="runs"):
        results_table([])
