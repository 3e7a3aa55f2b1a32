"""Other tasks than one class for each example: trained, scored by client, and refused where classes are needed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import fedatlas
from fedatlas.errors import UsageError
from fedatlas.models import with_features
from fedatlas.parts import SGD
from raising import raises

Parts = tuple[fedatlas.Federation, nn.Module]


@pytest.fixture(autouse=True)
def _the_same_first_weights() -> None:
    """A network that a test makes itself takes its first weights from torch's generator."""
    torch.manual_seed(0)


def diabetes() -> Parts:
    """442 people of scikit-learn's table, ten columns, the progress of the disease; clients by age."""
    data = load_diabetes()
    age = np.argsort(np.argsort(data.data[:, 0])) * 4 // len(data.data)
    dataset = fedatlas.from_arrays(
        data.data * 20, data.target / 100, task="regression", owner=age, classes=["progress"]
    )
    net = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    return fedatlas.federate(dataset), net


def signs() -> Parts:
    """Six numbers and the signs of the first three: three labels, any of which may hold."""
    x = np.random.default_rng(0).normal(size=(240, 6)).astype(np.float32)
    dataset = fedatlas.from_arrays(x, x[:, :3] > 0, task="multi-label", classes=["a", "b", "c"])
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    return fedatlas.federate(dataset), net


def squares() -> Parts:
    """Noisy pictures with a bright square; the mask says which pixels are in it."""
    rng = np.random.default_rng(1)
    pictures, masks = rng.integers(0, 120, (96, 1, 12, 12)), np.zeros((96, 12, 12), np.int64)
    for picture, mask in zip(pictures, masks, strict=True):
        row, column = rng.integers(0, 7, 2)
        mask[row : row + 5, column : column + 5] = 1
        picture[0] += 120 * mask
    dataset = fedatlas.from_arrays(pictures.astype(np.uint8), masks, task="segmentation", classes=["ground", "square"])
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))
    return fedatlas.federate(dataset), net


MAKE = {"regression": (diabetes, ["mae", "r2"]), "multi-label": (signs, ["auroc"]), "segmentation": (squares, ["dice"])}


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn", "scaffold"])
@pytest.mark.parametrize("task", list(MAKE))
def test_a_task_is_learnt_to_the_same_bits_by_one_and_two_workers(task: str, algorithm: str, tmp_path: Path) -> None:
    make, metrics = MAKE[task]
    federation, net = make()
    runs = []
    for workers in (1, 2):
        settings = fedatlas.Settings(rounds=4, epochs=4, batch_size=8, metrics=metrics, model=net, evaluate_every=4)
        more: dict[str, Any] = {"folder": tmp_path / str(workers), "workers": workers, "progress": False}
        runs.append(fedatlas.train(federation, algorithm, settings, **more))
    one, two = (run.parameters() for run in runs)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert runs[0].clients == runs[1].clients
    start = fedatlas.train(federation, algorithm, model=net, rounds=1, epochs=1, batch_size=64, progress=False)
    better = runs[0].last[runs[0].metric] - start.last[runs[0].metric]
    assert better > 0 if runs[0].higher_is_better(runs[0].metric) else better < 0
    assert all(line[name] is not None for line in runs[0].clients if line["round"] == 4 for name in metrics)
    assert runs[0].resolved["federation"]["task"] == task
    # The network comes back with the outputs that it was trained to give.
    if algorithm != "fedbn":
        outputs = runs[0].model(network=net)(runs[0].prepare(federation.data.inputs[:3]))[1]
        data = federation.data
        assert outputs.shape == (3, *data.task.output_shape(len(data.classes), data.labels.shape[1:]))


def test_regression_beats_the_mean_of_the_targets() -> None:
    federation, net = diabetes()
    run = fedatlas.train(federation, "fedavg", model=net, rounds=20, epochs=2, batch_size=16, progress=False)
    spread = float(federation.data.labels.std())
    assert run.best["rmse"] <= run.last["rmse"] < spread
    assert run.last["worst_client"] >= run.last["client_mean"]


@pytest.mark.parametrize("name", ["fedlc", "feddisco", "fedmix", "fediir"])
def test_an_algorithm_of_classes_refuses_another_task_in_one_line(name: str) -> None:
    federation, net = diabetes()
    with raises(UsageError, "task-unfit", got="regression"):
        fedatlas.train(federation, name, model=net, rounds=1, progress=False)


