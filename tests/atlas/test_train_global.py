"""The index's training by captured steps, played on a CPU by a recorder that runs the step again."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from fedatlas.atlas.client2vec import train_global as global_index
from fedatlas.atlas.client2vec.network import DSAIGN
from fedatlas.atlas.client2vec.settings import IndexSettings
from fedatlas.atlas.client2vec.train_global import _batches, train_globally
from fedatlas.data import Client, Dataset, Federation
from fedatlas.seeds import generator
from fedatlas.training import Silent
from tiny import Again

SETTINGS = IndexSettings(feed_forward=16, layers=1, heads=2, batch_size=16)


def pairs() -> Federation:
    """Two clients of 20 vectors: at batches of 16, an epoch is two whole batches and one of 8."""
    rng = generator(0, "pairs")
    labels = torch.randint(3, (40,), generator=rng)
    data = Dataset(name="p", inputs=torch.randn(40, 32, generator=rng), labels=labels, classes=("a", "b", "c"))
    clients = tuple(
        Client(name=f"{i}", train=torch.arange(20 * i, 20 * i + 20), test=torch.arange(0)) for i in range(2)
    )
    return Federation(data=data, clients=clients, partition="two")


def trained(recorder: Again | None, settings: IndexSettings = SETTINGS, seed: int = 0) -> tuple[float, list[Tensor]]:
    network = DSAIGN(32, 32, settings)
    targets = torch.randn(3, 32, generator=generator(1, "targets"))
    loss = train_globally(
        network,
        pairs(),
        targets,
        epochs=4,
        seed=seed,
        device=torch.device("cpu"),
        progress=Silent(),
        recorder=recorder,
    )
    return loss, [parameter.detach() for parameter in network.parameters()]


@pytest.mark.parametrize("works", [True, False])
def test_captured_steps_give_the_bits_of_plain_ones(works: bool) -> None:
    recorder = Again(works)
    loss, parameters = trained(recorder)
    plain, expected = trained(None)
    assert loss == plain
    assert all(torch.equal(one, other) for one, other in zip(parameters, expected, strict=True))
    # One capture a size of batch: 16 and 8.
    assert recorder.captures == (2 if works else 0)
    assert (recorder.began, recorder.ended) == (1, 1)


@pytest.mark.parametrize("batching", ["mixed", "per_client"])
def test_the_seed_decides_whatever_was_drawn_before(batching: Literal["mixed", "per_client"]) -> None:
    settings = replace(SETTINGS, global_batching=batching)
    found = []
    for before in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(before)
            found.append(trained(None, settings)[1])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_the_network_trains_with_its_dropout() -> None:
    with_it, without = trained(None)[1], trained(None, replace(SETTINGS, dropout=0.0))[1]
    assert not all(torch.equal(one, other) for one, other in zip(with_it, without, strict=True))


def test_every_client_s_examples_are_shuffled_and_so_are_its_batches() -> None:
    """Two clients of 20, batches of 16: four batches of one client each, in an order of their own."""
    settings = IndexSettings(batch_size=16, global_batching="per_client")
    uploads = [torch.arange(20), torch.arange(20, 40)]
    epochs = [[batch.tolist() for batch in _batches(uploads, settings, generator(0, i))] for i in range(8)]
    assert all(sorted(i for batch in epoch for i in batch) == list(range(40)) for epoch in epochs)
    assert len({tuple(batch[0] >= 20 for batch in epoch) for epoch in epochs}) > 1
    assert not any(batch == sorted(batch) for epoch in epochs for batch in epoch)


def test_every_epoch_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    class Watched(global_index.Steps):
        def _step(self, own: Tensor) -> Tensor:
            seen.append(own.tolist())
            return super()._step(own)

    monkeypatch.setattr(global_index, "Steps", Watched)
    trained(None)
    assert len({tuple(batch) for batch in seen}) == len(seen) == 12
