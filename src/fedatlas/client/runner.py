"""One client at a time, on one model object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn

from fedatlas.client.channels_last import prefers_channels_last
from fedatlas.client.context import LocalContext, introduce_client, open_local, survey_client
from fedatlas.client.data import ResidentData
from fedatlas.client.machine import keep_freed_memory
from fedatlas.client.model import PERSONAL, Workbench
from fedatlas.client.scoring import client_score, example_rows
from fedatlas.client.timing import Stopwatch, train_timed
from fedatlas.client.training import ClientTraining, train_client
from fedatlas.client.work import LocalWork
from fedatlas.data.federation import Federation
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import Metric, always
from fedatlas.parts.tensor_math import add
from fedatlas.parts.types import Assignment, ClientScore, Memory, Tensors, Upload
from fedatlas.seeds import generator

EVALUATION_BATCH = {"cpu": 128, "cuda": 1024}
"""Fixed, so that an evaluation's bits do not depend on the number of workers."""
HELD_BACK = 0.2
"""The share of a client's training examples that it holds back where models are compared."""
Part = Literal["train", "kept", "held back"]


def num_held_back(num_examples: int) -> int:
    """Return how many of its training examples a client holds back.

    >>> num_held_back(9)
    1
    """
    return int(num_examples * HELD_BACK)


class Driver(Protocol):
    """Takes one client through its steps, in place of the plain loop."""

    refused: dict[str, int]
    """Why steps ran as in the plain loop, and how often."""

    def train(self, training: ClientTraining) -> tuple[Upload, Memory]:
        """Train a client to the end and return its upload and its memory."""
        ...


