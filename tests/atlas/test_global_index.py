"""The index's training by captured steps, played on a CPU by a recorder that runs the step again."""

import pytest
import torch
from torch import Tensor

from fedatlas.atlas.dsa_ign import DSAIGN, IndexSettings
from fedatlas.atlas.global_index import train_globally
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Client, Federation
from fedatlas.progress import Silent
from fedatlas.seeds import generator
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


def trained(recorder: Again | None) -> tuple[float, list[Tensor]]:
    network = DSAIGN(32, 32, SETTINGS)
    targets = torch.randn(3, 32, generator=generator(1, "targets"))
    loss = train_globally(
        network,
        pairs(),
        targets,
        epochs=4,
        seed=0,
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
