"""Batch norm beside its change: against torch's forward mode, numerical derivatives, and how much work it is."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jvp
from torch.utils._python_dispatch import TorchDispatchMode

from fedatlas.algorithms.fedmix_tangent import logits_along
from fedatlas.algorithms.moving_norm import moving_batch_norm
from fedatlas.parts import Output

EPS = 1e-5


def _given(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(0)
    x, change = (torch.randn(*shape, generator=rng, dtype=dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[1], generator=rng, dtype=dtype) for _ in range(2))
    return 3 + 2 * x, change, weight, bias


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 5), (4, 3, 2, 3)])
def test_it_is_batch_norm_and_its_derivative_along_the_change(shape: tuple[int, ...]) -> None:
    x, change, weight, bias = _given(*shape)

    def plain(inputs: Tensor) -> Tensor:
        variance, mean = torch.var_mean(inputs, [0, *range(2, inputs.ndim)], correction=0, keepdim=True)
        places = [1, -1, *[1] * (inputs.ndim - 2)]
        return (inputs - mean) * (variance + EPS).rsqrt() * weight.view(places) + bias.view(places)

    torch.testing.assert_close(moving_batch_norm(x, change, weight, bias, EPS), jvp(plain, (x,), (change,)))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_its_gradient_is_the_numerical_one(affine: bool, last: bool) -> None:
    x, change, weight, bias = _given(3, 2, 2, 2)
    if last:
        x, change = (t.contiguous(memory_format=torch.channels_last) for t in (x, change))
    given = [t.requires_grad_() for t in ([x, change, weight, bias] if affine else [x, change])]
    assert torch.autograd.gradcheck(lambda *t: moving_batch_norm(*t, *[None] * (4 - len(t)), EPS), given)


def test_half_precision_has_the_same_gradients_to_two_digits() -> None:
    """The maps in bfloat16, scale and shift in float32, as under autocast."""
    exact = [t.requires_grad_() for t in _given(16, 4, 6, 6)]
    pull = [torch.randn(16, 4, 6, 6, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in (1, 2)]
    wanted = torch.autograd.grad(moving_batch_norm(*exact, EPS), exact, pull)
    types = (torch.bfloat16, torch.bfloat16, torch.float32, torch.float32)
    given = [t.detach().to(dtype).requires_grad_() for t, dtype in zip(exact, types, strict=True)]
    found = torch.autograd.grad(moving_batch_norm(*given, EPS), given, [p.bfloat16() for p in pull])
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() < 0.02 * other.norm()


class Counted(TorchDispatchMode):
    """Counts calls of torch's kernels by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.__name__] += 1
        return func(*args, **(kwargs or {}))


class Convolved(nn.Module):
    """A convolution, a batch norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = F.relu(self.norm(self.conv(x))).mean((2, 3))
        return features, self.head(features)


def test_arguments_by_name_are_understood() -> None:
    """A user's network may call torch's functions with names; the derivative of 3 x + 1 along 2 is 6."""

    def forward(_: object, inputs: Tensor) -> Output:
        weight = torch.full((1, 1), 3.0)
        return Output(inputs, F.linear(input=inputs, weight=weight, bias=torch.ones(1)))

    local: Any = SimpleNamespace(forward=forward)
    logits, change = logits_along(local, torch.ones(2, 1), torch.full((1, 1), 2.0))
    assert (logits.tolist(), change.tolist()) == ([[4.0]] * 2, [[6.0]] * 2)


def test_a_change_costs_one_more_convolution_forward_and_one_more_back() -> None:
    """Not also those with the change of the weights, which is zero; and batch norm is one kernel, not many."""
    model = Convolved()
    local: Any = SimpleNamespace(forward=lambda _, inputs: Output(*model(inputs)))
    with Counted() as counted:
        logits, change = logits_along(local, torch.randn(4, 2, 6, 6), torch.randn(1, 2, 6, 6))
        torch.autograd.grad(logits.sum() + change.square().sum(), list(model.parameters()))
    calls = counted.calls
    assert (calls["convolution.default"], calls["convolution_backward.default"]) == (2, 2)
    assert (calls["native_batch_norm.default"], calls["native_batch_norm_backward.default"]) == (1, 3)
    assert calls["addmm.default"] + calls["mm.default"] <= 6
