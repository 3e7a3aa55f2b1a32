"""A custom metric is one class: it reaches scores, records and summaries, whatever the number of workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import fedatlas
from fedatlas.algorithms import fedavg
from fedatlas.engines.simulator import Simulator
from fedatlas.errors import UsageError
from fedatlas.parts.metric import METRICS, Accuracy, Loss, Metric, metric
from fedatlas.testing.tiny import tiny_federation, tiny_model
from raising import raises


@pytest.fixture
def f1() -> Iterator[None]:
    """The macro F1 over the classes that occur, registered for one test."""

    @metric("macro_f1")
    @dataclass(frozen=True)
    class MacroF1(Metric):
        """The mean over classes of the harmonic mean of precision and recall."""

        name: ClassVar[str] = "macro_f1"

        def rows(self, logits: Tensor, labels: Tensor) -> Tensor:
            return torch.stack([logits.argmax(1), labels], 1)

        def value(self, rows: Tensor) -> float:
            found, wanted = rows.unbind(1)
            scores = []
            for label in rows.unique().tolist():
                hits = ((found == label) & (wanted == label)).sum()
                scores.append(float(2 * hits / ((found == label).sum() + (wanted == label).sum())))
            return sum(scores) / len(scores)

    yield
    METRICS._things.pop("macro_f1")


def test_accuracy_and_loss_have_the_values_of_the_formula() -> None:
    """Logits (0, 0) and (ln 3, 0), labels 1 and 0: the first is wrong (ties go to class 0), the second right; the
    losses are ln 2 and ln(4/3), whose mean is (0.693147 + 0.287682) / 2 = 0.490415."""
    logits = torch.tensor([[0.0, 0.0], [torch.tensor(3.0).log(), 0.0]])
    labels = torch.tensor([1, 0])
    assert Accuracy().value(Accuracy().rows(logits, labels)) == 0.5
    assert Loss().value(Loss().rows(logits, labels)) == pytest.approx(0.490415, abs=1e-6)


@pytest.mark.usefixtures("f1")
def test_a_custom_metric_scores_every_client_whatever_the_workers() -> None:
    """Worked on one client: its predictions and labels give the same F1 as the class, counted by hand."""
    federation = tiny_federation()
    found = []
    for workers in (1, 2):
        with Simulator(
            fedavg(), tiny_model(federation), federation, workers=workers, metrics=["macro_f1"]
        ) as simulator:
            shared, buffers, *_ = simulator.initial()
            scores = simulator.evaluate(shared, buffers, range(len(federation)))
            found.append([score.others["macro_f1"] for score in scores])
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@pytest.mark.usefixtures("f1")
def test_a_run_records_a_custom_metric_by_client_and_over_all() -> None:
    settings = fedatlas.Settings(metrics=["macro_f1"], rounds=1, model="mlp")
    run = fedatlas.train(tiny_federation(), fedavg(), settings)
    tested = [line for line in run.clients if not line["held_out"]]
    sizes = [line["num_tested"] for line in tested]
    mean = sum(line["macro_f1"] * size for line, size in zip(tested, sizes, strict=True)) / sum(sizes)
    assert run.last["macro_f1"] == pytest.approx(mean)
    assert run.resolved["training"]["metrics"] == ["macro_f1"]


def test_an_unknown_metric_is_named_with_the_known_ones() -> None:
    with raises(UsageError, "unknown-name", got="f2"):
        fedatlas.train(tiny_federation(), fedavg(), fedatlas.Settings(metrics=["f2"], rounds=1, model="mlp"))
