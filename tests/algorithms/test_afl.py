from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize

from fedatlas.algorithms.afl import Agnostic, afl, onto_simplex
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, ClientInfo, Cohort, Equal, Upload, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_weight_moves_to_the_client_with_the_higher_loss() -> None:
    """w = 0.5, x = 2: client 0 (label 0) has F = log(1 + e^{-1}), client 1 (label 1) F = log(1 + e): exactly 1 more.
    The round itself has lambda = (1/2, 1/2): w = 0.5 - 0.1 * (-0.537883 + 1.462117) / 2 = 0.453788. Then lambda + 0.1 F
    differ by 0.1, so the projection gives (0.45, 0.55): the weights of round 2."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    algorithm = afl(lambda_lr=0.1).with_optimizer(SGD(lr=0.1))
    first, records, _ = play(algorithm, Line(0.5), federation)
    assert records[0].weights == {0: 0.5, 1: 0.5}
    assert first.shared["head.weight"].item() == pytest.approx(0.453788, abs=1e-6)
    assert first.memory["weighting/agnostic"]["lambda"].tolist() == pytest.approx([0.45, 0.55], abs=1e-6)
    _, records, _ = play(algorithm, Line(0.5), federation, rounds=2)
    assert records[1].weights == pytest.approx({0: 0.45, 1: 0.55}, abs=1e-6)


def test_the_ascent_accumulates_over_rounds() -> None:
    """F_1 - F_0 = 2 w for this pair (log(1 + e^{2w}) - log(1 + e^{-2w})). Round 2 is played at w = 0.453788: lambda
    moves by 0.05 * 0.907577 more, to (0.404621, 0.595379). Without memory it would be 0.5 -+ 0.045379."""
    federation = line_federation(([2], [0]), ([2], [1]))
    state, _, _ = play(afl(lambda_lr=0.1).with_optimizer(SGD(lr=0.1)), Line(0.5), federation, rounds=2)
    assert state.memory["weighting/agnostic"]["lambda"].tolist() == pytest.approx([0.404621, 0.595379], abs=1e-5)


def test_clients_that_did_not_answer_keep_their_weight() -> None:
    """lambda = (1/5, 3/10, 1/2), clients 0 and 1 answer with losses 1 and 3: s = 1/2, shares 0.4 and 0.6. Ascent with
    0.1: 0.5 and 0.9, projected 0.3 and 0.7, times s: 0.15 and 0.35. This round's weights are the shares."""
    weights, memory = Agnostic(lambda_lr=0.1).weigh(
        torch.ones(2, dtype=torch.float64),
        _cohort({0: 1.0, 1: 3.0}, clients=3),
        {"lambda": torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)},
    )
    assert weights.tolist() == pytest.approx([0.4, 0.6])
    assert memory["lambda"].tolist() == pytest.approx([0.15, 0.35, 0.5])


def test_a_client_that_was_drawn_twice_counts_twice_its_share() -> None:
    """Shares 0.4 and 0.6 as above, over the weights 2 and 1 that Equal gives for two draws and one."""
    lambdas = {"lambda": torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)}
    drawn = torch.tensor([2.0, 1.0], dtype=torch.float64)
    weights, _ = Agnostic(lambda_lr=0.1).weigh(drawn, _cohort({0: 1.0, 1: 3.0}, clients=3), lambdas)
    assert weights.tolist() == pytest.approx([0.8, 0.6])


def test_a_cohort_without_any_weight_counts_equally() -> None:
    before = {"lambda": torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)}
    equal = torch.ones(2, dtype=torch.float64)
    weights, memory = Agnostic().weigh(equal, _cohort({0: 1.0, 1: 3.0}, clients=3), before)
    assert weights.tolist() == [1.0, 1.0]
    assert memory["lambda"].tolist() == [0.0, 0.0, 1.0]


def test_lambda_stays_on_the_simplex_of_training_clients() -> None:
    federation = blob_federation(num_clients=7, held_out=2)
    for cohort in (2, 5):
        state, records, _ = play(afl(lambda_lr=1.0), Norms(), federation, rounds=6, cohort=cohort)
        weights = state.memory["weighting/agnostic"]["lambda"]
        assert weights.sum().item() == pytest.approx(1)
        assert (weights >= 0).all()
        assert weights[5:].tolist() == [0, 0]
        assert weights[:5].std() > 0
        assert all(sum(record.weights.values()) == pytest.approx(1) for record in records)


def test_without_a_step_it_is_the_uniform_mean_bit_for_bit() -> None:
    federation = blob_federation()
    plain, _, _ = play(replace(fedavg(), weighting=(Equal(),)), Norms(), federation, rounds=3, cohort=3)
    still, _, _ = play(afl(lambda_lr=0.0), Norms(), federation, rounds=3, cohort=3)
    assert same_bits(plain.shared, still.shared)
    assert same_bits(plain.buffers, still.buffers)


def test_the_projection_is_the_nearest_point_of_the_simplex() -> None:
    rng = torch.Generator().manual_seed(0)
    for size in (1, 2, 5):
        for _ in range(4):
            point = 2 * torch.randn(size, generator=rng, dtype=torch.float64)
            near = minimize(
                lambda x, p: ((x - p) ** 2).sum(),
                torch.full((size,), 1 / size).numpy(),
                args=(point.numpy(),),
                bounds=[(0, 1)] * size,
                constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
                tol=1e-12,
            )
            torch.testing.assert_close(onto_simplex(point), torch.from_numpy(near.x), rtol=0, atol=1e-5)
    inside = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    torch.testing.assert_close(onto_simplex(inside), inside)


def test_a_negative_step_is_refused() -> None:
    with raises(UsageError, "out-of-range", setting="Agnostic(lambda_lr)", got=-1):
        afl(lambda_lr=-1)


def test_losses_must_be_sent() -> None:
    with raises(UsageError, "part-missing", part="ReceivedLoss"):
        play(fedavg().with_weighting(Agnostic()), Line(), line_federation(([2], [0])))


def test_the_loss_is_disclosed() -> None:
    assert words(afl().disclosures()) == ["mean loss of the received model on the client's training data"]


def _cohort(losses: dict[int, float], clients: int) -> Cohort:
    uploads = [
        Upload(
            client=client,
            num_examples=1,
            num_steps=1,
            change={},
            buffers={},
            notes={"received_loss": {"loss": torch.tensor(loss)}},
        )
        for client, loss in losses.items()
    ]
    roster = [ClientInfo(id=i, name=f"client-{i}", num_examples=1) for i in range(clients)]
    return Cohort(round=1, rounds=1, roster=roster, uploads=uploads, draws=dict.fromkeys(losses, 1), shared={}, lr=0.1)
