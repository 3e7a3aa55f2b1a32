"""Models and federations small enough to work out by hand, and a recorder that replays nothing."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedatlas import train
from fedatlas.client import LocalWork
from fedatlas.data import Client, Dataset, Federation
from fedatlas.engines import Simulator
from fedatlas.parts import (
    Algorithm,
    ClientInfo,
    Cohort,
    Combination,
    Gathered,
    LocalOptimizer,
    ServerState,
    Upload,
    weighted_sum,
)
from fedatlas.runs import Run
from fedatlas.seeds import generator
from fedatlas.testing import tiny_federation
from fedatlas.training import RoundRecord, Settings, initial_state
from fedatlas.training import play as rounds_of


class Line(nn.Module):
    """One parameter w: logits (w x, 0). At w = 0 the gradient of label 0 is -x/2, of label 1 it is +x/2."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.head.weight, start)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logit = self.head(x)
        return x, torch.cat([logit, torch.zeros_like(logit)], 1)


class Norms(nn.Module):
    """A body with batch normalisation and dropout, and a head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Linear(4, 8)
            self.norm = nn.BatchNorm1d(8)
            self.drop = nn.Dropout(0.2)
            self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.drop(torch.relu(self.norm(self.body(x))))
        return features, self.head(features)


def line_federation(*clients: tuple[Sequence[float], Sequence[int]]) -> Federation:
    """Clients given as (inputs, labels), each tested on its training data."""
    inputs = torch.tensor([[x] for xs, _ in clients for x in xs], dtype=torch.float32)
    labels = torch.tensor([y for _, ys in clients for y in ys])
    data = Dataset(name="line", inputs=inputs, labels=labels, classes=("up", "down"))
    members, start = [], 0
    for i, (xs, _) in enumerate(clients):
        own = torch.arange(start, start + len(xs))
        members.append(Client(name=f"client-{i}", train=own, test=own, domain="even" if i % 2 == 0 else "odd"))
        start += len(xs)
    return Federation(data=data, clients=tuple(members), partition="by hand")


def blob_federation(num_clients: int = 6, held_out: int = 0, seed: int = 0) -> Federation:
    """Clients of unequal sizes with shifted, learnable blobs of three classes in four dimensions."""
    rng = generator(seed, "blobs")
    centres = 2 * torch.randn(3, 4, generator=rng)
    inputs, labels, members, start = [], [], [], 0
    for i in range(num_clients):
        size = 20 + 7 * (i % 4)
        y = torch.randint(3, (size,), generator=rng)
        shift = 0.7 * torch.randn(4, generator=rng)
        inputs.append(centres[y] + shift + torch.randn(size, 4, generator=rng))
        labels.append(y)
        own = torch.arange(start, start + size)
        members.append(
            Client(
                name=f"client-{i}",
                train=own[: -size // 4],
                test=own[-size // 4 :],
                domain="AB"[i % 2],
                held_out=i >= num_clients - held_out,
            )
        )
        start += size
    data = Dataset(name="blobs", inputs=torch.cat(inputs), labels=torch.cat(labels), classes=("a", "b", "c"))
    return Federation(data=data, clients=tuple(members), partition="blobs")


def play(
    algorithm: Algorithm,
    model: nn.Module,
    federation: Federation,
    *,
    rounds: int = 1,
    cohort: int | None = None,
    work: LocalWork | None = None,
    workers: int = 1,
    seed: int = 0,
) -> tuple[ServerState, list[RoundRecord], Simulator]:
    """Play rounds and return the last state, the records and the (closed) simulator."""
    records = []
    with Simulator(algorithm, model, federation, work=work, seed=seed, workers=workers) as simulator:
        state = initial_state(algorithm, simulator)
        for found in rounds_of(algorithm, simulator, rounds=rounds, cohort_size=cohort, seed=seed, state=state):
            state = found.state
            records.append(found.record)
    return state, records, simulator


def check_beside_torch(
    optimizer: LocalOptimizer, model: nn.Module, theirs: Any, rates: Mapping[str, float], *, as_tensor: bool
) -> None:
    """Compare four steps of an optimizer fitted to a model with torch's, which has a group for each parameter.

    With rates as a loop on a CPU gives them or, ``as_tensor``, as a captured step does.
    """
    mine = {name: p.detach().clone() for name, p in model.named_parameters()}
    reference = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    other = theirs([{"params": [p], "lr": rates[name]} for name, p in reference.items()])
    fitted = optimizer.fitted(model, list(mine))
    state = fitted.init(mine)
    given = torch.tensor(fitted.rates_at(1, 1)) if as_tensor else fitted.rates_at(1, 1)
    rng = torch.Generator().manual_seed(0)
    for _ in range(4):
        gradients = [torch.randn(p.shape, generator=rng) for p in mine.values()]
        for parameter, gradient in zip(reference.values(), gradients, strict=True):
            parameter.grad = gradient.clone()
        other.step()

        def look(gradients: list[Tensor] = gradients) -> list[Tensor]:
            return gradients

        fitted.step(list(mine.values()), fitted.slots(state, list(mine)), look, given)
    for name in mine:
        torch.testing.assert_close(mine[name], reference[name].detach(), rtol=1e-5, atol=1e-6)


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Tell whether two dictionaries hold the same names with the same bits."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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
        return steps > 0

    def reads(self, place: Tensor) -> bool:
        return True

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if not self.works:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captures += 1
        return function


def image_run(folder: Path, algorithm: Algorithm, norm: str = "instance", **options: Any) -> Run:
    """A small network on the tiny federation of images, trained for two rounds."""
    network = {"model": "cnn", "model_options": {"width": 4, "norm": norm}}
    settings = Settings(**{"rounds": 2, "batch_size": 8, "workers": 1, **network, **options})
    return train(tiny_federation("images"), algorithm, settings, folder=folder, progress=False)


def change_cohort(*changes: float, round: int = 1, size: int = 0, seed: int = 0, clients: int = 0) -> Cohort:
    """A round in which client k sends the change ``changes[k]`` of one parameter w."""
    uploads = [
        Upload(client=k, num_examples=1, num_steps=1, change={"w": torch.tensor([float(change)])}, buffers={})
        for k, change in enumerate(changes)
    ]
    roster = [ClientInfo(id=k, name=f"client-{k}", num_examples=1) for k in range(max(clients, len(changes)))]
    draws = {upload.client: 1 for upload in uploads}
    return Cohort(
        round=round,
        rounds=9,
        roster=roster,
        uploads=uploads,
        draws=draws,
        shared={"w": torch.zeros(1)},
        lr=0.1,
        size=size,
        seed=seed,
    )


def combined(link: Combination, cohort: Cohort, weights: Sequence[float] | None = None) -> tuple[float, Gathered]:
    """Return the change of w that a link makes of a round, and what it passes on."""
    count = len(cohort.uploads)
    given = torch.tensor(weights if weights is not None else [1 / count] * count, dtype=torch.float64)
    changes: list[dict[str, Tensor]] = [upload.change for upload in cohort.uploads]
    found, _ = link.combine(Gathered(changes=changes, moves=[{}] * count, weights=given), {}, cohort)
    return float(weighted_sum(found.changes, found.weights)["w"]), found
