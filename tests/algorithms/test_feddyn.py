from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.feddyn import Clipped, DynamicPull, feddyn
from fedatlas.client import LocalWork
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Adam, ClientContext, Equal, Split, words
from fedatlas.training import play as play_rounds
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_the_drift_of_the_last_round_shifts_the_client_and_the_server() -> None:
    """One client, x = 2, label 0, lr 0.1, alpha 1, one step. Round 1 at w = 0: gradient -1, w_k = 0.1, g = h = 0.1,
    w = 0.1 + 0.1 = 0.2. Round 2: cross-entropy's gradient at 0.2 is -2 / (1 + e^{0.4}) = -0.802625, the pull is
    1 * (0 + 0.1): w_k = 0.2 + 0.0702625 = 0.2702625, g = h = 0.1702625, w = 0.4405249."""
    algorithm = feddyn(alpha=1.0).with_optimizer(SGD(lr=0.1))
    state, _, simulator = play(algorithm, Line(), line_federation(([2], [0])), rounds=2)
    assert state.shared["head.weight"].item() == pytest.approx(0.4405249, abs=1e-6)
    assert simulator.memory[0]["feddyn"]["head.weight"].item() == pytest.approx(0.1702625, abs=1e-6)


def test_alpha_adapts_to_the_client_size_and_the_mean_is_uniform() -> None:
    """Sizes 1 and 3, mean 2: alpha_k = 2 and 2/3 for alpha 1. Two full-batch steps, lr 0.1, x = 2 from w = 0.
    Client 0 (label 0): 0.1, then gradient -0.900332 + 2 * 0.1: 0.1700332. Client 1 (label 1): -0.1, then gradient
    0.900332 - 2/3 * 0.1: -0.1833665. Uniform mean -0.0066667, h the same: w = -0.0133333."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    algorithm = feddyn(alpha=1.0).with_optimizer(SGD(lr=0.1))
    state, records, simulator = play(algorithm, Line(), federation, work=LocalWork(epochs=2))
    drifts = [simulator.memory[c]["feddyn"]["head.weight"].item() for c in (0, 1)]
    assert drifts == pytest.approx([0.1700332, -0.1833665], abs=1e-6)
    assert state.shared["head.weight"].item() == pytest.approx(-0.0133333, abs=1e-6)
    assert records[0].weights == {0: 0.5, 1: 0.5}


def test_held_out_clients_are_not_in_the_mean_size() -> None:
    """As above with a third client of 8 examples that never trains: mean 2 still, so the drifts are the same."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]), ([2] * 8, [1] * 8)).hold_out([2])
    algorithm = feddyn(alpha=1.0).with_optimizer(SGD(lr=0.1))
    _, _, simulator = play(algorithm, Line(), federation, work=LocalWork(epochs=2))
    drifts = [simulator.memory[c]["feddyn"]["head.weight"].item() for c in (0, 1)]
    assert drifts == pytest.approx([0.1700332, -0.1833665], abs=1e-6)


def test_without_adaption_every_client_has_the_same_alpha() -> None:
    """As above with alpha 1 for both: the clients mirror each other, 0.1 and then gradient -0.900332 + 0.1."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    algorithm = feddyn(alpha=1.0, adaptive=False).with_optimizer(SGD(lr=0.1))
    _, _, simulator = play(algorithm, Line(), federation, work=LocalWork(epochs=2))
    drifts = [simulator.memory[c]["feddyn"]["head.weight"].item() for c in (0, 1)]
    assert drifts == pytest.approx([0.1800332, -0.1800332], abs=1e-6)


def test_the_pull_has_the_gradient_of_the_original_loss() -> None:
    """The authors' loss is alpha <w, g - w^t> + (alpha / 2) ||w||^2; compare by automatic differentiation."""
    rng = torch.Generator().manual_seed(0)
    start, drift, weight = (torch.randn(5, generator=rng) for _ in range(3))
    weight.requires_grad_()
    local = SimpleNamespace(
        notes={"feddyn": {"w": torch.tensor(0.7)}},
        memory={"feddyn": {"w": drift}},
        parameters={"w": weight},
        start={"w": start},
    )
    with torch.no_grad():
        (ours,) = DynamicPull(alpha=0.3).gradient(cast(ClientContext, local), [torch.ones(5)])
    original = 0.21 * (weight * (drift - start)).sum() + 0.21 / 2 * weight.square().sum()
    (theirs,) = torch.autograd.grad(original, weight)
    torch.testing.assert_close(ours, 1 + theirs)


def test_drift_is_kept_by_client_id_and_the_server_holds_its_mean() -> None:
    """After every round h = (1/M) sum of all g_k, those of absent clients too; held-out clients are not in M."""
    federation = blob_federation(num_clients=7, held_out=2)
    for rounds in (1, 2, 5):
        state, records, simulator = play(feddyn(), Norms(), federation, rounds=rounds, cohort=2)
        took_part = {client for record in records for client in record.cohort}
        assert {c for c, memory in simulator.memory.items() if "feddyn" in memory} == took_part
        for name in state.shared:
            total = sum(simulator.memory[c]["feddyn"][name] for c in sorted(took_part))
            held = state.memory["server/feddyn"][f"drift/{name}"]
            torch.testing.assert_close(held, total / 5, rtol=1e-4, atol=1e-6)


