"""Several algorithms on the same clients from Python, and a logger that follows a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest

import fedatlas
from fedatlas.algorithms import fedavg, fedprox
from fedatlas.errors import TrainingError, UsageError
from fedatlas.parts import SGD
from fedatlas.testing import tiny_federation
from raising import raises
from tiny import same_bits

SETTINGS = fedatlas.Settings(rounds=2, model="mlp", workers=1)


def test_every_algorithm_is_trained_with_every_seed_in_its_own_folder(tmp_path: Path) -> None:
    federation = tiny_federation()
    algorithms = {"plain": fedavg(), "pulled": fedprox(mu=1.0)}
    runs = fedatlas.compare(federation, algorithms, SETTINGS, seeds=(0, 1), folder=tmp_path)
    assert [run.folder.name for run in runs] == ["plain-0", "pulled-0", "plain-1", "pulled-1"]
    alone = fedatlas.train(federation, fedprox(mu=1.0), SETTINGS, seed=1)
    assert same_bits(runs[3].parameters(), alone.parameters())
    assert not same_bits(runs[1].parameters(), runs[3].parameters())


def test_two_algorithms_of_one_name_need_a_mapping(tmp_path: Path) -> None:
    with raises(UsageError, "name-twice", got="fedprox"):
        fedatlas.compare(tiny_federation(), [fedprox(mu=0.1), fedprox(mu=1.0)], SETTINGS, folder=tmp_path)


def test_a_training_that_breaks_does_not_stop_the_others(tmp_path: Path) -> None:
    broken = fedavg().with_optimizer(SGD(lr=1e30))
    with pytest.raises(TrainingError):
        fedatlas.compare(tiny_federation(), {"broken": broken, "sound": fedavg()}, SETTINGS, folder=tmp_path)
    assert len(fedatlas.Run(tmp_path / "sound-0").rounds) == 2


class Logger:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, float | None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.lines.append((-1, None))

    def start_from(self, round: int) -> None:
        self.lines.append((round, None))

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        self.lines.append((round, metrics.get("accuracy")))


def test_a_logger_follows_a_run_round_by_round() -> None:
    logger = Logger()
    settings = fedatlas.Settings(rounds=3, evaluate_every=2, model="mlp", workers=1)
    run = fedatlas.train(tiny_federation(), fedavg(), settings, progress=logger)
    accuracy = {entry["round"]: entry["evaluation"]["accuracy"] for entry in run.evaluations}
    assert logger.lines == [(0, None), (1, None), (2, accuracy[2]), (3, accuracy[3]), (-1, None)]
