from dataclasses import replace

import pytest
import torch
from torch import nn

from fedatlas.algorithms.ifca import ByLoss, ifca
from fedatlas.engines import Simulator
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Candidate, GroupState
from fedatlas.training import choose_groups, evaluate, initial_state, play
from raising import raises
from tiny import Line, line_federation


def test_a_client_trains_the_model_with_the_lowest_loss() -> None:
    """Models w = 1 and w = -1, lr 0.1. Client 0 (x = 2, label 0) has losses log(1 + e^-2) = 0.126928 and 2.126928:
    model 0. Client 1 (x = 4, label 1) has 4.018150 and 0.018150: model 1. Gradients there: -2 / (1 + e^2) = -0.238406
    and 4 / (1 + e^4) = 0.071945, so w = 1.0238406 and -1.0071945."""
    federation = line_federation(([2], [0]), ([4], [1]))
    algorithm = ifca(2).with_optimizer(SGD(lr=0.1))
    with Simulator(algorithm, Line(), federation, workers=1) as simulator:
        state = initial_state(algorithm, simulator)
        models = [torch.full((1, 1), w) for w in (1.0, -1.0)]
        groups = tuple(
            GroupState(shared={"head.weight": w}, buffers={}, memory=own.memory)
            for w, own in zip(models, state.groups, strict=True)
        )
        state = replace(state, groups=groups)
        assert choose_groups(algorithm.sharing, simulator, state, [0, 1], 1).tolist() == [0, 1]
        candidates = [state.model(0), state.model(1)]
        found = simulator.losses([Candidate(*model) for model in candidates], [0, 1])
        assert found[0].means.tolist() == pytest.approx([0.126928, 2.126928], abs=1e-6)
        assert found[1].means.tolist() == pytest.approx([4.018150, 0.018150], abs=1e-6)
        (last,) = play(algorithm, simulator, rounds=1, state=state)
        after = [group.shared["head.weight"].item() for group in last.state.groups]
        assert after == pytest.approx([1.0238406, -1.0071945], abs=1e-6)
        assert last.record.groups == (0, 1)
        # A client that has not taken part chooses for its test.
        assert len(evaluate(algorithm, simulator, last.state)) == 2


def test_a_model_that_no_client_takes_stays() -> None:
    federation = line_federation(([2], [0]), ([4], [0]))
    with Simulator(algorithm := ifca(3), Line(), federation, workers=1) as simulator:
        for last in play(algorithm, simulator, rounds=2):
            assert len(last.state.groups) == 3


def test_the_first_models_differ_and_are_drawn_alike() -> None:
    weight, scale = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), torch.ones(8)
    sharing = ByLoss(k=3)
    one, two = (sharing.initial({"weight": weight, "scale": scale}, group) for group in (1, 2))
    assert sharing.initial({"weight": weight}, 0)["weight"] is weight
    for found in (one, two):
        assert not torch.equal(found["weight"], weight)
        assert torch.equal(found["weight"].flatten().sort().values, weight.flatten().sort().values)
        assert torch.equal(found["scale"], scale)
    assert not torch.equal(one["weight"], two["weight"])


def test_heads_alone_may_differ() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(1, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            features = self.body(x)
            return features, self.head(features)

    federation = line_federation(([2], [0]), ([4], [1]))
    with Simulator(algorithm := ifca(2, level="head"), Two(), federation, workers=1) as simulator:
        state = initial_state(algorithm, simulator)
    assert sorted(state.shared) == ["body.bias", "body.weight"]
    assert [sorted(group.shared) for group in state.groups] == [["head.bias", "head.weight"]] * 2


def test_there_is_at_least_one_group() -> None:
    with raises(UsageError, "out-of-range", setting="ByLoss(k)", got=0):
        ifca(0)
