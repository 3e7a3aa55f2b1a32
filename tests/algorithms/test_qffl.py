from dataclasses import replace

import pytest
import torch

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.qffl import FairStep, qffl
from fedatlas.client import LocalWork
from fedatlas.errors import TrainingError, UsageError
from fedatlas.parts import SGD, ClientInfo, Cohort, Equal, Upload, received_losses, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_the_step_follows_each_client_s_own_loss() -> None:
    """w = 0.5, x = 2, lr 0.1, one step, q = 2. Client 0 (label 0): F = log(1 + e^{-1}) = 0.313262, g = -2 / (1 + e) =
    -0.537883. Client 1 (label 1): F = log(1 + e) = 1.313262, g = 2 / (1 + e^{-1}) = 1.462117. F^2 g: -0.052784 and
    2.521650, sum 2.468866. h = 2 F g^2 + F^2 / 0.1: 1.162593 and 22.861509, sum 24.024102. w = 0.5 - 0.102766 =
    0.397234. (The last client's loss for all, or norms that are not squared, would give another number.)"""
    federation = line_federation(([2], [0]), ([2, 2], [1, 1]))
    state, _, _ = play(qffl(q=2.0).with_optimizer(SGD(lr=0.1)), Line(0.5), federation)
    assert state.shared["head.weight"].item() == pytest.approx(0.397234, abs=1e-6)


def test_the_loss_is_that_of_the_received_model() -> None:
    """More local steps change g_k only, never F_k = log 2 at w = 0. q = 1, x = 2, label 0, lr 0.1, two steps: w_k = 0.1
    + 0.0900332, g = -1.900332, h = 1.900332^2 + 6.931472 = 10.542734; w = 0.693147 * 1.900332 / 10.542734."""
    algorithm = qffl(q=1.0).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), line_federation(([2], [0])), work=LocalWork(epochs=2))
    assert state.shared["head.weight"].item() == pytest.approx(0.1249407, abs=1e-6)


def test_norms_run_over_all_parameters() -> None:
    """Change 0.3 and 0.4 in two tensors: squared norm 0.25 (not 0.7, not 0.49). q = 1, F = 1, eta = 0.5: the
    coefficient is 1 / (1 + 0.25 / 0.5) = 2/3."""
    step, _ = FairStep(q=1.0, eta=0.5).apply({}, {}, _cohort(1.0, change=(0.3, 0.4)))
    assert step["a"].item() == pytest.approx(0.2, abs=1e-6)
    assert step["b"].item() == pytest.approx(0.8 / 3, abs=1e-6)


def test_a_client_that_was_drawn_twice_steps_twice_as_far_among_others() -> None:
    """q = 0, changes 0.3 and 0.6, the first drawn twice: (2 * 0.3 + 0.6) / 3 = 0.4."""
    cohort = _together(_cohort(1.0, change=(0.3,)), _cohort(1.0, change=(0.6,)))
    step, _ = FairStep(q=0.0, eta=0.5).apply({}, {}, replace(cohort, draws={0: 2, 1: 1}))
    assert step["a"].item() == pytest.approx(0.4, abs=1e-6)


def test_a_high_power_stays_finite_where_losses_are_far_apart() -> None:
    """F = 1e6 and 1, q = 100: (1e6)^100 overflows, and the small loss counts 1e-600. The step is that of the first
    client alone, 0.3 / (1 + 100 * 0.09 / (0.1 * 1e6)) = 0.299973."""
    cohort = _together(_cohort(1e6, change=(0.3,)), _cohort(1.0, change=(0.6,)))
    step, _ = FairStep(q=100.0).apply({}, {}, cohort)
    assert step["a"].item() == pytest.approx(0.299973, rel=1e-6)


def test_q_zero_is_the_uniform_mean_bit_for_bit() -> None:
    federation = blob_federation()
    plain, _, _ = play(replace(fedavg(), weighting=(Equal(),)), Norms(), federation, rounds=3, cohort=3)
    flat, _, _ = play(qffl(q=0.0), Norms(), federation, rounds=3, cohort=3)
    assert same_bits(plain.shared, flat.shared)
    assert same_bits(plain.buffers, flat.buffers)


def test_the_weighting_has_no_effect() -> None:
    """Only running statistics are still averaged by it, so one round shows the parameters alone."""
    federation = blob_federation()
    equal, _, _ = play(qffl(), Norms(), federation)
    by_size, _, _ = play(replace(qffl(), weighting=fedavg().weighting), Norms(), federation)
    assert same_bits(equal.shared, by_size.shared)


def test_a_loss_of_zero_and_a_high_power_stay_finite() -> None:
    """F = 0 becomes 1e-10; at q = 0.5 the client hardly moves. F = 1e6 at q = 100 would overflow if taken plainly:
    coefficient 1 / (1 + 100 * 0.01 / (0.1 * 1e6)) = 0.99999."""
    step, _ = FairStep(q=0.5).apply({}, {}, _cohort(0.0, change=(0.1,)))
    assert 0 < step["a"].item() < 1e-8
    step, _ = FairStep(q=100.0).apply({}, {}, _cohort(1e6, change=(0.1,)))
    assert step["a"].item() == pytest.approx(0.1 * 0.99999, rel=1e-6)


def test_a_loss_that_is_not_finite_names_the_client() -> None:
    with raises(TrainingError, "not-finite") as caught:
        FairStep().apply({}, {}, _cohort(float("nan"), change=(0.1,)))
    assert "client only, round 3, aggregation" in str(caught.value)


def test_losses_must_be_sent() -> None:
    with raises(UsageError, "part-missing", part="ReceivedLoss"):
        play(fedavg().with_rules(FairStep()), Line(), line_federation(([2], [0])))


def test_settings_that_are_no_use_are_refused() -> None:
    with raises(UsageError, "out-of-range", setting="FairStep(q)", got=-1):
        qffl(q=-1)
    with raises(UsageError, "out-of-range", setting="FairStep(eta)", got=0):
        qffl(eta=0)


def test_the_loss_is_disclosed() -> None:
    assert words(qffl().disclosures()) == ["mean loss of the received model on the client's training data"]


def _cohort(loss: float, change: tuple[float, ...]) -> Cohort:
    upload = Upload(
        client=0,
        num_examples=1,
        num_steps=1,
        change={name: torch.tensor([value]) for name, value in zip("abc", change, strict=False)},
        buffers={},
        notes={"received_loss": {"loss": torch.tensor(loss)}},
    )
    roster = [ClientInfo(id=0, name="only", num_examples=1)]
    return Cohort(round=3, rounds=5, roster=roster, uploads=[upload], draws={0: 1}, shared={}, lr=0.1)


def _together(one: Cohort, other: Cohort) -> Cohort:
    uploads = [*one.uploads, replace(other.uploads[0], client=1)]
    roster = [*one.roster, ClientInfo(id=1, name="second", num_examples=1)]
    return replace(one, uploads=uploads, roster=roster, draws={0: 1, 1: 1})


def test_an_infinite_loss_names_the_client_as_nan_does() -> None:
    roster = [ClientInfo(id=0, name="ward-7", num_examples=1)]
    notes = {"received_loss": {"loss": torch.tensor(float("inf"))}}
    upload = Upload(client=0, num_examples=1, num_steps=1, change={}, buffers={}, notes=notes)
    cohort = Cohort(round=2, rounds=3, roster=roster, uploads=[upload], draws={0: 1}, shared={}, lr=0.1)
    with raises(TrainingError, "not-finite", got=float("inf")) as caught:
        received_losses(cohort, "FairStep")
    assert "ward-7" in str(caught.value)
