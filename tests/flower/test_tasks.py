"""Numbers and several labels over Flower's messages: the simulator's bits, with metrics by client."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedatlas
from fedatlas.config import Config
from fedatlas.data import Federation
from fedatlas.errors import DataError
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.flower.server.app import TASKS, serve
from fedatlas.testing import InProcessGrid, state_tensors
from flower_network import handed_out, simulated
from raising import raises
from tiny import same_bits

METRICS = {"regression": ["mae", "r2"], "multi-label": ["auroc", "recall_per_class"]}


def federation_of(task: str) -> Federation:
    """Three clients: two numbers or labels of five features, or masks of bright pixels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    if task == "segmentation":
        pictures = rng.integers(0, 256, (90, 1, 6, 6), np.uint8)
        data = fedatlas.from_arrays(pictures, (pictures[:, 0] > 127).astype(int), task=task, classes=["dark", "bright"])
    elif task == "regression":
        data = fedatlas.from_arrays(x, x[:, :2] * 3, task=task, classes=["up", "down"])
    else:
        data = fedatlas.from_arrays(x, x[:, :2] > 0, task=task, classes=["left", "right"])
    return fedatlas.federate(data, fedatlas.data.Iid(num_clients=3))


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("task", list(METRICS))
def test_a_task_over_flower_ends_with_the_simulators_bits(task: str, algorithm: str, tmp_path: Path) -> None:
    federation = federation_of(task)
    settings = [
        f"data.task={task}",
        f"algorithm.name={algorithm}",
        f"training.metrics={METRICS[task]}",
        "training.rounds=3",
        "training.batch_size=8",
        "training.evaluate_every=3",
        "flower.clients=3",
        "model.name=mlp",
    ]
    (tmp_path / "run.toml").write_text(Config.load(None, settings).to_toml())
    config = Config.load(tmp_path / "run.toml")
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), handed_out(federation, tmp_path / "data"))
    there = serve(config, grid, tmp_path / "flower")
    here = simulated(config, federation, tmp_path / "here")
    assert same_bits(*(state_tensors(run.checkpoint().state) for run in (there, here)))
    assert there.metric == here.metric
    assert there.resolved["federation"]["task"] == task
    for name in (there.metric, "loss", *METRICS[task]):
        assert there.last[name] == pytest.approx(here.last[name])
        theirs, ours = ([line[name] for line in run.clients if name in line] for run in (there, here))
        assert len(theirs) == 3
        assert theirs == [pytest.approx(value) for value in ours]


def test_newcomers_of_a_regression_are_adapted_and_scored_by_its_metric(tmp_path: Path) -> None:
    federation = federation_of("regression")
    settings = ["data.task=regression", "training.rounds=2", "flower.clients=2", "model.name=mlp"]
    (tmp_path / "run.toml").write_text(Config.load(None, [*settings, "flower.adapt.tune=head"]).to_toml())
    config = Config.load(tmp_path / "run.toml")
    nodes = handed_out(federation, tmp_path / "data")
    *first, last = nodes
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), {name: nodes[name] for name in first})
    serve(config, grid, tmp_path / "run")
    joined = InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes, task="adapt")
    run = TASKS["adapt"](config, joined, tmp_path / "run")
    assert isinstance(run, fedatlas.Run)
    (record,) = run.adapted
    assert record["client"] == last
    assert record["rmse_after"] < record["rmse_before"]


def test_clients_with_other_targets_are_told_apart() -> None:
    one = federation_of("regression").data
    form = DataForm.of(one)
    assert DataForm.from_values(form.values()) == form
    turned = replace(one, classes=("down", "up"), labels=one.labels.flip(1))
    assert torch.equal(form.adopt(turned).labels, one.labels)
    with raises(DataError, "names-unfit", got=["left", "right"]):
        form.unite(DataForm.of(replace(one, classes=("left", "right"))))
    with raises(DataError, "kind-mismatch"):
        form.unite(DataForm.of(federation_of("multi-label").data))
    masks = DataForm.of(federation_of("segmentation").data)
    assert masks.stand_in([Member(name="a", num_train=5, num_test=1)]).data.labels.shape == (1, 6, 6)
