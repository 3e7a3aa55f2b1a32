"""Tuning more of a model than its algorithm keeps personal."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fedatlas import train
from fedatlas.adapting.adapter import Adapter, adapt
from fedatlas.adapting.tuning import can_tune_together
from fedatlas.algorithms import fedavg, fedbn, scaffold
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Adam, Algorithm
from fedatlas.testing import tiny_federation
from raising import raises
from tiny import Line, image_run, line_federation, same_bits

# One client of the tiny federation has one example.
pytestmark = pytest.mark.filterwarnings("ignore:client-2 will take no step")

FEW = {"rounds": 2, "steps": 3, "lr": 0.05, "compare": False}


class Scaled(Line):
    """A line over a shared number: logits (w s x, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(self.scale * x)


def test_a_step_of_the_head_and_of_all_worked_out_by_hand(tmp_path: Path) -> None:
    """FedAvg's one step from w = 0, s = 1 on x = 2, label 0: dL/dw = -1 and dL/ds = 0, so w = 0.1 at lr 0.1.

    Tuned at lr 0.5: sigmoid(-w s x) = sigmoid(-0.2) = 0.450166; w = 0.1 + 0.5 * 2 * 0.450166 = 0.550166, and with all
    s = 1 + 0.5 * 0.1 * 2 * 0.450166 = 1.0450166. The run's model stays.
    """
    federation = line_federation(([2, 2], [0, 0]), ([2, 2], [0, 0])).hold_out([1])
    settings = {"rounds": 1, "batch_size": 2, "optimizer": SGD(lr=0.1), "workers": 1, "progress": False}
    run = train(federation, fedavg(), model=Scaled, folder=tmp_path, **settings)  # type: ignore[arg-type]
    once = {"data": federation, "model": Scaled, "rounds": 1, "steps": 1, "lr": 0.5, "compare": False}
    head = adapt(run, 1, tune="head", **once)  # type: ignore[arg-type]
    assert head.start["head.weight"].item() == pytest.approx(0.1)
    assert head.personal.keys() == {"head.weight"}
    assert head.personal["head.weight"].item() == pytest.approx(0.550166, abs=1e-6)
    assert (head.num_tuned, head.num_steps, head.origin) == (1, 1, "the run's model")
    everything = adapt(run, 1, tune="all", **once)  # type: ignore[arg-type]
    assert everything.personal["head.weight"].item() == pytest.approx(0.550166, abs=1e-6)
    assert everything.personal["scale"].item() == pytest.approx(1.0450166, abs=1e-6)
    assert everything.after.loss < head.after.loss < head.before.loss
    assert everything.model().scale.item() == pytest.approx(1.0450166, abs=1e-6)  # type: ignore[operator, union-attr]
    nothing = adapt(run, 1, tune="personal", **once)  # type: ignore[arg-type]
    assert (nothing.num_tuned, nothing.after.loss) == (0, head.before.loss)


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize(("tune", "count"), [("head", 16 * 3 + 3), ("norms", 2 * 4 + 2 * 8), ("all", None)])
def test_only_what_is_named_moves_and_the_run_s_model_keeps_its_bits(
    tune: str, count: int | None, norm: str, tmp_path: Path
) -> None:
    """The cnn of width 4 has norms of 4 and 8 channels, and a head of 16 features for 3 classes."""
    algorithm = scaffold()
    run = image_run(tmp_path, algorithm, norm)
    adapter = Adapter(run, data=tiny_federation("images"), algorithm=algorithm)
    before = run.parameters()
    adapted = adapter.adapt("client-6", tune=tune, **FEW)
    assert adapted.num_tuned == (count or sum(p.numel() for p in adapter.runner.bench.model.parameters()))
    after = adapted.model().state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    idle = {"conv1.bias", "conv2.bias"}  # the norms after them take out what they add
    assert moved - idle == set(adapted.personal) - idle
    assert moved <= set(adapted.personal)
    assert ("norm1.running_mean" in moved) == (norm == "batch" and tune != "head")
    assert same_bits(adapted.start, {name: before[name] for name in adapted.start})
    assert (adapted.before.loss, adapted.describe()["tune"]) == (adapter.adapt("client-6").before.loss, tune)


@pytest.mark.parametrize("algorithm", [fedavg(), fedbn()], ids=lambda a: a.name)
def test_clients_that_tune_a_head_go_together_and_end_as_alone(algorithm: Algorithm, tmp_path: Path) -> None:
    """FedBN's norms are tuned beside the head; they begin with the mean of the clients that trained."""
    run = image_run(tmp_path, algorithm.with_optimizer(Adam(lr=1e-3)))
    adapter = Adapter(run, data=tiny_federation("images"), algorithm=algorithm.with_optimizer(Adam(lr=1e-3)))
    wide = adapter.widened("head")
    assert can_tune_together(wide.runner.bench, SGD())
    assert not can_tune_together(adapter.widened("all").runner.bench, SGD())
    together = adapter.adapt_all(["client-6", "client-7"], tune="head", **FEW)
    for joint in together:
        alone = adapter.adapt(joint.client, tune="head", **FEW)
        for key, value in alone.personal.items():
            torch.testing.assert_close(joint.personal[key], value, rtol=1e-3, atol=1e-5)
    kept = algorithm.split.personal_parameters(adapter.runner.bench.model)
    assert together[0].personal.keys() == {*kept, "head.weight", "head.bias"}
    assert together[0].origin.startswith("the run's model" + ("; what is personal: the mean of" if kept else ""))


def test_what_cannot_be_tuned_is_told(tmp_path: Path) -> None:
    federation = line_federation(([2, 2], [0, 0]), ([2, 2], [0, 0])).hold_out([1])
    run = train(federation, fedavg(), model=Scaled, rounds=1, folder=tmp_path, workers=1, progress=False)
    adapter = Adapter(run, data=federation, model=Scaled)
    with raises(UsageError, "model-unfit", got="Scaled"):
        adapter.adapt(1, tune="norms")
    with raises(UsageError, "unknown-name", got="heads"):
        adapter.adapt(1, tune="heads")
