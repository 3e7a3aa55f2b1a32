import pytest
import torch

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.fedavgm import Momentum, fedavgm
from fedatlas.errors import UsageError
from fedatlas.parts import SGD
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_momentum_adds_the_undampened_change_to_the_velocity() -> None:
    """x = 2, label 0, lr 0.1, beta 0.5, one step a round. Round 1 at w = 0: change 0.1, v = 0.1, w = 0.1. Round 2: the
    gradient at 0.1 is -2 / (1 + e^{0.2}) = -0.900332, v = 0.05 + 0.0900332 = 0.1400332, w = 0.2400332. Round 3: the
    gradient is -2 / (1 + e^{0.4800664}) = -0.764473, v = 0.0700166 + 0.0764473 = 0.1464639, w = 0.3864971."""
    federation = line_federation(([2], [0]))
    ends = []
    for rounds in (1, 2, 3):
        state, _, _ = play(fedavgm(beta=0.5).with_optimizer(SGD(lr=0.1)), Line(), federation, rounds=rounds)
        ends.append(state.shared["head.weight"].item())
    assert ends == pytest.approx([0.1, 0.2400332, 0.3864971], abs=1e-6)
    assert state.memory["server/momentum"]["head.weight"].item() == pytest.approx(0.1464639, abs=1e-6)


def test_nesterov_looks_ahead() -> None:
    """As above: v = 0.1, w = 0.1 + 0.5 * 0.1 = 0.15. Round 2: the gradient at 0.15 is -2 / (1 + e^{0.3}) = -0.851115,
    v = 0.05 + 0.0851115 = 0.1351115, w = 0.15 + 0.0851115 + 0.5 * 0.1351115 = 0.3026672."""
    algorithm = fedavgm(beta=0.5, nesterov=True).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), line_federation(([2], [0])), rounds=2)
    assert state.shared["head.weight"].item() == pytest.approx(0.3026672, abs=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_no_momentum_is_fedavg_bit_for_bit(nesterov: bool) -> None:
    federation = blob_federation()
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3, cohort=3)
    without, _, _ = play(fedavgm(beta=0.0, nesterov=nesterov), Norms(), federation, rounds=3, cohort=3)
    assert same_bits(plain.shared, without.shared)
    assert same_bits(plain.buffers, without.buffers)


def test_momentum_of_one_forgets_nothing_and_moves_on() -> None:
    """With beta = 1 and the same change c every round, the velocity is c, 2c, 3c; a dampened form would stand still."""
    rule, memory, steps = Momentum(beta=1.0), {"w": torch.zeros(1)}, []
    for _ in range(3):
        step, memory = rule.apply({"w": torch.ones(1)}, memory, None)  # type: ignore[arg-type]
        steps.append(step["w"].item())
    assert steps == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("beta", [-0.1, 1.2, float("nan")])
def test_a_momentum_outside_zero_to_one_is_refused(beta: float) -> None:
    with raises(UsageError, "out-of-range", setting="Momentum(beta)"):
        fedavgm(beta=beta)
