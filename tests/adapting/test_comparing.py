"""Which of both models a client keeps, by folds of its own training part."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedatlas import train
from fedatlas.adapting.adapter import Adapter
from fedatlas.adapting.comparing import folds_of, gains, judge_gain
from fedatlas.adapting.result import Adapted, AdaptingStopped
from fedatlas.adapting.tuning import Tuning
from fedatlas.algorithms import fedavg
from fedatlas.data import find_task
from fedatlas.parts import SGD, Accuracy, always
from fedatlas.report import _newcomer
from fedatlas.testing import tiny_federation
from tiny import Line, image_run, line_federation, same_bits

FEW = {"rounds": 2, "steps": 5, "batch_size": 20, "lr": 1.0, "tune": "head"}
SAME = ([1.0, -1.0] * 10, [0, 1] * 10)
REVERSED = (SAME[0], [1, 0] * 10)
TYPO = ([-1000.0, *[1.0] * 19], [0] * 20)
"""One number is a thousand times too large and has the wrong sign: its step makes the weight negative."""


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    """Logits (w x, 0), and w > 0 after training: plus is up, minus is down."""
    federation = line_federation(SAME, SAME, REVERSED, TYPO).hold_out([1, 2, 3])
    settings = {"rounds": 1, "batch_size": 20, "optimizer": SGD(lr=1.0), "workers": 1, "progress": False}
    run = train(federation, fedavg(), model=Line, folder=tmp_path / "run", **settings)  # type: ignore[arg-type]
    return Adapter(run, data=federation, model=Line)


def weight(adapted: Adapted) -> float:
    return adapted.model().get_parameter("head.weight").item()


def test_what_is_worse_by_folds_of_the_training_part_is_neither_kept_nor_saved(
    adapter: Adapter, tmp_path: Path
) -> None:
    """Of 20 examples 16 turn wrong, and those of the typo's own fold stay as they are: gain -0.8.

    var d = 20/19 * 0.8 * 0.2 = 0.1684, so half the interval is 1.96 * sqrt(9/4 * 0.1684 / 20) = 0.270.
    """
    adapted = adapter.adapt(3, **FEW)
    assert (adapted.before.accuracy, adapted.after.accuracy) == (0.95, 0.05)
    shared = adapter.run.parameters()
    assert same_bits(load_file(adapted.save(tmp_path / "kept.safetensors")), shared)
    assert same_bits(adapted.personal, shared)
    assert adapted.kept == "before"
    assert adapted.gain == pytest.approx((-0.8, 0.270), abs=0.001)
    assert adapted.why.startswith(
        "worse: -80.0 points of accuracy (-107.0 to -53.0) in folds of its 20 training examples"
    )
    adapter.keep([adapted])
    (record,) = adapter.run.adapted
    assert (record["kept"], record["why"], tuple(record["gain"])) == ("before", adapted.why, adapted.gain)
    assert (record["num_steps"], record["accuracy_after"]) == (10, 0.05)
    shown = _newcomer(record, "accuracy")
    assert (shown["kept"], shown["why"]) == ("before", adapted.why)


def test_what_is_better_is_kept(adapter: Adapter) -> None:
    adapted = adapter.adapt(2, **FEW)
    assert (adapted.before.accuracy, adapted.after.accuracy, adapted.kept) == (0.0, 1.0, "after")
    assert adapted.why.startswith("better: +100.0 points of accuracy (+100.0 to +100.0)")
    assert weight(adapted) < 0 < weight(adapter.adapt(1, **FEW))


def test_chance_and_too_few_examples_are_said(adapter: Adapter) -> None:
    adapted = adapter.adapt(1, **FEW)
    assert (adapted.kept, adapted.gain) == ("after", (0.0, 0.0))
    assert adapted.why.startswith("chance: +0.0 points of accuracy (+0.0 to +0.0)")
    few = adapter.adapt(2, examples=9, **FEW)
    assert (few.kept, few.gain) == ("after", (1.0, 0.0))
    assert few.why.startswith(
        "cannot be told from 9 training examples: +100.0 points of accuracy (+100.0 to +100.0) in folds; "
    )
    fewer = adapter.adapt(2, examples=4, **FEW)
    assert (fewer.kept, fewer.gain, fewer.num_steps) == ("before", None, 10)
    assert fewer.why == "cannot be told from 4 training examples; the run's model is kept"
    assert same_bits(fewer.personal, fewer.start)


def test_folds_of_few_examples_are_tuned_where_all_of_them_are_hardly_a_batch(adapter: Adapter) -> None:
    """Twelve examples in batches of at least ten: a fold trains on nine, and no fold that took no step is compared."""
    adapted = adapter.adapt(2, examples=12, least_batch=10, **FEW)
    assert adapted.gain == (1.0, 0.0)


def test_the_tuned_bits_are_the_same_with_and_without_comparison(tmp_path: Path) -> None:
    """With several clients, which are tuned in one pass, and with one."""
    adapter = Adapter(image_run(tmp_path, fedavg()), data=tiny_federation("images"))
    names = ["client-0", "client-3"]
    for chosen in (names, names[:1]):
        compared, alone = (
            adapter.adapt_all(chosen, tune="head", rounds=2, steps=3, compare=own) for own in (True, False)
        )
        for one, other in zip(compared, alone, strict=True):
            assert (one.losses, one.after.values) == (other.losses, other.after.values)
            assert (other.kept, other.why, other.gain) == ("after", "", None)
            assert one.kept == "before" or same_bits(one.personal, other.personal)


def test_folds_take_each_training_example_once_and_no_test_example(adapter: Adapter) -> None:
    data = adapter.runner.data(3)
    folds = folds_of(data, 0)
    assert torch.equal(torch.cat([own.client.test for own in folds]).sort().values, data.client.train)
    for own in folds:
        both = torch.cat([own.client.train, own.client.test])
        assert torch.equal(both.sort().values, data.client.train)
        assert (own.id, own.name, own.num_examples) == (data.id, data.name, 16)


def test_of_a_metric_that_is_no_mean_the_loss_is_compared() -> None:
    """Losses fall by 1, 3, of ten examples each: gain 2 ± 1.96 sqrt(9/4 * 20/19 / 20)."""
    rows = [torch.zeros(20), torch.tensor([2.0, 4.0] * 10)], [torch.zeros(20), torch.ones(20)]
    metrics = always(find_task("regression"))
    gained = gains(metrics, *rows)
    assert gained.tolist() == [1, 3] * 10
    verdict = judge_gain(metrics[0], gained, 20)
    assert verdict.gain == pytest.approx((2, 0.6745), abs=1e-3)
    assert verdict.why.startswith("better: loss lower by 2 (1.33 to 2.67)")
    assert judge_gain(Accuracy(), None, 1).why.startswith("cannot be told from 1 training example;")


def test_ctrl_c_in_a_fold_keeps_what_was_tuned_without_a_verdict(
    adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., list[dict[str, torch.Tensor]]] = Tuning.round

    def stopped(self: Tuning, number: int, personal: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
        if number == 2 and len(self.clients) > 1:
            raise KeyboardInterrupt
        return real(self, number, personal)

    monkeypatch.setattr(Tuning, "round", stopped)
    with pytest.raises(AdaptingStopped) as caught:
        adapter.adapt(3, **FEW)
    (adapted,) = caught.value.results
    assert (adapted.num_steps, adapted.kept, adapted.why) == (10, "after", "stopped before it was compared")


def test_a_record_of_an_older_version_is_shown(adapter: Adapter) -> None:
    record = adapter.adapt(1, rounds=0).describe() | {"round": 1}
    old = json.loads(json.dumps({name: own for name, own in record.items() if name not in ("kept", "why", "gain")}))
    shown = _newcomer(old, "accuracy")
    assert (shown["kept"], shown["why"]) == ("", "")