def test_a_partition_by_labels_and_a_model_by_name_refuse_what_they_cannot_do() -> None:
    federation, _ = squares()
    with raises(UsageError, "task-unfit", got="segmentation"):
        fedatlas.federate(federation.data, fedatlas.data.Dirichlet(num_clients=2, alpha=1))
    with raises(UsageError, "task-unfit", got="segmentation"):
        fedatlas.train(federation, "fedavg", rounds=1, progress=False)


class Signal(nn.Module):
    """A network of a user's, for 1-D signals: it returns its logits alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.fc = nn.Linear(4, 2)

    def forward(self, signals: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(signals))
        return logits


def test_features_come_from_a_named_layer_where_a_part_needs_them() -> None:
    rng = np.random.default_rng(0)
    dataset = fedatlas.from_arrays(rng.normal(size=(60, 2, 20)), rng.integers(2, size=60), kind="array")
    assert dataset.kind == "array"
    federation = fedatlas.federate(dataset, fedatlas.data.Iid(num_clients=2))
    fedatlas.train(federation, "fedavg", model=Signal(), rounds=1, progress=False)
    with raises(UsageError, "features-missing", part="ModelContrast"):
        fedatlas.train(federation, "moon", model=Signal(), rounds=1, progress=False)
    run = fedatlas.train(federation, "moon", model=with_features(Signal(), "fc"), rounds=2, progress=False)
    assert run.model(network=with_features(Signal(), "fc"))(federation.data.inputs[:3])[0].shape == (3, 4)
    kept = fedatlas.train(federation, "fedper", model=with_features(Signal(), "fc"), rounds=1, progress=False)
    assert all(not name.startswith("network.fc") for name in kept.parameters())


def test_arrays_are_taken_as_they_are() -> None:
    """16-bit pictures keep all their shades: 1 of 65535 stays apart from 0. Volumes and signals keep their axes."""
    deep = fedatlas.from_arrays(np.array([[[0, 1], [2, 65535]]] * 4, np.uint16)[:, None], [0, 1, 0, 1])
    assert deep.kind == "array"
    assert deep.inputs[0, 0].flatten().tolist() == pytest.approx([0, 1 / 65535, 2 / 65535, 1])
    volumes = fedatlas.from_arrays(np.zeros((4, 1, 5, 6, 7)), [0, 1, 0, 1])
    assert volumes.inputs.shape == (4, 1, 5, 6, 7)
    scaled = fedatlas.from_arrays(np.full((4, 3, 8, 8), -1.5), [0, 1, 0, 1])
    assert float(scaled.inputs.min()) == -1.5


def brighter(shape: tuple[int, ...], dtype: type) -> tuple[Any, Any]:
    """Noise in [0, 1], in whose first half every second example is brighter."""
    rng = np.random.default_rng(0)
    values, labels = rng.random((80, *shape)) * 0.5, np.arange(80) % 2
    values[labels == 1, ..., : shape[-1] // 2] += 0.4
    return (values * 65535).astype(dtype) if dtype is np.uint16 else values.astype(dtype), labels


class Pooled(nn.Module):
    """A network of a user's: one convolution over signals, images or volumes, its mean over each half, and logits."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
        self.body, self.fc = convolution(1, 4, 3, padding=1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        maps = torch.relu(self.body(x)).flatten(2, -2) if x.ndim > 3 else torch.relu(self.body(x))[:, :, None]
        logits: Tensor = self.fc(torch.cat([half.mean((2, 3)) for half in maps.chunk(2, 3)], 1))
        return logits


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 24), np.float64), ((1, 8, 8), np.uint16), ((1, 8, 8), np.float32), ((1, 4, 6, 6), np.float32)],
    ids=["signals", "16-bit images", "float images", "volumes"],
)
def test_signals_deep_images_and_volumes_are_learnt_by_a_network_of_one_s_own(
    shape: tuple[int, ...], dtype: type
) -> None:
    values, labels = brighter(shape, dtype)
    data = fedatlas.from_arrays(values, labels)
    assert (data.kind, tuple(data.inputs.shape[1:])) == ("array", shape)
    federation = fedatlas.federate(data, fedatlas.data.Iid(num_clients=2))
    more: dict[str, Any] = {"optimizer": SGD(lr=0.5), "batch_size": 10, "progress": False}
    run = fedatlas.train(federation, "fedavg", model=lambda: Pooled(len(shape) - 1), rounds=15, **more)
    assert run.last["accuracy"] > 0.9
