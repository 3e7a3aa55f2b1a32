from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedatlas import train
from fedatlas.adapting import Adapter
from fedatlas.algorithms import fedavg, local
from fedatlas.algorithms.clustered import clustered
from fedatlas.client import LocalWork
from fedatlas.data import Federation
from fedatlas.parts import SGD
from fedatlas.runs import Run
from fedatlas.testing import tiny_federation
from fedatlas.training import Settings
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits

WORK = LocalWork(epochs=2, batch_size=8)


def test_clients_step_alone_and_the_server_adds_up_nothing() -> None:
    """Start w = 0, lr 0.1, x = 2, one step a round.
    Client 0 (label 0): round 1 has dL/dw = -1/2 * 2 = -1, so w = 0.1; round 2 has the logit 0.2,
    dL/dw = -2 / (1 + e^0.2) = -0.900332, so w = 0.1900332. Client 1 (three examples, label 1) is its mirror image.
    FedAvg's w would be -0.05 after round 1."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    state, records, simulator = play(local().with_optimizer(SGD(lr=0.1)), Line(), federation, rounds=2)
    assert (state.shared, state.buffers) == ({}, {})
    own = [simulator.memory[c]["personal"]["head.weight"].item() for c in (0, 1)]
    assert own == pytest.approx([0.1900332, -0.1900332], abs=1e-6)
    assert records[-1].losses.keys() == {0, 1}


def test_a_client_has_the_bits_that_it_has_without_the_others() -> None:
    """Running statistics of batch norm too: they neither leave nor arrive."""
    everyone = blob_federation(num_clients=4)
    _, _, together = play(local(), Norms(), everyone, rounds=3, work=WORK)
    for client in range(4):
        one = Federation(data=everyone.data, clients=(everyone.clients[client],))
        _, _, alone = play(local(), Norms(), one, rounds=3, work=WORK)
        found = together.memory[client]["personal"]
        assert same_bits(found, alone.memory[0]["personal"])
        assert found.keys() == {*dict(Norms().named_parameters()), "norm.running_mean", "norm.running_var"}


def test_one_client_trains_as_in_fedavg() -> None:
    federation = blob_federation(num_clients=1)
    shared, _, _ = play(fedavg(), Norms(), federation, rounds=3, work=WORK)
    _, _, simulator = play(local(), Norms(), federation, rounds=3, work=WORK)
    for name, value in simulator.memory[0]["personal"].items():
        torch.testing.assert_close(value, {**shared.shared, **shared.buffers}[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["loop", "vmap", "graph", "workers"])
def test_every_engine_takes_a_model_of_which_nothing_is_shared(engine: str, tmp_path: Path) -> None:
    """A run that goes on after a round has the bits of one that went through."""
    federation = tiny_federation()
    settings = Settings(
        rounds=2, model="mlp", model_options={"hidden": [8]}, workers=1 + (engine == "workers"), engine=engine
    )
    for folder, rounds in (("first", 1), ("first", 2), ("whole", 2)):
        kept = tmp_path / folder
        run = train(federation, local(), settings, rounds=rounds, folder=kept, resume=folder == "first", progress=False)
        assert len(run.rounds) == rounds
    assert (tmp_path / "first/clients.jsonl").read_bytes() == (tmp_path / "whole/clients.jsonl").read_bytes()
    expected = train(federation, local(), replace(settings, engine="loop"), progress=False)
    assert _close(_own(run), _own(expected))


def _own(run: Run) -> dict[str, Tensor]:
    return run.checkpoint().clients[0]["personal"]


def _close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.allclose(found[key], wanted[key], atol=1e-5) for key in wanted)


def test_a_newcomer_trains_alone_from_the_first_values(tmp_path: Path) -> None:
    federation = tiny_federation()
    settings = {"model": "mlp", "workers": 1, "progress": False, "folder": tmp_path}
    run = train(federation, local(), rounds=1, **settings)  # type: ignore[arg-type]
    adapter = Adapter(run, data=federation, algorithm=local())
    (newcomer, *_) = adapter.held_out
    adapted = adapter.adapt(newcomer, rounds=0)
    assert adapted.origin == "as the run's clients began"
    assert adapted.start.keys() == _own(run).keys()
    mean = adapter.adapt(newcomer, rounds=0, start="mean")
    assert not same_bits(mean.start, adapted.start)


def test_clustered_sampling_takes_clients_that_share_nothing_for_alike() -> None:
    state, records, _ = play(clustered(local()), Norms(), blob_federation(num_clients=5), rounds=2, cohort=2)
    assert state.shared == {}
    assert len(records[-1].losses) > 0
