import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fedatlas.errors import UsageError
from fedatlas.optimizers import SGD, Adam, LocalOptimizer

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


def test_cosine_falls_from_lr_to_min_lr_over_the_rounds() -> None:
    """Round 1 of 4 has lr; round 3 is halfway: 0.1 + (1 - 0.1) / 2 = 0.55; round 4: 0.1 + 0.45 (1 + cos(3 pi / 4))."""
    optimizer = SGD(lr=1.0, schedule="cosine", min_lr=0.1)
    assert optimizer.lr_at(1, 4) == 1.0
    assert optimizer.lr_at(3, 4) == pytest.approx(0.55)
    assert optimizer.lr_at(4, 4) == pytest.approx(0.1 + 0.45 * (1 + math.cos(3 * math.pi / 4)))
    assert SGD(lr=0.3).lr_at(3, 4) == 0.3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(lr=0), r"SGD\(lr\) must be a positive number, got 0"),
        (lambda: SGD(momentum=1.2), r"SGD\(momentum\) must be in \[0, 1\), got 1.2"),
        (lambda: SGD(lr=0.1, min_lr=0.2), r"SGD\(min_lr\) must be in \[0, lr=0.1\], got 0.2"),
        (lambda: Adam(beta2=1.0), r"Adam\(beta2\) must be in \[0, 1\), got 1.0"),
        (lambda: SGD(schedule="linear"), "'constant' or 'cosine', got 'linear'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
