from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithms import Group, Grouped, fedavg, fedsam, scaffold
from fedatlas.errors import UsageError
from fedatlas.parts import optimizer as optimizers
from fedatlas.parts.optimizer import SGD, Adam, LocalOptimizer, relative_rates
from raising import raises
from tiny import Line, Norms, blob_federation, check_beside_torch, line_federation, play

NAMES = ["first.weight", "first.bias", "second.weight", "second.bias"]


class Asking(nn.Linear):
    """A layer whose weight wants ten times the rate."""

    relative_rates: ClassVar[Mapping[str, float]] = {"weight": 10.0}


class Two(nn.Module):
    """A layer that asks for a rate and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Asking(4, 6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.first(inputs))
        return features, self.second(features)


class Quick(nn.Linear):
    """A layer whose weight wants four times the rate."""

    relative_rates: ClassVar[Mapping[str, float]] = {"weight": 4.0}


class AskingLine(Line):
    """The line of one parameter, which steps at four times the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Quick(1, 1, bias=False)
        nn.init.zeros_(self.head.weight)


BASES: list[tuple[LocalOptimizer, Callable[..., torch.optim.Optimizer]]] = [
    (SGD(lr=1e-3, momentum=0.9, weight_decay=0.1), lambda g: torch.optim.SGD(g, momentum=0.9, weight_decay=0.1)),
    (Adam(lr=1e-3), lambda g: torch.optim.Adam(g)),
    (Adam(lr=1e-3, weight_decay=0.1, decoupled=True), lambda g: torch.optim.AdamW(g, weight_decay=0.1)),
]


@pytest.mark.parametrize(("base", "theirs"), BASES)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_steps_are_those_of_torchs_parameter_groups(base: LocalOptimizer, theirs: Any, as_tensor: bool) -> None:
    rates = {name: 1e-2 if name == "first.weight" else 1e-3 for name in NAMES}
    check_beside_torch(base, Two(), theirs, rates, as_tensor=as_tensor)


@pytest.mark.parametrize(("base", "theirs"), BASES)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_group_s_rate_is_multiplied_too(base: LocalOptimizer, theirs: Any, as_tensor: bool) -> None:
    grouped = Grouped(base=base, groups=(Group(of=Asking, lr=0.002),))
    rates = {"first.weight": 0.02, "first.bias": 0.002, "second.weight": 1e-3, "second.bias": 1e-3}
    check_beside_torch(grouped, Two(), theirs, rates, as_tensor=as_tensor)


def test_what_steps_at_one_rate_is_updated_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[int]] = []

    def kernel(weights: list[Tensor], gradients: list[Tensor], moments: list[Tensor], **options: Any) -> None:
        calls.append([weight.numel() for weight in weights])

    monkeypatch.setattr(optimizers, "can_be_fused", lambda tensors: True)
    monkeypatch.setattr(torch, "_fused_sgd_", kernel)
    model = Two()
    fitted, parameters = SGD().fitted(model, NAMES), list(model.parameters())
    fitted.step(parameters, [], lambda: parameters, torch.tensor(0.1))
    assert calls == [[24], [6, 18, 3]]


def test_a_model_that_asks_for_nothing_keeps_its_optimizer() -> None:
    optimizer = SGD()
    assert optimizer.fitted(Norms(), []) is optimizer
    assert optimizer.fitted(Two(), ["first.bias", "second.weight"]) is optimizer
    assert relative_rates(Two()) == {"first.weight": 10.0}


def test_a_shared_parameter_has_the_rate_that_either_module_asks_for() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Asking(3, 3))
    model[1].weight = model[0].weight
    assert relative_rates(model) == {"0.weight": 10.0}


def test_a_round_of_fedavg_steps_at_four_times_the_rate() -> None:
    """One step at lr 0.1, one client with x = 2 and label 0: the gradient at w = 0 is -1, so w = 4 * 0.1."""
    state, _, _ = play(fedavg().with_optimizer(SGD(lr=0.1)), AskingLine(), line_federation(([2], [0])))
    assert state.shared["head.weight"].item() == pytest.approx(0.4)


def test_a_perturbation_is_as_far_as_ever() -> None:
    """FedSAM looks at w' = 0 + 0.5 g / |g| = -0.5, where the gradient is -2 / (1 + e^{-1}) = -1.462117; w is four times
    0.1 of that. Were the perturbation multiplied too, the gradient would be -2 / (1 + e^{-4})."""
    algorithm = fedsam(rho=0.5).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, AskingLine(), line_federation(([2], [0])))
    assert state.shared["head.weight"].item() == pytest.approx(0.4 * 1.462117, rel=1e-6)


def test_a_control_variate_is_the_mean_gradient_at_any_rate() -> None:
    """After one step c_k' is the gradient at w = 0: -1, and not four times that."""
    algorithm = scaffold().with_optimizer(SGD(lr=0.1))
    _, _, simulator = play(algorithm, AskingLine(), line_federation(([2], [0])))
    assert simulator.memory[0]["scaffold"]["head.weight"].item() == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("asked", "code", "fields"),
    [
        ({"weights": 2.0}, "unknown-name", {"got": "weights", "known": ["bias", "weight"]}),
        ({"weight": 0.0}, "out-of-range", {"got": 0.0}),
        ({"weight": float("inf")}, "out-of-range", {"got": float("inf")}),
        ({"weight": float("nan")}, "out-of-range", {}),
        ({"weight": "4"}, "wrong-type", {"got": "4"}),
        (4.0, "wrong-type", {"got": 4.0}),
    ],
)
def test_rates_that_make_no_sense_are_refused(
    asked: object, code: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Asking, "relative_rates", asked)
    with raises(UsageError, code, **fields) as caught:
        play(fedavg(), Two(), blob_federation())
    assert "Asking.relative_rates" in str(caught.value)
