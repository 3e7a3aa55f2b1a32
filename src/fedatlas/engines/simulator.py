"""How a cohort runs on this machine: one client after another, or worker processes that share the data."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn

from fedatlas.client.model import PERSONAL, branch_of, with_branch
from fedatlas.client.runner import EVALUATION_BATCH, ClientRunner
from fedatlas.client.scoring import TestParts, client_losses, mean_personal
from fedatlas.client.work import LocalWork
from fedatlas.data.federation import Federation
from fedatlas.engines.engine import Engine, Result, Work, choose_engine
from fedatlas.engines.registry import AUTO, ENGINES
from fedatlas.engines.workers import Task, TaskRunner, WorkerPool, fork_available
from fedatlas.errors import TrainingError, UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import Metric, make_metrics
from fedatlas.parts.objective import Term
from fedatlas.parts.part import ServerPart
from fedatlas.parts.types import (
    Assignment,
    Branch,
    Candidate,
    ClientInfo,
    ClientLosses,
    ClientScore,
    InitialModel,
    Memory,
    ServerState,
    Tensors,
    Upload,
)
from fedatlas.seeds import repeatable, repeatably

EVALUATED_TOGETHER = 1000
"""Clients whose own parameters are in RAM at the same time while all are tested."""


class Where(TypedDict, total=False):
    """Where and how clients run; apart from an engine that rounds differently, it changes no bit."""

    device: torch.device | str
    workers: int | None
    engine: str
    profile: bool
    """Let clients measure the seconds of each stage."""


class Simulator:
    """Clients that run on this machine.

    ``workers`` processes of one thread each share the examples; the results do not depend on their number.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        federation: Federation,
        *,
        work: LocalWork | None = None,
        seed: int = 0,
        metrics: Sequence[str | Metric] = (),
        intervals: bool = False,
        **where: Unpack[Where],
    ) -> None:
        self.device = torch.device(where.get("device", "cpu"))
        federation = federation.to(self.device)
        self.federation = federation
        self.runner = ClientRunner(
            algorithm,
            model.to(self.device),
            federation,
            work or LocalWork(),
            seed,
            timed=where.get("profile", False),
            metrics=make_metrics(metrics, federation.data.task),
            intervals=intervals,
        )
        self.memory: MutableMapping[int, Memory] = {}
        """Each client's memory, as of the last committed round."""
        self.changed: set[int] = set()
        """The clients whose memory changed since the last checkpoint."""
        self._pending: dict[int, Memory] = {}
        self._assigned: dict[int, Assignment] = {}
        self._tests: dict[tuple[int, ...], TestParts] = {}
        """The test parts that are scored together, by their clients."""
        self.workers = choose_workers(where.get("workers"), self.device, len(federation.training_ids))
        self._tasks = TaskRunner(self.runner, self.workers)
        self.engine = choose_engine(where.get("engine", AUTO), self._tasks)
        """The name of the engine that trains clients."""
        self.trainer: Engine = ENGINES[self.engine](self._tasks)
        with repeatable(self.device):
            self._tasks.fork()
            introductions = self._introductions()
        self.roster: list[ClientInfo] = [
            ClientInfo(id=i, name=c.name, num_examples=len(c.train), held_out=c.held_out, introduction=introductions[i])
            for i, c in enumerate(federation.clients)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the engine and the worker processes."""
        self.trainer.close()
        self._tasks.close()

    @property
    def pool(self) -> WorkerPool | None:
        """The worker processes, if there are any."""
        return self._tasks.pool

    def place(self, tensor: Tensor) -> Tensor:
        """Return a tensor from a file on the model's device and in the model's memory format."""
        if self.device.type == "cuda" and self.runner.channels_last and tensor.ndim == 4:
            return tensor.to(self.device, memory_format=torch.channels_last)
        return tensor.to(self.device)

    def survey(self, assignments: Sequence[Assignment]) -> Mapping[int, Memory]:
        """Return the clients' replies before training, by client id."""
        self._begin(assignments)
        answers = self._run([Task("survey", self._given(one), self._cost(one)) for one in assignments])
        return {assignment.client: answer for assignment, answer in zip(assignments, answers, strict=True)}

    def initial(self) -> InitialModel:
        """Return the model before the first round."""
        return self.runner.bench.first_model()

    def losses(
        self, candidates: Sequence[Candidate], clients: Sequence[int], *, round: int = 0, held_back: bool = False
    ) -> dict[int, ClientLosses]:
        """Return the clients' losses under some models; a client without such examples is left out."""
        newcomer = self._newcomer()
        tasks = [
            Task("example_losses", (shared, buffers, self._personal(client, newcomer, branch), client, held_back))
            for shared, buffers, branch in candidates
            for client in clients
        ]
        found = iter(self._run(tasks))
        rows: dict[int, list[Tensor]] = {client: [] for client in clients}
        for _ in candidates:
            for client in clients:
                rows[client].append(next(found))
        return {client: client_losses(own) for client, own in rows.items() if len(own[0])}

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        """Start training, and return an iterator over the uploads; memory counts from ``commit`` on."""
        self._begin(assignments)
        work = [Work(*self._given(assignment), self._cost(assignment)) for assignment in assignments]
        self._assigned = {assignment.client: assignment for assignment in assignments}
        with repeatable(self.device):
            results = self.trainer.train(work)
        return self._uploads(results)

    def prepare(self, round: int, clients: Sequence[int]) -> None:
        """Make the next round's minibatches ready, where the engine does so."""
        self.trainer.prepare(round, clients)

    def _uploads(self, results: Iterator[tuple[int, Result]]) -> Iterator[Upload]:
        """Yield the uploads, and keep the clients' memory until ``commit``."""
        for _, (upload, memory) in repeatably(results, self.device):
            whole, given = self._memory(upload.client), self._assigned[upload.client]
            if memory or whole:
                self._pending[upload.client] = with_branch(whole, memory, given.branch, forgets=given.forgets)
            yield upload

    def _begin(self, assignments: Sequence[Assignment]) -> None:
        """Drop what is left of a round that was not finished, when another begins."""
        if not any(assignment.turn for assignment in assignments):
            self._pending = {}

    def _memory(self, client: int) -> Memory:
        """Return a client's memory as it is after the round's turns so far."""
        return self._pending[client] if client in self._pending else self.memory.get(client, {})

    def fallbacks(self) -> Mapping[str, int]:
        """Return why the engine left clients to a slower one, if it did, and how often."""
        return dict(self.trainer.fallbacks)

    def takes(self, before: ServerState, after: ServerState, uploads: Sequence[Upload]) -> bool:
        """Return True: on one machine a model that breaks is the user's to see."""
        return True

    def commit(self) -> None:
        """Make the clients' memory after this round the valid one."""
        self.memory.update(self._pending)
        self.changed |= self._pending.keys()
        self._pending = {}

    def saved(self) -> None:
        """Take note that a checkpoint holds the clients' memory as it is now."""
        self.changed.clear()

    def remarks(self, round: int) -> Mapping[str, Any]:
        """Return nothing: on one machine every client answers."""
        return {}

    def evaluate(
        self, shared: Tensors, buffers: Tensors, clients: Sequence[int], *, round: int = 0, branch: Branch = ""
    ) -> list[ClientScore]:
        """Return how the shared model, with each client's personal parameters, does on the clients' test parts."""
        clients = [c for c in clients if len(self.federation.clients[c].test)]
        alone = [c for c in clients if self.runner.bench.personal or self.federation.clients[c].transform is not None]
        together = sorted(set(clients) - set(alone))
        tests = self._test_parts(tuple(together)) if together else None
        chunks = () if tests is None else tests.examples.split(EVALUATION_BATCH[self.device.type])
        newcomer = self._newcomer()
        results = self._run([Task("score_examples", (shared, buffers, chunk), cost=len(chunk)) for chunk in chunks])
        scores: list[ClientScore] = []
        for first in range(0, len(alone), EVALUATED_TOGETHER):
            tasks = []
            for c in alone[first : first + EVALUATED_TOGETHER]:
                client = self.federation.clients[c]
                personal = self._personal(c, newcomer, branch)
                tasks.append(Task("score_client", (shared, buffers, personal, c), cost=len(client.test)))
            scores += self._run(tasks)
        if tests is not None:
            rows = [torch.cat(own) for own in zip(*results, strict=True)]
            scores += tests.scores(self.runner.metrics, rows, self.runner.intervals)
        for score in scores:
            if not math.isfinite(score.loss):
                name = self.federation.clients[score.client].name
                raise TrainingError(
                    f"loss is {score.loss}", client=name, round=round, stage="evaluation", code="training-diverged"
                )
        return sorted(scores, key=lambda score: score.client)

    def test_later(self, shared: Tensors, buffers: Tensors, round: int, then: object) -> bool:
        """Do nothing: on one machine a test at once takes no longer."""
        return False

    def _test_parts(self, clients: tuple[int, ...]) -> TestParts:
        """Return the test parts of clients that share a model; they are put together once while the groups stay."""
        if clients not in self._tests:
            kept = [known for known in self._tests if not set(known) & set(clients)]
            self._tests = {known: self._tests[known] for known in kept}
            self._tests[clients] = TestParts(self.federation, clients)
        return self._tests[clients]

    def _introductions(self) -> list[Memory]:
        silent = (Term.introduce, ServerPart.introduce)
        if all(type(part).introduce in silent for part in self.runner.algorithm.parts()):
            return [{} for _ in self.federation]
        return self._run([Task("introduce", (client,)) for client in range(len(self.federation))])

    def _newcomer(self) -> Tensors:
        """Return the personal values of a held-out client: the mean of the others', where it starts from them."""
        takes_mean = self.runner.bench.personal and self.runner.algorithm.split.newcomers_take_the_mean
        return mean_personal(self.memory) if takes_mean else {}

    def _personal(self, client: int, newcomer: Tensors, branch: Branch) -> Tensors:
        """Return a client's personal values, for its group's model or for the common one."""
        own = branch_of(self.memory.get(client, {}), branch).get(PERSONAL)
        return own or (newcomer if self.federation.clients[client].held_out else {})

    def _given(self, assignment: Assignment) -> tuple[Assignment, Memory]:
        branch = "" if assignment.restarts else assignment.branch
        return assignment, branch_of(self._memory(assignment.client), branch)

    def _cost(self, assignment: Assignment) -> int:
        return self.roster[assignment.client].num_examples

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        with repeatable(self.device):
            return self._tasks.run(tasks)


def choose_workers(workers: int | None, device: torch.device, num_clients: int) -> int:
    """Return how many worker processes to use: those asked for, else one a core on a CPU."""
    if workers is not None and workers < 1:
        raise UsageError(
            f"workers must be at least 1, got {workers}.", code="out-of-range", setting="workers", got=workers
        )
    if device.type != "cpu" or not fork_available():
        if workers is not None and workers > 1:
            raise UsageError(
                f"workers={workers} needs the CPU of a system that can fork; use workers=1 on {device}.",
                code="no-workers",
                got=workers,
            )
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(workers if workers is not None else cores, num_clients)