class ClientRunner:
    """Runs one client at a time on one model object; every worker process has its own.

    ``timed`` clients measure the seconds of each stage; every step then runs as in the plain loop. ``metrics`` are
    those beside the ones of every evaluation; with ``intervals`` each value comes with one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        federation: Federation,
        work: LocalWork,
        seed: int,
        *,
        timed: bool = False,
        metrics: Sequence[Metric] = (),
        intervals: bool = False,
    ) -> None:
        self.algorithm, self.federation, self.work, self.seed = algorithm, federation, work, seed
        keep_freed_memory(federation.data.inputs.device)
        self.channels_last = prefers_channels_last(model, federation.data.inputs)
        if self.channels_last and federation.data.inputs.is_cuda:
            # A CPU's convolutions bring their weights into order themselves; there the plain order is kept.
            model = cast(nn.Module, model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        # On a CPU a cast is not a kernel launch, so fewer casts save nothing.
        halve = work.precision == "bfloat16" and federation.data.inputs.is_cuda
        self.bench = Workbench(model, algorithm, compile=work.compile, halve=halve)
        self._data: dict[tuple[int, Part], ResidentData] = {}
        self.timed, self.intervals = timed, intervals
        self.metrics = (*always(federation.data.task), *metrics)
        self.driver: Driver | None = None
        """What takes clients through their steps; None is the plain loop."""
        self._reported_refusals = False

    def data(self, client: int, part: Part = "train") -> ResidentData:
        """Return a client's view of the examples: its training part, or one of the two parts that this is cut into."""
        if (client, part) not in self._data:
            train = None if part == "train" else self._cut(client)[part == "held back"]
            data = ResidentData(self.federation, client, channels_last=self.channels_last, train=train)
            if train is not None:
                data.place = self.data(client).place
            self._data[client, part] = data
        return self._data[client, part]

    def _cut(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the examples that a client trains on and those that it holds back, the same in every round."""
        member = self.federation.clients[client]
        rng = generator(self.seed, "held back", member.name)
        order = torch.randperm(len(member.train), generator=rng).to(member.train.device)
        count = num_held_back(len(order))
        kept, held_back = order[count:], order[:count]
        return member.train[kept.sort().values], member.train[held_back.sort().values]

    def introduce(self, client: int) -> Memory:
        """Return the tensors that the algorithm needs from a client before the first round."""
        return introduce_client(self.algorithm, self.data(client))

    def survey(self, assignment: Assignment, memory: Memory) -> Memory:
        """Return a client's answer before training."""
        return survey_client(self.algorithm, self._open(self.bench, assignment, memory))

    def train(self, assignment: Assignment, memory: Memory, into: Tensors | None = None) -> tuple[Upload, Memory]:
        """Train a client and return its upload and its memory; the change is written to ``into`` if that is given."""
        watch = Stopwatch() if self.timed else None
        training = self.begin(self.bench, assignment, memory, into)
        if watch is not None:
            upload, memory = train_timed(training, watch)
        elif self.driver is not None:
            upload, memory = self.driver.train(training)
        else:
            upload, memory = train_client(training)
        return self.with_own_score(assignment, upload, memory), memory

    def new_refusals(self) -> dict[str, int]:
        """Return why steps were not captured, at the first call after that happened."""
        if self.driver is None or not self.driver.refused or self._reported_refusals:
            return {}
        self._reported_refusals = True  # after the first refusal, no other capture is tried
        return self.driver.refused

    def with_own_score(self, assignment: Assignment, upload: Upload, memory: Memory) -> Upload:
        """Return a trained client's answer with the score of its own model, if the assignment asks for it."""
        if not assignment.test_own or not len(self.data(upload.client).client.test):
            return upload
        own = add(assignment.shared, upload.change)
        return replace(upload, score=self.score_client(own, upload.buffers, memory.get(PERSONAL, {}), upload.client))

    def begin(
        self, bench: Workbench, assignment: Assignment, memory: Memory, into: Tensors | None = None
    ) -> ClientTraining:
        """Begin a client's training on a workbench, for an engine to drive."""
        return ClientTraining(self.algorithm, assignment, bench, self._open(bench, assignment, memory), into)

    def _open(self, bench: Workbench, assignment: Assignment, memory: Memory) -> LocalContext:
        data = self.data(assignment.client, "kept" if assignment.holds_back else "train")
        return open_local(self.algorithm, self.work, assignment, bench, memory, data, self.seed)

    @torch.no_grad()
    def score_examples(self, shared: Tensors, buffers: Tensors, indices: Tensor) -> list[Tensor]:
        """Return what each metric needs of each example under the shared model."""
        self.bench.load(shared, buffers, {})
        self.bench.model.eval()
        return self._score(self.data(0), indices, None)

    @torch.no_grad()
    def score_client(self, shared: Tensors, buffers: Tensors, personal: Tensors, client: int) -> ClientScore:
        """Return how the shared model with one client's own parameters does on that client's test part."""
        rows = self.score_rows(self.data(client), shared, buffers, personal)
        return client_score(client, self.metrics, rows, self.intervals)

    @torch.no_grad()
    def score_rows(self, data: ResidentData, shared: Tensors, buffers: Tensors, personal: Tensors) -> list[Tensor]:
        """Return what each metric needs of each example of the test part of a client's data."""
        self.bench.load(shared, buffers, personal, data.place if self.bench.personal else None)
        self.bench.model.eval()
        rng = generator(self.seed, "evaluation", data.name, device=data.labels.device)
        size = EVALUATION_BATCH[data.labels.device.type]
        scores = [self._score(data, indices, rng) for indices in data.client.test.split(size)]
        return [torch.cat(own) for own in zip(*scores, strict=True)]

    def example_losses(
        self, shared: Tensors, buffers: Tensors, personal: Tensors, client: int, held_back: bool
    ) -> Tensor:
        """Return float64 (examples,): the loss of each of a client's training examples, or of those held back."""
        return self.losses_on(self.data(client, "held back" if held_back else "train"), shared, buffers, personal)

    @torch.no_grad()
    def losses_on(self, data: ResidentData, shared: Tensors, buffers: Tensors, personal: Tensors) -> Tensor:
        """Return float64 (examples,): the loss of each training example of a client's data."""
        if not data.num_examples:
            return torch.zeros(0, dtype=torch.float64)
        self.bench.load(shared, buffers, personal, data.place if self.bench.personal else None)
        self.bench.model.eval()
        rng = generator(self.seed, "losses", data.name, device=data.labels.device)
        found = []
        for indices in data.client.train.split(EVALUATION_BATCH[data.labels.device.type]):
            batch = data.batch(indices, rng)
            _, logits = self.bench.model(batch.inputs)
            found.append(data.task.losses(logits.float(), batch.labels).double())
        return torch.cat(found)

    def _score(self, data: ResidentData, indices: Tensor, rng: torch.Generator | None) -> list[Tensor]:
        batch = data.batch(indices, rng)
        _, logits = self.bench.model(batch.inputs)
        return example_rows(self.metrics, logits, batch.labels)
