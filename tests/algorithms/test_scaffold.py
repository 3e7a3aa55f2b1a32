from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.fedsam import SharpnessAware
from fedatlas.algorithms.scaffold import ControlVariate, scaffold
from fedatlas.client import LocalWork
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Adam, Equal, LocalOptimizer, Split, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_control_variates_correct_the_second_round() -> None:
    """lr 0.1, one step. Client 0 (x = 2, label 0) has gradient -1 at w = 0, client 1 (x = 4, label 1) has 2. Round 1:
    changes 0.1 and -0.2, w = -0.05; c_0 = -1, c_1 = 2, c = 0.5. Round 2 at w = -0.05: gradients -2 / (1 + e^{-0.1}) =
    -1.049958 and 4 / (1 + e^{0.2}) = 1.800664; corrected by c - c_k = 1.5 and -1.5: 0.450042 and 0.300664, mean
    0.375353: w = -0.05 - 0.0375353 = -0.0875353. After one step c_k' is the gradient: -1.049958 and 1.800664."""
    federation = line_federation(([2], [0]), ([4], [1]))
    state, _, simulator = play(scaffold().with_optimizer(SGD(lr=0.1)), Line(), federation, rounds=2)
    assert state.shared["head.weight"].item() == pytest.approx(-0.0875353, abs=1e-6)
    controls = [simulator.memory[c]["scaffold"]["head.weight"].item() for c in (0, 1)]
    assert controls == pytest.approx([-1.049958, 1.800664], abs=1e-5)
    assert state.memory["server/scaffold"]["head.weight"].item() == pytest.approx(0.375353, abs=1e-5)


def test_the_control_variate_divides_by_the_steps_that_were_taken() -> None:
    """Three epochs of two batches are six steps at lr 0.1: c_k' = (w^t - w_k) / (6 * 0.1) in the first round."""
    federation = line_federation(([2, 2, 2], [0, 0, 0]))
    algorithm = scaffold().with_optimizer(SGD(lr=0.1))
    state, _, simulator = play(algorithm, Line(), federation, work=LocalWork(epochs=3, batch_size=2))
    control = simulator.memory[0]["scaffold"]["head.weight"].item()
    assert control == pytest.approx(-state.shared["head.weight"].item() / 0.6, rel=1e-5)


@pytest.mark.parametrize("cohort", [2, 5])
def test_the_server_holds_the_mean_of_all_control_variates_after_every_round(cohort: int) -> None:
    federation = blob_federation(num_clients=7, held_out=2)
    work = LocalWork(epochs=2, batch_size=8)
    for rounds in (1, 2, 4):
        state, records, simulator = play(scaffold(), Norms(), federation, rounds=rounds, cohort=cohort, work=work)
        took_part = sorted({client for record in records for client in record.cohort})
        assert sorted(simulator.memory) == took_part
        for name, mean in state.memory["server/scaffold"].items():
            total = sum(simulator.memory[c]["scaffold"][name] for c in took_part)
            torch.testing.assert_close(mean, total / 5, rtol=1e-4, atol=1e-5)


def test_the_learning_rate_of_the_round_enters_the_control_variate() -> None:
    """Cosine over two rounds from 0.2: round 2 has lr 0.1. One step, so c_k' must be the plain gradient there:
    at w = 0.2 (one client, x = 2, label 0; its corrections cancel) -2 / (1 + e^{0.4}) = -0.802625."""
    algorithm = scaffold().with_optimizer(SGD(lr=0.2, schedule="cosine"))
    _, _, simulator = play(algorithm, Line(), line_federation(([2], [0])), rounds=2)
    assert simulator.memory[0]["scaffold"]["head.weight"].item() == pytest.approx(-0.802625, abs=1e-5)


