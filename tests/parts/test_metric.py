"""A custom metric is one class: it reaches scores, records and summaries, whatever the number of workers."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

import fedatlas
from fedatlas.algorithms import fedavg
from fedatlas.data import TASKS
from fedatlas.engines import Simulator
from fedatlas.errors import UsageError
from fedatlas.parts.metric import METRICS, Accuracy, FunctionMetric, Loss, Metric, always, make_metrics, metric_function
from fedatlas.parts.types import Value
from fedatlas.testing import tiny_federation, tiny_model
from raising import raises


@pytest.fixture
def sure() -> Iterator[FunctionMetric]:
    """The mean of the largest probability, registered for one test."""

    @metric_function("sure", higher_is_better=False)
    def sure(logits: Tensor, labels: Tensor) -> float:
        assert labels.dtype == torch.int64
        return float(logits.softmax(1).max(1).values.double().mean())

    yield sure
    METRICS._things.pop("sure")


def value(metric: Metric, outputs: Tensor, targets: Tensor) -> Value:
    return metric.value(metric.rows(outputs, targets))


def test_accuracy_and_loss_have_the_values_of_the_formula() -> None:
    """Logits (0, 0) and (ln 3, 0), labels 1 and 0: the first is wrong (ties go to class 0), the second right; the
    losses are ln 2 and ln(4/3), whose mean is (0.693147 + 0.287682) / 2 = 0.490415."""
    logits = torch.tensor([[0.0, 0.0], [torch.tensor(3.0).log(), 0.0]])
    labels = torch.tensor([1, 0])
    assert Accuracy().value(Accuracy().rows(logits, labels)) == 0.5
    assert Loss().value(Loss().rows(logits, labels)) == pytest.approx(0.490415, abs=1e-6)


@pytest.mark.usefixtures("sure")
def test_a_custom_metric_scores_every_client_whatever_the_workers() -> None:
    federation = tiny_federation()
    found = []
    for workers in (1, 2):
        with Simulator(fedavg(), tiny_model(federation), federation, workers=workers, metrics=["sure"]) as simulator:
            shared, buffers, *_ = simulator.initial()
            scores = simulator.evaluate(shared, buffers, range(len(federation)))
            found.append([score.values["sure"] for score in scores])
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@pytest.mark.usefixtures("sure")
def test_a_run_records_a_custom_metric_by_client_and_over_all() -> None:
    settings = fedatlas.Settings(metrics=["sure"], rounds=1, model="mlp")
    run = fedatlas.train(tiny_federation(), fedavg(), settings)
    tested = [line for line in run.clients if not line["held_out"]]
    sizes = [line["num_tested"] for line in tested]
    mean = sum(line["sure"] * size for line, size in zip(tested, sizes, strict=True)) / sum(sizes)
    assert run.last["sure"] == pytest.approx(mean)
    assert run.resolved["training"]["metrics"] == ["sure"]
    assert run.higher_is_better("accuracy")
    assert not run.higher_is_better("sure")


def test_an_unknown_metric_is_named_with_the_known_ones() -> None:
    with raises(UsageError, "unknown-name", got="f2"):
        fedatlas.train(tiny_federation(), fedavg(), fedatlas.Settings(metrics=["f2"], rounds=1, model="mlp"))


LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
LABELS = torch.tensor([0, 1, 0, 1])
"""Predicted 0, 1, 1, 2 for 0, 1, 0, 1: class 0 has one hit and one miss, class 1 one hit, one wrong alarm and one miss,
class 2 one wrong alarm."""


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("top_3", 1.0),
        ("recall_per_class", [0.5, 0.5, math.nan]),
        ("macro_f1", (2 / 3 + 1 / 2 + 0) / 3),
        ("weighted_f1", (2 / 3 * 2 + 1 / 2 * 2) / 4),
        ("confusion", [[1, 1, 0], [0, 1, 1], [0, 0, 0]]),
    ],
)
def test_counts_by_class(name: str, wanted: Value) -> None:
    """F1 is 2 / (2 + 0 + 1) = 2/3 for class 0, 2 / (2 + 1 + 1) = 1/2 for class 1, and 0 for class 2."""
    np.testing.assert_allclose(value(make_metrics([name])[0], LOGITS, LABELS), wanted)


def test_calibration_error_of_four_examples() -> None:
    """All are e² / (e² + 2) = 0.787 sure and half are right, so the error is 0.287."""
    assert value(make_metrics(["calibration_error"])[0], LOGITS, LABELS) == pytest.approx(0.786986 - 0.5, abs=1e-6)


def test_areas_agree_with_a_count_of_pairs_and_with_scikit_learn() -> None:
    """Two classes with scores 1, 3, 2 for 0, 1, 1: all 2 of 2 pairs are in order, then with 2 for the first one tie."""
    labels = torch.tensor([0, 1, 1])
    tied = torch.tensor([[0.0, 2.0], [0.0, 3.0], [0.0, 2.0]])
    assert value(make_metrics(["auroc"])[0], tied, labels) == pytest.approx((1 + 0.5) / 2)
    rng = torch.Generator().manual_seed(0)
    logits, many = torch.randn(60, 4, generator=rng), torch.randint(4, (60,), generator=rng)
    shares = logits.double().softmax(1).numpy()
    wanted = roc_auc_score(many, shares / shares.sum(1, keepdims=True), multi_class="ovr")
    assert value(make_metrics(["auroc"])[0], logits, many) == pytest.approx(wanted, abs=1e-6)
    wanted = average_precision_score(np.eye(4)[many], shares)
    assert value(make_metrics(["auprc"])[0], logits, many) == pytest.approx(wanted, abs=1e-6)
    alone = torch.zeros(3, dtype=torch.int64)
    assert math.isnan(value(make_metrics(["auroc"])[0], logits[:3], alone))  # type: ignore[arg-type]


def test_several_labels_and_masks() -> None:
    """Labels (1, 0) and (1, 1), predicted (1, 1) and (1, 0): 2 of 4 right; F1 1 and 0. The mask 0 0 1 1, predicted 0 1
    1 1: IoU 1/2 and 2/3, Dice 2/3 and 4/5."""
    labels, logits = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    assert value(Accuracy(), logits, labels) == 0.5
    assert value(make_metrics(["macro_f1"], TASKS["multi-label"])[0], logits, labels) == 0.5
    mask = torch.tensor([[[0, 0], [1, 1]]])
    found = torch.nn.functional.one_hot(torch.tensor([[[0, 1], [1, 1]]]), 2).permute(0, 3, 1, 2).float()
    assert value(always(TASKS["segmentation"])[0], found, mask) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert value(make_metrics(["dice"], TASKS["segmentation"])[0], found, mask) == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert value(Accuracy(), found, mask) == 0.75


def test_predicted_numbers() -> None:
    """1, 2, 3 predicted as 1, 2, 6: MAE 1, RMSE sqrt(3), R² 1 - 9 / 2. Two clients of 1 and 3 examples with RMSE 4 and
    2 have sqrt((16 + 12) / 4) together."""
    task = TASKS["regression"]
    found, wanted = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    rmse, loss = always(task)
    mae, r2 = make_metrics(["mae", "r2"], task)
    assert value(mae, found, wanted) == 1
    assert value(rmse, found, wanted) == pytest.approx(3**0.5)
    assert value(loss, found, wanted) == pytest.approx(3)
    assert value(r2, found, wanted) == pytest.approx(1 - 9 / 2)
    assert rmse.pool([4.0, 2.0], [1, 3]) == pytest.approx(7**0.5)
    assert not rmse.higher_is_better


def test_a_metric_of_another_task_is_refused_with_those_that_fit() -> None:
    with raises(UsageError, "task-unfit", got="r2", known=[name for name in METRICS if fits(name)]):
        make_metrics(["r2"])


def fits(name: str) -> bool:
    return not METRICS[name]().tasks or "classification" in METRICS[name]().tasks


def test_intervals_of_a_share_and_of_a_curve() -> None:
    """Wilson's interval of 8 of 10 is 0.4902 to 0.9433, as tables have it; an area stays around its value."""
    rows = torch.tensor([True] * 8 + [False] * 2)
    assert Accuracy().interval(rows) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    rng = torch.Generator().manual_seed(1)
    labels = torch.randint(2, (200,), generator=rng)
    logits = torch.randn(200, 2, generator=rng) + torch.nn.functional.one_hot(labels, 2)
    auroc = make_metrics(["auroc"])[0]
    rows = auroc.rows(logits, labels)
    low, high = auroc.interval(rows) or (0, 0)
    assert low < auroc.value(rows) < high  # type: ignore[operator]
    # Hanley and McNeil 1982: the standard error at this area is about 0.031.
    assert 0.08 < high - low < 0.17


def test_a_run_gives_intervals_and_figures_by_domain() -> None:
    """Four in five of the clients' intervals should hold; here: each contains its value, and the mean's is narrower."""
    settings = fedatlas.Settings(metrics=["recall_per_class"], intervals=True, rounds=1, model="mlp")
    run = fedatlas.train(tiny_federation(), fedavg(), settings)
    for line in run.clients:
        low, high = line["intervals"]["accuracy"]
        assert low <= line["accuracy"] <= high
        assert len(line["recall_per_class"]) == len(run.resolved["federation"]["classes"])
    low, high = run.last["intervals"]["accuracy"]
    assert low < run.last["accuracy"] < high
    assert high - low < min(np.diff(line["intervals"]["accuracy"])[0] for line in run.clients)
    assert run.last["by_domain"].keys() == run.last["domains"].keys()
    name = next(iter(run.last["domains"]))
    assert run.last["by_domain"][name]["accuracy"] == pytest.approx(run.last["domains"][name])
