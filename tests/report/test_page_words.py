"""What a page calls things: the metric of the task, why clients are in their groups, and kinds of clients."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch import nn

from fedatlas import Run, federate, from_arrays, train
from fedatlas.algorithms import fedavg
from fedatlas.parts import ByTrial, One
from fedatlas.report import results_table, table_note, write_page
from fedatlas.report.groups import group_runs
from fedatlas.report.reasons import worst_served
from fedatlas.report.served import Served
from fedatlas.seeds import numpy_generator
from fedatlas.testing import tiny_federation
from flower_network import without_held_out
from report.browser import open_page
from report.pages import read_block, unpack
from report.run_folders import client, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROUNDS = 3


def page(runs: list[Run], folder: Path, **options: Any) -> dict[str, Any]:
    return read_block(write_page(folder / "page.html", runs=runs, **options))


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three clients with a number to predict, which is the noisier the later the client."""
    rng = numpy_generator(0, "regression")
    owner = np.repeat(np.arange(3), 40)
    x = rng.normal(size=(120, 4))
    y = 10 * x[:, 0] + rng.normal(size=120) * (1 + 20 * owner)
    federation = federate(from_arrays(x, y, task="regression", owner=owner, classes=["progress"]))
    folder = tmp_path_factory.mktemp("regression") / "run"
    return train(federation, fedavg(), model=nn.Linear(4, 1), rounds=ROUNDS, workers=1, folder=folder, progress=False)


def test_a_page_about_a_regression_speaks_of_its_error(regression: Run, tmp_path: Path) -> None:
    """The largest error is the worst."""
    run = regression
    block = page([run], tmp_path)
    wanted = {"name": "rmse", "title": "RMSE", "percent": False, "higher_is_better": False}
    assert (block["metric"], block["classes"]) == (wanted, [])
    (own,) = block["algorithms"]
    errors = {line["client"]: line["rmse"] for line in run.clients if line["round"] == ROUNDS}
    np.testing.assert_allclose(unpack(own["clients"]["value"]), [errors[name] for name in run.client_names], rtol=1e-6)
    assert np.isnan(unpack(own["clients"]["low"])).all()
    assert own["metrics"][0]["title"] == "rmse"
    assert own["metrics"][0]["mean"] == pytest.approx(run.last["rmse"], rel=1e-4)
    assert own["metrics"][0]["lower"]
    assert own["curve"]["train"]["mean"] == pytest.approx(
        [entry["evaluation"]["rmse"] for entry in run.rounds], rel=1e-3
    )
    (group,) = group_runs([run])
    worst = worst_served([Served.read(group, run.resolved["federation"]["fingerprint"], run.client_names)])
    assert [run.client_names[i] for i in worst] == sorted(errors, key=lambda name: -errors[name])
    (row,) = results_table([run])
    assert row["rmse"] == f"{run.last['rmse']:.4g}"
    assert "accuracy" not in row
    assert table_note([run]) == "rmse: lower is better"


def test_nobody_reads_of_an_accuracy_where_an_error_is_measured(
    browser: "Browser", regression: Run, tmp_path: Path
) -> None:
    errors = {line["client"]: line["rmse"] for line in regression.clients if line["round"] == ROUNDS}
    with open_page(browser, write_page(tmp_path / "page.html", runs=[regression])) as opened:
        said = opened.inner_text("main")
        assert "accuracy" not in said.lower()
        assert "% right" not in said
        worst = max(errors, key=lambda name: errors[name])
        assert float(opened.inner_text("#figures .figure:nth-child(2) b")) == pytest.approx(errors[worst], rel=1e-3)
        assert worst in opened.inner_text("#client-table tbody tr:first-child")
        assert f"worst {float(f'{errors[worst]:.4g}'):g}" in opened.inner_text("#round-words")


def test_the_page_says_why_clients_are_in_these_groups(tmp_path: Path) -> None:
    """Six clients in two groups, ten rounds; all leave in the trial of round 3: 12 trainings more than 60."""
    federation = without_held_out(tiny_federation())
    groups = {own.name: i % 2 for i, own in enumerate(federation)}
    sharing = ByTrial(groups=groups, pilot=1, threshold=-1e9)
    settings: dict[str, Any] = {"model": "mlp", "rounds": 10, "workers": 1, "progress": False}
    run = train(federation, replace(fedavg(), sharing=sharing), folder=tmp_path / "tried", **settings)
    (own,) = page([run], tmp_path)["algorithms"]
    trial, models, cost = own["why_groups"]
    assert trial.startswith("Trial that ended with round 3: all groups left the common model. Gain by a model ")
    assert models == "After round 10, 2 models are in use."
    times = "the common model 18, a rival of it 6, their group's model 48 times"
    assert cost == f"Cost: clients trained 20% more often than once a round ({times})."
    assert page([run], tmp_path, share=True)["algorithms"][0]["why_groups"] == []
    asked = replace(fedavg(), sharing=One(reason="One model for all clients. They are alike."))
    one = train(federation, asked, folder=tmp_path / "one", **settings | {"rounds": 1})
    said = page([one], tmp_path)["algorithms"][0]["why_groups"]
    assert said == ["One model for all clients. They are alike.", "After round 1, 1 model is in use."]


def test_types_that_a_partition_made_are_kinds(tmp_path: Path) -> None:
    clients = [{**client(f"c{i}"), "type": f"rotated {90 * (i % 2)}"} for i in range(12)]
    run = write_run(tmp_path / "run", clients, lambda r, c: 50)
    block = page([run], tmp_path)
    assert block["clients"]["gathered_by"] == "kind"
    assert [own["title"] for own in block["groupings"]] == ["kinds"]
    assert page([run], tmp_path, share=True)["clients"]["domains"] == ["kind 1", "kind 2"]
