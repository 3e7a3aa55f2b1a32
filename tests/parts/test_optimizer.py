import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedatlas.errors import UsageError
from fedatlas.parts import optimizer as optimizers
from fedatlas.parts.optimizer import SGD, Adam, LocalOptimizer, Rates
from raising import raises

CASES: list[tuple[LocalOptimizer, Any, dict[str, Any]]] = [
    (SGD(lr=0.1), torch.optim.SGD, {"lr": 0.1}),
    (SGD(lr=0.1, weight_decay=0.02), torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.02}),
    (SGD(lr=0.1, momentum=0.9), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD(lr=0.1, momentum=0.9, nesterov=True), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (Adam(lr=0.01), torch.optim.Adam, {"lr": 0.01}),
    (
        Adam(lr=0.01, beta1=0.5, beta2=0.9, weight_decay=0.1),
        torch.optim.Adam,
        {"lr": 0.01, "betas": (0.5, 0.9), "weight_decay": 0.1},
    ),
    (Adam(lr=0.01, weight_decay=0.1, decoupled=True), torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
]


@pytest.mark.parametrize(("ours", "theirs", "options"), CASES)
def test_steps_are_those_of_torch(ours: LocalOptimizer, theirs: Any, options: dict[str, Any]) -> None:
    rng = torch.Generator().manual_seed(0)
    start = {"a": torch.randn(3, 2, generator=rng), "b": torch.randn(4, generator=rng)}
    mine = {name: tensor.clone() for name, tensor in start.items()}
    reference = [tensor.clone().requires_grad_() for tensor in start.values()]
    optimizer = theirs(reference, **options)
    state = ours.init(mine)
    for _ in range(5):
        gradients = [torch.randn(tensor.shape, generator=rng) for tensor in start.values()]
        for parameter, gradient in zip(reference, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()

        def look(gradients: list[Tensor] = gradients) -> list[Tensor]:
            return gradients

        ours.step(list(mine.values()), ours.slots(state, list(mine)), look, ours.lr)
    for parameter, tensor in zip(reference, mine.values(), strict=True):
        torch.testing.assert_close(tensor, parameter.detach(), rtol=1e-6, atol=1e-7)


FUSED: list[LocalOptimizer] = [
    SGD(lr=0.01),
    SGD(lr=0.01, weight_decay=0.1),
    SGD(lr=0.01, momentum=0.9, weight_decay=0.1),
    SGD(lr=0.01, momentum=0.9, nesterov=True),
    Adam(lr=0.01),
    Adam(lr=0.01, beta1=0.5, beta2=0.9, weight_decay=0.1),
    Adam(lr=0.01, weight_decay=0.1, decoupled=True),
]


def _of_groups(rates: Sequence[float | Tensor]) -> list[float | Tensor]:
    """Of three parameters, the last two are a group."""
    first, second = rates
    return [first, second, second]


RATES: dict[str, tuple[Rates, Rates]] = {
    "one": (0.01, 0.01),
    "one in a tensor": (0.01, torch.tensor(0.01)),
    "of groups": (_of_groups((0.01, 0.2)), _of_groups((0.01, 0.2))),
    "of groups in a tensor": (_of_groups((0.01, 0.2)), _of_groups(torch.tensor((0.01, 0.2)).unbind())),
}


KERNELS = {"sgd": "_fused_sgd_", "adam": "_fused_adam_"}


def _steps(
    optimizer: LocalOptimizer,
    lr: Rates,
    lay_out: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    device: str = "cpu",
) -> list[Tensor]:
    """Return parameters and state after four updates, with gradients and state laid out in memory in some way."""
    rng = torch.Generator().manual_seed(0)
    sizes = ((3, 2), (4,), (2, 3, 5, 5))
    named = {str(size): torch.randn(size, generator=rng).to(device) for size in sizes}
    state = {name: lay_out(tensor) for name, tensor in optimizer.init(named).items()}
    for _ in range(4):
        gradients = [lay_out(torch.randn(size, generator=rng).to(device)) for size in sizes]
        optimizer.update(list(named.values()), gradients, optimizer.slots(state, list(named)), lr)
    return [*named.values(), *state.values()]


@pytest.mark.parametrize("optimizer", FUSED)
@pytest.mark.parametrize("rates", RATES)
def test_a_fused_step_is_the_step(optimizer: LocalOptimizer, rates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside plain numbers' steps: corrections of tensors are rounded to single precision where steps are not fused."""
    plain, given = RATES[rates]
    expected = _steps(optimizer, plain)
    monkeypatch.setattr(optimizers, "can_be_fused", lambda tensors: True)
    with _Counted() as counted:
        found = _steps(optimizer, given)
    kernel = "_fused_adamw_" if isinstance(optimizer, Adam) and optimizer.decoupled else KERNELS[optimizer.name]
    assert counted.calls == {kernel: 8 if "groups" in rates else 4}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


class _Counted(TorchFunctionMode):
    """Counts calls of fused kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.startswith("_fused"):
            self.calls[func.__name__] = self.calls.get(func.__name__, 0) + 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", FUSED)
def test_a_fused_step_does_not_depend_on_how_gradients_and_state_lie_in_memory(
    optimizer: LocalOptimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(tensor: Tensor) -> Tensor:
        return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor

    monkeypatch.setattr(optimizers, "can_be_fused", lambda tensors: True)
    for one, other in zip(_steps(optimizer, 0.01, turned), _steps(optimizer, 0.01), strict=True):
        assert torch.equal(one, other)


def test_steps_on_a_cpu_are_not_fused() -> None:
    with _Counted() as counted:
        _steps(Adam(), 0.01)
        _steps(SGD(), 0.01)
    assert counted.calls == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", FUSED)
def test_steps_on_a_gpu_are_fused_and_those_of_a_cpu(optimizer: LocalOptimizer) -> None:
    expected = _steps(optimizer, _of_groups((0.01, 0.2)))
    with _Counted() as counted:
        found = _steps(optimizer, _of_groups(torch.tensor((0.01, 0.2), device="cuda").unbind()), device="cuda")
    assert sum(counted.calls.values()) == 8
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-6)


def test_cosine_falls_from_lr_to_min_lr_over_the_rounds() -> None:
    """Round 1 of 4 has lr; round 3 is halfway: 0.1 + (1 - 0.1) / 2 = 0.55; round 4: 0.1 + 0.45 (1 + cos(3 pi / 4))."""
    optimizer = SGD(lr=1.0, schedule="cosine", min_lr=0.1)
    assert optimizer.lr_at(1, 4) == 1.0
    assert optimizer.lr_at(3, 4) == pytest.approx(0.55)
    assert optimizer.lr_at(4, 4) == pytest.approx(0.1 + 0.45 * (1 + math.cos(3 * math.pi / 4)))
    assert SGD(lr=0.3).lr_at(3, 4) == 0.3


@pytest.mark.parametrize(
    ("make", "code", "setting", "got"),
    [
        (lambda: SGD(lr=0), "out-of-range", "SGD(lr)", 0),
        (lambda: SGD(momentum=1.2), "out-of-range", "SGD(momentum)", 1.2),
        (lambda: SGD(lr=0.1, min_lr=0.2), "out-of-range", "SGD(min_lr)", 0.2),
        (lambda: Adam(beta2=1.0), "out-of-range", "Adam(beta2)", 1.0),
        (lambda: SGD(schedule="linear"), "wrong-type", "SGD(schedule)", "linear"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, code: str, setting: str, got: object) -> None:
    with raises(UsageError, code, setting=setting, got=got):
        make()


def test_a_first_rate_below_the_last_one_is_kept_for_all_rounds() -> None:
    """A new client that begins at 0.001 must not be asked to end at the run's 0.01."""
    assert SGD(lr=0.1, min_lr=0.01, schedule="cosine").adapting(lr=0.001).min_lr == 0.001


def test_a_momentum_of_one_is_refused() -> None:
    with raises(UsageError, "out-of-range", setting="SGD(momentum)", got=1.0):
        SGD(momentum=1.0)