def test_the_first_round_doubles_the_mean_change_under_full_participation() -> None:
    """w^1 = mean w_k + mean (w_k - w^0): with a negligible alpha, twice the uniform mean's change from w^0."""
    federation = blob_federation()
    model = Norms()
    start = {k: v.detach().clone() for k, v in model.named_parameters()}
    plain, _, _ = play(replace(fedavg(), weighting=(Equal(),)), model, federation)
    dynamic, _, _ = play(feddyn(alpha=1e-12), Norms(), federation)
    for name, w in start.items():
        torch.testing.assert_close(dynamic.shared[name], w + 2 * (plain.shared[name] - w), rtol=1e-5, atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class KeepHead(Split):
    def personal_parameters(self, model: nn.Module) -> set[str]:
        return {name for name, _ in model.named_parameters() if name.startswith("head")}


def test_personal_parameters_are_neither_pulled_nor_remembered() -> None:
    algorithm = replace(feddyn(alpha=0.1), split=KeepHead())
    state, _, simulator = play(algorithm, Norms(), blob_federation(), rounds=3, cohort=3)
    shared = {"body.weight", "body.bias", "norm.weight", "norm.bias"}
    assert state.shared.keys() == shared
    assert all(memory["feddyn"].keys() == shared for memory in simulator.memory.values())


def test_training_does_not_change_the_memory_it_was_given() -> None:
    state, _, simulator = play(feddyn(), Norms(), blob_federation(), rounds=2)
    kept = {k: v.clone() for k, v in simulator.memory[1]["feddyn"].items()}
    given = simulator.memory[1]["feddyn"]
    next(play_rounds(feddyn(), simulator, rounds=3, state=state))
    assert simulator.memory[1]["feddyn"] is not given
    assert same_bits(given, kept)


def test_clipping_scales_all_gradients_to_the_largest_norm() -> None:
    """Gradients (3) and (4) have norm 5; at max_norm 1 they become 0.6 and 0.8; lr 0.5 steps by 0.3 and 0.4."""
    optimizer = Clipped(base=SGD(lr=0.5), max_norm=1.0)
    parameters = [torch.zeros(1), torch.zeros(1)]
    optimizer.step(parameters, [], lambda: [torch.tensor([3.0]), torch.tensor([4.0])], optimizer.lr_at(1, 1))
    assert [p.item() for p in parameters] == pytest.approx([-0.3, -0.4], abs=1e-6)


def test_weight_decay_comes_after_clipping() -> None:
    """At w = 2 the gradient 4 is clipped to 1, then 0.5 * 2 of decay is added: lr 0.1 steps to 2 - 0.1 * 2 = 1.8."""
    optimizer = Clipped(base=SGD(lr=0.1, weight_decay=0.5), max_norm=1.0)
    parameters = [torch.tensor([2.0])]
    optimizer.step(parameters, [], lambda: [torch.tensor([4.0])], 0.1)
    assert parameters[0].item() == pytest.approx(1.8, abs=1e-6)


def test_a_small_gradient_is_left_alone_bit_for_bit() -> None:
    federation = blob_federation()
    work = LocalWork(epochs=2, batch_size=8)
    for base in (SGD(lr=0.1, momentum=0.9, keep_state=True), Adam(keep_state=True)):
        plain, _, one = play(fedavg().with_optimizer(base), Norms(), federation, rounds=2, work=work)
        clipped = replace(fedavg(), optimizer=Clipped(base=base, max_norm=1e6))
        same, _, other = play(clipped, Norms(), federation, rounds=2, work=work)
        assert same_bits(plain.shared, same.shared)
        assert all(same_bits(one.memory[c]["optimizer"], other.memory[c]["optimizer"]) for c in range(6))


def test_another_optimizer_keeps_the_clipping() -> None:
    optimizer = feddyn(max_norm=3.0).with_optimizer(Adam(lr=0.2, schedule="cosine", keep_state=True)).optimizer
    assert optimizer == Clipped(base=Adam(lr=0.2, schedule="cosine", keep_state=True), max_norm=3.0)
    assert optimizer.keep_state
    assert optimizer.lr_at(6, 10) == pytest.approx(0.1)
    twice = Clipped(base=Clipped(max_norm=2.0), max_norm=1.0)
    assert twice.rebased(Adam()) == Clipped(base=Clipped(base=Adam(), max_norm=2.0), max_norm=1.0)
    described = feddyn().describe()["optimizer"]
    assert described["part"] == "Clipped"
    assert described["max_norm"] == 10.0
    assert described["base"]["part"] == "SGD"
    assert "lr" not in described


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_an_alpha_that_is_not_positive_is_refused(alpha: float) -> None:
    with raises(UsageError, "out-of-range", setting="DynamicPull(alpha)"):
        feddyn(alpha=alpha)


def test_a_norm_that_is_not_positive_is_refused() -> None:
    with raises(UsageError, "out-of-range", setting="Clipped(max_norm)", got=0):
        feddyn(max_norm=0)


def test_the_pull_without_its_server_half_is_refused() -> None:
    with raises(UsageError, "part-missing", part="DynamicDrift"):
        play(fedavg().with_terms(DynamicPull()), Line(), line_federation(([2], [0])))


def test_nothing_but_the_change_leaves_a_client() -> None:
    assert words(feddyn().disclosures()) == []