def test_the_first_round_is_the_uniform_mean_bit_for_bit() -> None:
    federation = blob_federation()
    plain, _, _ = play(replace(fedavg(), weighting=(Equal(),)), Norms(), federation)
    first, _, _ = play(scaffold(), Norms(), federation)
    assert same_bits(plain.shared, first.shared)


def test_the_server_step_scales_the_change() -> None:
    """As in the first test, round 1: the mean change is -0.05; with server_lr 0.5 the model moves to -0.025."""
    federation = line_federation(([2], [0]), ([4], [1]))
    state, _, _ = play(scaffold(server_lr=0.5).with_optimizer(SGD(lr=0.1)), Line(), federation)
    assert state.shared["head.weight"].item() == pytest.approx(-0.025, abs=1e-7)
    assert state.memory["server/scaffold"]["head.weight"].item() == pytest.approx(0.5, abs=1e-6)


def test_a_client_without_a_step_keeps_its_control_variate() -> None:
    """One example under batch normalisation gives no step; dividing by zero steps would give nan."""
    federation = blob_federation(num_clients=3)
    alone = replace(federation.clients[0], train=federation.clients[0].train[:1])
    federation = replace(federation, clients=(alone, *federation.clients[1:]))
    state, _, simulator = play(scaffold(), Norms(), federation, rounds=2)
    assert all(tensor.isfinite().all() for tensor in state.shared.values())
    assert all(not tensor.any() for tensor in simulator.memory[0]["scaffold"].values())
    for name, mean in state.memory["server/scaffold"].items():
        total = simulator.memory[1]["scaffold"][name] + simulator.memory[2]["scaffold"][name]
        torch.testing.assert_close(mean, total / 3, rtol=1e-4, atol=1e-5)


@dataclass(frozen=True, kw_only=True)
class KeepHead(Split):
    def personal_parameters(self, model: nn.Module) -> set[str]:
        return {name for name, _ in model.named_parameters() if name.startswith("head")}


def test_only_shared_parameters_have_control_variates() -> None:
    algorithm = replace(scaffold(), split=KeepHead())
    state, _, simulator = play(algorithm, Norms(), blob_federation(), rounds=3, cohort=3)
    assert not any(name.startswith("head") for name in state.memory["server/scaffold"])
    assert all(memory["scaffold"].keys() == state.shared.keys() for memory in simulator.memory.values())


@pytest.mark.parametrize(
    ("optimizer", "code", "got"),
    [(Adam(), "wrong-type", "Adam"), (SGD(momentum=0.9), "settings-conflict", 0.9)],
)
def test_any_optimizer_but_plain_sgd_is_refused(optimizer: LocalOptimizer, code: str, got: object) -> None:
    with raises(UsageError, code, got=got):
        scaffold().with_optimizer(optimizer)
    with raises(UsageError, code, got=got):
        replace(scaffold(), optimizer=optimizer)
    with raises(UsageError, code, got=got):
        replace(scaffold(), optimizer=SharpnessAware(base=optimizer))


def test_plain_sgd_is_taken_with_every_setting() -> None:
    plain = SGD(lr=0.3, weight_decay=0.01, schedule="cosine", min_lr=0.1)
    assert scaffold().with_optimizer(plain).optimizer == plain
    replace(scaffold(), optimizer=SharpnessAware(base=plain))  # its steps are gradients too


@pytest.mark.parametrize("server_lr", [0.0, -1.0, float("nan")])
def test_a_server_step_that_is_not_positive_is_refused(server_lr: float) -> None:
    with raises(UsageError, "out-of-range", setting="MeanControl(server_lr)"):
        scaffold(server_lr=server_lr)


def test_the_term_without_its_server_half_is_refused() -> None:
    with raises(UsageError, "part-missing", part="MeanControl"):
        play(fedavg().with_terms(ControlVariate()), Line(), line_federation(([2], [0])))


def test_the_control_variate_is_disclosed() -> None:
    assert words(scaffold().disclosures()) == ["the change of the client's control variate: its mean gradient"]
