"""Weights that are cast together give autocast's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedatlas.algorithms import fedavg
from fedatlas.client.model import Network, Workbench
from fedatlas.client.precision import halving
from fedatlas.models import build_model

MODELS: dict[str, dict[str, Any]] = {"cnn": {"width": 4}, "resnet18": {"width": 4}, "mobilenet_v2": {}, "mlp": {}}


def losses_and_gradients(network: Network, model: nn.Module, *, twice: bool = False) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(6, 3, 32, 32, generator=rng), torch.randint(10, (6,), generator=rng)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        _, logits = network(inputs)
    loss = F.cross_entropy(logits.float(), labels)
    gradients = torch.autograd.grad(loss, parameters, create_graph=twice)
    if twice:
        gradients = torch.autograd.grad(sum(g.square().sum() for g in gradients), parameters)  # type: ignore[arg-type]
    return [loss, *gradients]


@pytest.mark.parametrize("name", MODELS)
def test_weights_cast_together_give_autocasts_bits(name: str) -> None:
    model = build_model(name, num_classes=10, input_shape=(3, 32, 32), seed=0, **MODELS[name]).train()
    plain, halved = losses_and_gradients(model, model), losses_and_gradients(halving(model), model)
    assert all(torch.equal(one, other) for one, other in zip(plain, halved, strict=True))


def test_second_derivatives_too() -> None:
    model = build_model("mlp", num_classes=10, input_shape=(3, 32, 32), seed=0)
    plain = losses_and_gradients(model, model, twice=True)
    halved = losses_and_gradients(halving(model), model, twice=True)
    assert all(torch.equal(one, other) for one, other in zip(plain, halved, strict=True))


def test_what_is_frozen_or_shared_with_another_layer_is_left_as_it_is() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.first, self.last = nn.Embedding(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.first.requires_grad_(False)
            self.last.weight = self.embedding.weight

        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            seen = [self.embedding.weight.dtype, self.first.weight.dtype, self.last.weight.dtype, self.last.bias.dtype]
            assert seen == [torch.float32] * 3 + [torch.bfloat16]
            return inputs, inputs

    halving(Tied())(torch.zeros(1))


def test_a_twin_of_a_workbench_casts_the_weights_of_its_own_model() -> None:
    model = build_model("mlp", num_classes=10, input_shape=(3, 32, 32), seed=0)
    bench = Workbench(model, fedavg(), halve=True)
    twin = bench.twin()
    with torch.no_grad():
        for parameter in twin.model.parameters():
            parameter.zero_()
    inputs = torch.ones(2, 3, 32, 32)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert not twin.eager(inputs)[1].any()
        assert bench.eager(inputs)[1].any()
