import math
from pathlib import Path

import pytest

from fedatlas import train
from fedatlas.algorithms import fedavg, fedbn, fedpce
from fedatlas.parts import SGD
from fedatlas.testing import tiny_federation
from fedatlas.training import Settings
from tiny import Line, Norms, blob_federation, line_federation

QUIET = {"progress": False, "workers": 1}
TESTED = Settings(test_own=True)


def test_clients_own_models_are_scored_before_the_server_averages(tmp_path: Path) -> None:
    """One step at w = 0, lr 0.1, x = 2: client 0 (label 0) ends at 0.1, client 1 (three of label 1) at -0.1; both then
    lose log(1 + e^-0.2). Averaged, w = -0.05, with which client 0 loses log(1 + e^0.1)."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    algorithm = fedavg().with_optimizer(SGD(lr=0.1))
    run = train(federation, algorithm, TESTED, model=Line(), rounds=1, folder=tmp_path, **QUIET)  # type: ignore[arg-type]
    first, second = run.clients
    assert first["own_loss"] == pytest.approx(math.log(1 + math.exp(-0.2)), rel=1e-6)
    assert second["own_loss"] == pytest.approx(math.log(1 + math.exp(-0.2)), rel=1e-6)
    assert first["loss"] == pytest.approx(math.log(1 + math.exp(0.1)), rel=1e-6)
    assert run.rounds[0]["own"]["accuracy"] == 1.0
    assert run.last["accuracy"] == 0.75


@pytest.mark.parametrize("algorithm", [fedavg(), fedbn()], ids=["fedavg", "fedbn"])
def test_own_scores_do_not_depend_on_the_number_of_workers(algorithm: object, tmp_path: Path) -> None:
    lines = []
    for workers in (1, 3):
        run = train(
            blob_federation(held_out=1),
            algorithm,  # type: ignore[arg-type]
            Settings(evaluate_every=2, test_own=True),
            model=Norms(),
            rounds=4,
            folder=tmp_path / str(workers),
            workers=workers,
            progress=False,
        )
        lines.append(run.clients)
        assert ["own" in line for line in run.rounds] == [False, True, False, True]
        assert all("own_accuracy" in line for line in run.clients if line["round"] == 4 and line["trained"])
        assert not any("own_accuracy" in line for line in run.clients if line["held_out"] or line["round"] == 3)
    assert lines[0] == lines[1]


def test_testing_own_models_changes_nothing_else(tmp_path: Path) -> None:
    algorithm = fedpce(embedding=4, hidden=8)
    runs = [
        train(
            tiny_federation("images"),
            algorithm,
            Settings(test_own=asked),
            model="cnn",
            model_options={"width": 4, "norm": "instance"},
            rounds=2,
            folder=tmp_path / str(asked),
            **QUIET,  # type: ignore[arg-type]
        )
        for asked in (False, True)
    ]
    assert runs[0].last == runs[1].last
    assert "own" not in runs[0].rounds[-1]
    assert runs[1].rounds[-1]["own"]["loss"] != runs[1].last["loss"]
