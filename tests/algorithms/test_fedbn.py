from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithms.fedbn import KeepNorms, fedbn
from fedatlas.errors import UsageError
from fedatlas.models import NORM_LAYERS, build_model
from fedatlas.parts import SGD
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


class Standardised(nn.Module):
    """Batch norm of one number, then logits (w z, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut = nn.Sequential(nn.BatchNorm1d(1, eps=1e-12))
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.head.weight, 0.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.shortcut(x)
        logit = self.head(features)
        return features, torch.cat([logit, torch.zeros_like(logit)], 1)


def test_statistics_scales_and_shifts_stay_and_the_rest_is_averaged() -> None:
    """One step each, lr 0.1, head w = 0, gamma = 1, beta = 0, labels (0, 1).
    Client 0 sees 1 and 3: standardised to -1 and 1; dL/dw = mean(-1/2 * -1, 1/2 * 1) = 1/2, so w = -0.05; gamma and
    beta have gradient 0 as w = 0. Running mean 0.1 * 2 = 0.2, running variance 0.9 + 0.1 * 2 = 1.1 (unbiased).
    Client 1 sees 10 and 20: the same step; running mean 0.1 * 15 = 1.5, running variance 0.9 + 0.1 * 50 = 5.9.
    Round 2 starts from w = -0.05 and each client's own statistics: 0.9 * 0.2 + 0.2 = 0.38 and 1.35 + 1.5 = 2.85."""
    federation = line_federation(([1, 3], [0, 1]), ([10, 20], [0, 1]))
    algorithm = fedbn().with_optimizer(SGD(lr=0.1))
    state, _, simulator = play(algorithm, Standardised(), federation)
    assert set(state.shared) == {"head.weight"}
    assert state.buffers == {}
    assert state.shared["head.weight"].item() == pytest.approx(-0.05)
    own = [simulator.memory[c]["personal"] for c in (0, 1)]
    assert [memory["shortcut.0.running_mean"].item() for memory in own] == pytest.approx([0.2, 1.5])
    assert [memory["shortcut.0.running_var"].item() for memory in own] == pytest.approx([1.1, 5.9])
    assert {memory["shortcut.0.weight"].item() for memory in own} == {1.0}

    _, _, simulator = play(algorithm, Standardised(), federation, rounds=2)
    means = [simulator.memory[c]["personal"]["shortcut.0.running_mean"].item() for c in (0, 1)]
    assert means == pytest.approx([0.38, 2.85])
    # In round 2 the head is not 0 any more, so the scales move.
    assert simulator.memory[0]["personal"]["shortcut.0.weight"].item() != 1.0


def test_no_norm_of_a_resnet_is_missed() -> None:
    """ResNet-18 has 1 + 8 * 2 + 3 (shortcuts) = 20 norms, each with two parameters and two running statistics."""
    model = build_model("resnet18", num_classes=3, input_shape=(3, 8, 8), width=4)
    parameters, buffers = KeepNorms().personal_parameters(model), KeepNorms().personal_buffers(model)
    assert len([m for m in model.modules() if isinstance(m, NORM_LAYERS)]) == 20
    assert len(parameters) == len(buffers) == 40
    assert {"layer2.0.downsample.1.weight", "layer2.0.downsample.1.bias"} <= parameters
    assert {"layer4.0.downsample.1.running_mean", "layer4.0.downsample.1.running_var"} <= buffers
    assert {name.rsplit(".", 1)[0] for name in parameters} == {name.rsplit(".", 1)[0] for name in buffers}
    assert not any("conv" in name or "head" in name for name in parameters)
    one_dimensional = {k for k, w in model.named_parameters() if w.ndim == 1 and not k.startswith("head")}
    assert parameters == one_dimensional


@pytest.mark.parametrize("norm", ["group", "instance", "layer"])
def test_norms_without_statistics_keep_their_scales(norm: str) -> None:
    model = build_model("resnet18", num_classes=3, input_shape=(3, 16, 16), width=4, norm=norm)
    assert len(KeepNorms().personal_parameters(model)) == 40
    assert KeepNorms().personal_buffers(model) == set()


def test_a_norm_before_the_head_is_kept_too() -> None:
    model = build_model("resnet18", num_classes=3, input_shape=(3, 8, 8), width=4, head_norm=True)
    assert {"head_norm.weight", "head_norm.bias"} <= KeepNorms().personal_parameters(model)


def test_the_buffer_policy_rules_other_buffers_only() -> None:
    model = Norms()
    model.register_buffer("amplitude", torch.zeros(2))
    statistics = {"norm.running_mean", "norm.running_var"}
    assert KeepNorms().personal_buffers(model) == statistics
    assert KeepNorms(buffers="keep").personal_buffers(model) == statistics | {"amplitude"}
    assert fedbn().with_buffers("keep").split == replace(KeepNorms(), buffers="keep")


def test_a_client_that_sits_out_keeps_its_norms() -> None:
    federation = blob_federation(num_clients=6)
    _, before, first = play(fedbn(), Norms(), federation, rounds=3, cohort=2)
    _, after, second = play(fedbn(), Norms(), federation, rounds=4, cohort=2)
    assert [r.cohort for r in after[:3]] == [r.cohort for r in before]
    names = {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}
    for client, memory in first.memory.items():
        assert set(memory["personal"]) == names
        same = same_bits(memory["personal"], second.memory[client]["personal"])
        assert same == (client not in after[-1].cohort)


def test_a_model_without_norms_is_refused() -> None:
    with raises(UsageError, "model-unfit", got="Line"):
        play(fedbn(), Line(), line_federation(([1], [0])))


def test_rms_norms_are_kept_too() -> None:
    model = nn.Sequential()
    model.norm, model.head = nn.RMSNorm(4), nn.Linear(4, 2)
    assert fedbn().split.personal_parameters(model) == {"norm.weight"}
