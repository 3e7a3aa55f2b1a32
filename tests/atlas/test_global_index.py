"""The index's training by captured steps, played on a CPU by a recorder that runs the step again."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

from fedatlas.atlas.dsa_ign import DSAIGN, IndexSettings
from fedatlas.atlas.global_index import train_globally
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Client, Federation
from fedatlas.progress import Silent
from fedatlas.seeds import generator

SETTINGS = IndexSettings(feed_forward=16, layers=1, heads=2, batch_size=16)


class Again:
    """Runs the function anew at each replay, and counts captures."""

    def __init__(self, works: bool = True) -> None:
        self.works, self.captures, self.began, self.ended = works, 0, 0, 0

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def begin(self) -> None:
        self.began += 1

    def end(self) -> None:
        self.ended += 1

    def room(self) -> bool:
        return True

    def worth(self, steps: int, seconds: float) -> bool:
        return True

    def reads(self, place: Tensor) -> bool:
        return True

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if not self.works:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captures += 1
        return function


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
