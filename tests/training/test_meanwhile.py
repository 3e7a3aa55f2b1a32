"""What the server does while clients train changes no bit, and is done once."""

from dataclasses import replace

import torch

from fedatlas.algorithms import fedavg
from fedatlas.engines.simulator import Simulator
from fedatlas.errors import TrainingError
from fedatlas.parts.tensor_math import weighted_sum
from fedatlas.parts.types import Tensors, Upload
from fedatlas.training.draws import Draws
from fedatlas.training.meanwhile import Foreseen, Meanwhile
from fedatlas.training.model import make_model
from fedatlas.training.rounds import initial_state, play_round
from tiny import blob_federation, same_bits

WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
CLIENTS = (2, 5, 9)


def changes() -> dict[int, Tensors]:
    rng = torch.Generator().manual_seed(0)
    return {client: {name: torch.randn(7, generator=rng) for name in ("a", "b")} for client in CLIENTS}


def foresee() -> Foreseen:
    return Foreseen(dict.fromkeys(CLIENTS, 1), WEIGHTS, {"weighting/examples": {}})


def uploads(found: dict[int, Tensors]) -> list[Upload]:
    return [Upload(client=c, num_examples=1, num_steps=1, change=found[c], buffers={}) for c in CLIENTS]


def test_changes_that_come_in_any_order_add_up_to_the_same_bits() -> None:
    for order in ((2, 5, 9), (9, 5, 2), (5, 9, 2)):
        found, meanwhile = changes(), Meanwhile(foresee)
        for client in order:
            assert meanwhile.mean(uploads(found), WEIGHTS) is None
            meanwhile.take(client, found[client])
        mean = meanwhile.mean(uploads(found), WEIGHTS)
        assert mean is not None
        assert same_bits(mean, weighted_sum([found[client] for client in CLIENTS], WEIGHTS))


def test_a_sum_of_other_answers_or_under_other_weights_is_not_taken() -> None:
    found, meanwhile = changes(), Meanwhile(foresee)
    for client in CLIENTS:
        meanwhile.take(client, found[client])
    altered = {**found, 5: {name: tensor.clone() for name, tensor in found[5].items()}}
    assert meanwhile.mean(uploads(altered), WEIGHTS) is None
    assert meanwhile.mean(uploads(found)[:2], WEIGHTS[:2]) is None
    assert meanwhile.mean(uploads(found), WEIGHTS.flip(0)) is None
    assert meanwhile.mean(uploads(found), WEIGHTS) is not None


def test_foreseen_weights_count_for_the_answers_that_were_expected_alone() -> None:
    found, meanwhile = changes(), Meanwhile(foresee)
    expected = uploads(found)
    assert meanwhile.weighed(expected) is None  # nothing is in yet
    meanwhile.take(2, found[2])
    weights, memory = meanwhile.weighed(expected) or (None, None)
    assert weights is WEIGHTS
    assert memory == {"weighting/examples": {}}
    assert meanwhile.weighed(expected[:2]) is None
    assert meanwhile.weighed([replace(expected[0], num_examples=2), *expected[1:]]) is None


def test_weights_that_cannot_be_told_are_left_for_later() -> None:
    def nothing() -> Foreseen:
        raise TrainingError("weights must not all be zero", client="all", round=1, stage="weighting")

    found, meanwhile = changes(), Meanwhile(nothing)
    for client in CLIENTS:
        meanwhile.take(client, found[client])
    assert meanwhile.mean(uploads(found), WEIGHTS) is None


def test_what_was_put_off_is_done_once() -> None:
    done: list[str] = []
    meanwhile = Meanwhile(put_off=lambda: done.append("records"))
    meanwhile.catch_up()
    meanwhile.catch_up()
    assert done == ["records"]


def test_a_round_takes_the_sum_that_grew_while_workers_trained() -> None:
    federation, algorithm = blob_federation(num_clients=6), fedavg()
    done: list[str] = []
    ends: list[Tensors] = []
    for workers in (1, 2):
        model = make_model("mlp", {}, federation, algorithm, 0)
        with Simulator(algorithm, model, federation, workers=workers) as simulator:
            state = initial_state(algorithm, *simulator.runner.bench.shared(), simulator.roster)
            draws = Draws(algorithm.sampler, simulator.roster, 6, seed=0)
            state, record = play_round(
                algorithm,
                state,
                simulator.roster,
                simulator,
                draws,
                rounds=1,
                put_off=lambda workers=workers: done.append(str(workers)),
            )
            grown = simulator.meanwhile._added
            assert not simulator.meanwhile._taken
        assert grown == (6 if workers == 2 else 0)
        ends.append(state.shared)
        assert len(record.weights) == 6
    assert same_bits(ends[0], ends[1])
    assert done == ["1", "2"]
