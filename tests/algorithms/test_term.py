import math

import pytest

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.term import Tilted, term
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits

PAIR = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
"""At w = 0.5 the losses are log(1 + e^{-1}) and log(1 + e): exactly 1 apart."""


def test_weights_are_tilted_by_loss_and_multiplied_by_size() -> None:
    """t = 1, sizes 1 and 3: a = e^{-1} and 3, so client 0 has 0.367879 / 3.367879 = 0.109232. Gradients at w = 0.5:
    -0.537883 and 1.462117; w = 0.5 - 0.1 * (0.109232 * -0.537883 + 0.890768 * 1.462117) = 0.375635."""
    state, records, _ = play(term(t=1.0).with_optimizer(SGD(lr=0.1)), Line(0.5), PAIR)
    assert records[0].weights == pytest.approx({0: 0.109232, 1: 0.890768}, abs=1e-6)
    assert state.shared["head.weight"].item() == pytest.approx(0.375635, abs=1e-6)


def test_a_negative_tilt_turns_away_from_the_higher_loss() -> None:
    """t = -1: a = 1 and 3 e^{-1}, so client 0 has 1 / 2.103638 = 0.475367."""
    _, records, _ = play(term(t=-1.0), Line(0.5), PAIR)
    assert records[0].weights == pytest.approx({0: 0.475367, 1: 0.524633}, abs=1e-6)


@pytest.mark.parametrize(("t", "winner"), [(1e4, 1), (-1e4, 0)])
def test_a_strong_tilt_takes_the_worst_or_the_best_client_without_overflow(t: float, winner: int) -> None:
    state, records, _ = play(term(t=t), Line(0.5), PAIR)
    assert records[0].weights == {winner: 1.0, 1 - winner: 0.0}
    assert math.isfinite(state.shared["head.weight"].item())


def test_the_step_is_not_scaled_by_the_cohort() -> None:
    """Clients with the same data and loss: the model moves as each of them does, whatever their number."""
    ends = []
    for clients in (1, 2, 8):
        federation = line_federation(*[([2], [0])] * clients)
        state, _, _ = play(term(t=1.0).with_optimizer(SGD(lr=0.1)), Line(), federation)
        ends.append(state.shared["head.weight"].item())
    assert ends == pytest.approx([0.1] * 3, abs=1e-7)


def test_no_tilt_is_fedavg_bit_for_bit() -> None:
    federation = blob_federation()
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3, cohort=3)
    flat, _, _ = play(term(t=0.0), Norms(), federation, rounds=3, cohort=3)
    assert same_bits(plain.shared, flat.shared)
    assert same_bits(plain.buffers, flat.buffers)


def test_a_tilt_that_is_no_number_is_refused() -> None:
    with raises(UsageError, "out-of-range", setting="Tilted(t)", got=math.inf):
        term(t=math.inf)


def test_losses_must_be_sent() -> None:
    with raises(UsageError, "part-missing", part="ReceivedLoss"):
        play(fedavg().with_weighting(Tilted()), Line(), line_federation(([2], [0])))


def test_the_loss_is_disclosed() -> None:
    assert words(term().disclosures()) == ["mean loss of the received model on the client's training data"]
