from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedatlas.algorithms import fedavg
from fedatlas.algorithms.fedsam import SharpnessAware, fedsam
from fedatlas.client import LocalWork
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Adam
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_a_step_uses_the_gradient_at_the_perturbed_point() -> None:
    """x = 2, label 0, w = 0: the gradient -2 sigmoid(-2 w) is -1, so with rho 0.5 it is taken at w' = -0.5, where it is
    -2 sigmoid(1) = -1.4621172. With lr 0.1 the step from w = 0 ends at 0.1462117."""
    algorithm = fedsam(rho=0.5).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), line_federation(([2], [0])))
    assert state.shared["head.weight"].item() == pytest.approx(0.1462117, abs=1e-6)


def test_the_norm_runs_over_all_parameters_and_the_decay_over_the_restored_ones() -> None:
    """Parameters 1 and 2 with gradients 3 and 4 (norm 5), rho 1: the second look is at 1.6 and 2.8. There the gradient
    is said to be (10, 20); weight decay 0.5 adds 0.5 and 1 from the restored parameters: 1 - 0.1 * 10.5 = -0.05 and
    2 - 0.1 * 21 = -0.1."""
    parameters = [torch.tensor([1.0]), torch.tensor([2.0])]
    answers = iter([[torch.tensor([3.0]), torch.tensor([4.0])], [torch.tensor([10.0]), torch.tensor([20.0])]])
    looks: list[list[float]] = []

    def gradient() -> list[Tensor]:
        looks.append([float(p) for p in parameters])
        return next(answers)

    SharpnessAware(base=SGD(lr=0.1, weight_decay=0.5), rho=1.0).step(parameters, [], gradient, 0.1)
    assert looks[0] == [1.0, 2.0]
    assert looks[1] == pytest.approx([1.6, 2.8])
    assert [float(p) for p in parameters] == pytest.approx([-0.05, -0.1])


def test_parameters_are_restored_bit_for_bit() -> None:
    """Adding and subtracting the perturbation would round: most of these 1000 numbers would not come back."""
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    parameters = [values.clone()]
    looks = iter([[torch.full_like(values, 1 / 3)], [torch.zeros_like(values)]])
    SharpnessAware(base=SGD(lr=0.1), rho=0.7).step(parameters, [], lambda: next(looks), 0.1)
    assert torch.equal(parameters[0], values)


def test_a_zero_gradient_perturbs_nothing() -> None:
    parameters = [torch.ones(3)]
    SharpnessAware(rho=0.5).step(parameters, [], lambda: [torch.zeros(3)], 0.1)
    assert torch.equal(parameters[0], torch.ones(3))


def test_without_radius_it_is_fedavg_bit_for_bit() -> None:
    federation = blob_federation()
    base = SGD(lr=0.1, momentum=0.9, keep_state=True)
    plain, _, _ = play(fedavg().with_optimizer(base), Norms(), federation, rounds=3)
    without, _, _ = play(fedsam(rho=0.0).with_optimizer(base), Norms(), federation, rounds=3)
    assert same_bits(plain.shared, without.shared)
    assert same_bits(plain.buffers, without.buffers)


def test_running_statistics_see_each_batch_once() -> None:
    """One step: the statistics depend on the received parameters only, so they are FedAvg's."""
    federation = blob_federation(num_clients=2)
    work = LocalWork(steps=1)
    plain, _, _ = play(fedavg(), Norms(), federation, work=work)
    sharp, _, _ = play(fedsam(rho=1.0), Norms(), federation, work=work)
    assert same_bits(plain.buffers, sharp.buffers)
    assert not same_bits(plain.shared, sharp.shared)


@pytest.mark.parametrize("base", [SGD(lr=0.02, momentum=0.9, keep_state=True), Adam(lr=0.01, keep_state=True)])
def test_the_base_optimizers_state_lives_and_is_kept(base: SGD | Adam) -> None:
    algorithm = fedsam().with_optimizer(base)
    state, _, simulator = play(algorithm, Norms(), blob_federation(), rounds=2, cohort=3, work=LocalWork(steps=2))
    assert all(bool(w.isfinite().all()) for w in state.shared.values())
    kept = next(iter(simulator.memory.values()))["optimizer"]
    assert kept.keys() == base.init(simulator.runner.bench.parameters).keys()


def test_a_new_base_keeps_the_radius_and_rules_the_learning_rate() -> None:
    algorithm = fedsam(rho=0.2).with_optimizer(SGD(lr=0.3, schedule="cosine", keep_state=True))
    optimizer = algorithm.optimizer
    assert isinstance(optimizer, SharpnessAware)
    assert optimizer.rho == 0.2
    assert (optimizer.lr, optimizer.keep_state) == (0.3, True)
    assert optimizer.lr_at(6, 10) == SGD(lr=0.3, schedule="cosine").lr_at(6, 10)
    assert algorithm.describe()["optimizer"]["base"]["lr"] == 0.3
    assert "lr" not in algorithm.describe()["optimizer"]


def test_wrong_settings_are_refused() -> None:
    with raises(UsageError, "out-of-range", setting="SharpnessAware(rho)", got=-0.1):
        fedsam(rho=-0.1)
    with raises(UsageError, "wrong-type", setting="SharpnessAware(base)", got="SharpnessAware"):
        fedsam().with_optimizer(SharpnessAware())
    with pytest.raises((TypeError, ValueError), match="lr"):
        replace(SharpnessAware(), lr=0.1)


def test_a_zero_gradient_leaves_numbers() -> None:
    """The gradient is taken at w' anew: were w' = w + 0 / 0, so would it be, and the step."""
    parameters = [torch.ones(3)]
    SharpnessAware(rho=0.5).step(parameters, [], lambda: [0 * parameters[0]], 0.1)
    assert torch.equal(parameters[0], torch.ones(3))
