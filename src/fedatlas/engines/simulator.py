"""How a cohort runs on this machine: one client after another, or worker processes that share the data."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from fedatlas.client.model import PERSONAL
from fedatlas.client.runner import EVALUATION_BATCH, ClientRunner
from fedatlas.client.scoring import TestParts, mean_personal
from fedatlas.client.work import LocalWork
from fedatlas.data.federation import Federation
from fedatlas.engines.captured_step import GraphEngine, Lane, Result, Work
from fedatlas.engines.cpu_replay import TapeRecorder
from fedatlas.engines.cuda_graph import CudaRecorder
from fedatlas.engines.vmap import CohortEngine, gains_from_stacking
from fedatlas.engines.workers import Task, WorkerPool, fork_available
from fedatlas.errors import TrainingError, UsageError, unknown_name
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import Term
from fedatlas.parts.part import ServerPart
from fedatlas.parts.types import Assignment, ClientInfo, ClientScore, InitialModel, Memory, Tensors, Upload
from fedatlas.seeds import repeatable

Engine = Literal["auto", "loop", "workers", "graph", "vmap"]
ENGINES = get_args(Engine)
EVALUATED_TOGETHER = 1000
"""Clients whose own parameters are in RAM at the same time while all are tested."""


class Simulator:
    """A transport that runs clients on this machine and keeps what they remember.

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
        device: torch.device | str = "cpu",
        workers: int | None = None,
        engine: Engine = "auto",
        profile: bool = False,
    ) -> None:
        self.device = torch.device(device)
        federation = federation.to(self.device)
        self.federation = federation
        self.runner = ClientRunner(
            algorithm, model.to(self.device), federation, work or LocalWork(), seed, timed=profile
        )
        self.memory: MutableMapping[int, Memory] = {}
        """What each client remembers, as of the last committed round."""
        self.changed: set[int] = set()
        """Clients whose memory changed since somebody last cleared this set."""
        self._pending: dict[int, Memory] = {}
        self._tests: TestParts | None = None
        self.workers = choose_workers(workers, self.device, len(federation.training_ids))
        self.engine = choose_engine(engine, self.runner, self.workers)
        self.graphs: GraphEngine | None = None
        self.cohorts: CohortEngine | None = None
        if self.device.type == "cuda" and self.engine in ("graph", "vmap"):
            self.graphs = GraphEngine(self.runner.bench, self.runner.begin, lambda: CudaRecorder(self.device))
        if self.device.type == "cpu" and self.engine == "graph":
            self.runner.driver = Lane(self.runner.bench, TapeRecorder())
        if self.engine == "vmap":
            recorder = CudaRecorder(self.device) if self.device.type == "cuda" else None
            self.cohorts = CohortEngine(self.runner, recorder)
        with repeatable(self.device):
            self.pool = WorkerPool(self.runner, self.workers) if self.workers > 1 else None
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
        """End the worker processes."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def place(self, tensor: Tensor) -> Tensor:
        """Return a tensor that was read from a file where, and laid out as, the model's own are."""
        if self.device.type == "cuda" and self.runner.channels_last and tensor.ndim == 4:
            return tensor.to(self.device, memory_format=torch.channels_last)
        return tensor.to(self.device)

    def survey(self, assignments: Sequence[Assignment]) -> Mapping[int, Memory]:
        """Return what clients answer before training, by client id."""
        answers = self._run([self._task("survey", assignment) for assignment in assignments])
        return {assignment.client: answer for assignment, answer in zip(assignments, answers, strict=True)}

    def initial(self) -> InitialModel:
        """Return the model before the first round."""
        bench = self.runner.bench
        return InitialModel(*bench.shared(), frozenset(bench.personal))

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        """Start training, and return an iterator over the uploads; memory counts from ``commit`` on."""
        tasks = [self._task("train", assignment) for assignment in assignments]
        self._pending = {}
        with repeatable(self.device):
            results = self._start(tasks)
        return self._uploads(results)

    def prepare(self, round: int, clients: Sequence[int]) -> None:
        """Make the next round's minibatches ready, where the engine does so."""
        if self.cohorts is not None:
            self.cohorts.prepare(round, clients)

    def _uploads(self, results: Iterator[tuple[int, Result]]) -> Iterator[Upload]:
        """Yield the uploads, and keep the clients' memory until ``commit``."""
        while True:
            with repeatable(self.device):
                found = next(results, None)
            if found is None:
                return
            upload, memory = found[1]
            if memory or upload.client in self.memory:
                self._pending[upload.client] = memory
            yield upload

    def _start(self, tasks: list[Task]) -> Iterator[tuple[int, Result]]:
        """Start clients by the engine; clients that it cannot train are left to the next engine."""
        if self.graphs is None and self.cohorts is None:
            return self._begin(tasks)
        work = [Work(task.arguments[0], task.arguments[1], task.cost) for task in tasks]
        stacked: Iterator[tuple[int, Result]] = iter(())
        left = list(range(len(work)))
        if self.cohorts is not None:
            stacked, left = self.cohorts.train(work)
        if self.graphs is None:
            # Worker processes and the plain loop test a client's own model themselves.
            return chain(self._tested(work, stacked), _at(left, self._begin([tasks[i] for i in left])))
        rest = self.graphs.train([work[i] for i in left]) if left else iter(())
        return self._tested(work, chain(stacked, _at(left, rest)))

    def _tested(self, work: Sequence[Work], results: Iterator[tuple[int, Result]]) -> Iterator[tuple[int, Result]]:
        """Yield results with the scores of clients' own models, where the assignments ask for them."""
        if any(one.assignment.test_own for one in work):
            results = iter(list(results))  # a test needs the model on which clients train
        for i, (upload, memory) in results:
            yield i, (self.runner.tested(work[i].assignment, upload, memory), memory)

    def fallbacks(self) -> dict[str, int]:
        """Return why an engine left clients to a slower one, if it did, and how often."""
        engines = [
            engine for engine in (self.cohorts, self.graphs, self.pool or self.runner.driver) if engine is not None
        ]
        return {reason: count for engine in engines for reason, count in engine.refused.items()}

    def commit(self) -> None:
        """Take over what clients remember after a round that was played to its end."""
        self.memory.update(self._pending)
        self.changed |= self._pending.keys()
        self._pending = {}

    def remarks(self, round: int) -> Mapping[str, Any]:
        """Return nothing: on one machine every client answers."""
        return {}

    def evaluate(
        self, shared: Tensors, buffers: Tensors, clients: Sequence[int], *, round: int = 0
    ) -> list[ClientScore]:
        """Return how the shared model, with each client's personal parameters, does on the clients' test parts."""
        clients = [c for c in clients if len(self.federation.clients[c].test)]
        alone = [c for c in clients if self.runner.bench.personal or self.federation.clients[c].transform is not None]
        together = sorted(set(clients) - set(alone))
        chunks: tuple[Tensor, ...] = ()
        if together:
            if self._tests is None or self._tests.clients != together:
                self._tests = TestParts(self.federation, together)
            chunks = self._tests.examples.split(EVALUATION_BATCH[self.device.type])
        takes_mean = self.runner.bench.personal and self.runner.algorithm.split.newcomers_take_the_mean
        newcomer = mean_personal(self.memory) if takes_mean else {}
        results = self._run([Task("score_examples", (shared, buffers, chunk), cost=len(chunk)) for chunk in chunks])
        scores: list[ClientScore] = []
        for first in range(0, len(alone), EVALUATED_TOGETHER):
            tasks = []
            for c in alone[first : first + EVALUATED_TOGETHER]:
                client = self.federation.clients[c]
                personal = self.memory.get(c, {}).get(PERSONAL) or (newcomer if client.held_out else {})
                tasks.append(Task("score_client", (shared, buffers, personal, c), cost=len(client.test)))
            scores += self._run(tasks)
        if self._tests is not None and together:
            rows = [torch.cat(own) for own in zip(*results, strict=True)]
            scores += self._tests.scores(self.runner.metrics, rows)
        for score in scores:
            if not math.isfinite(score.loss):
                name = self.federation.clients[score.client].name
                raise TrainingError(f"loss is {score.loss}", client=name, round=round, stage="evaluation")
        return sorted(scores, key=lambda score: score.client)

    def _introductions(self) -> list[Memory]:
        silent = (Term.introduce, ServerPart.introduce)
        if all(type(part).introduce in silent for part in self.runner.algorithm.parts()):
            return [{} for _ in self.federation]
        return self._run([Task("introduce", (client,)) for client in range(len(self.federation))])

    def _task(self, method: str, assignment: Assignment) -> Task:
        cost = self.roster[assignment.client].num_examples
        return Task(method, (assignment, self.memory.get(assignment.client, {})), cost=cost)

    def _begin(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        """Start tasks; return an iterator over positions and results as they arrive."""
        if self.pool is not None:
            return self.pool.start(tasks)
        return ((i, getattr(self.runner, task.method)(*task.arguments)) for i, task in enumerate(tasks))

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        with repeatable(self.device):
            results = dict(self._begin(tasks))
        return [results[i] for i in range(len(tasks))]


def _at(positions: Sequence[int], results: Iterator[tuple[int, Result]]) -> Iterator[tuple[int, Result]]:
    """Yield results under the positions that their tasks have among all."""
    return ((positions[i], result) for i, result in results)


def choose_engine(engine: Engine, runner: ClientRunner, workers: int) -> Engine:
    """Return how clients run: the engine asked for, else by the device and by what there is to train.

    ``loop``, ``workers`` and ``graph`` give the same bits. ``vmap`` rounds otherwise, so whether it is taken depends on
    the model and the clients alone, never on a clock: the same run is the same on every machine of a kind.
    """
    device = runner.federation.data.labels.device
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if engine == "auto":
        if device.type == "cpu":
            plain: Engine = "workers" if workers > 1 else "loop"
            return plain if why_not_recorded(runner) else "graph"
        return "vmap" if gains_from_stacking(runner) and not runner.work.compile else "graph"
    if engine == "graph" and device.type == "cpu" and (reason := why_not_recorded(runner)):
        raise UsageError(f"engine 'graph' cannot record steps on a CPU, as {reason}; use 'auto'.")
    if engine == "vmap" and runner.work.compile:
        raise UsageError(
            "engine 'vmap' stacks clients and cannot use a compiled network; set training.compile to false."
        )
    return engine


def why_not_recorded(runner: ClientRunner) -> str | None:
    """Return why a CPU cannot record the steps of a model, or None if nothing forbids it."""
    if runner.work.compile:
        return "its network is compiled"
    return "what is frozen in its model is computed once and kept" if runner.bench.is_frozen_in_part else None


def choose_workers(workers: int | None, device: torch.device, num_clients: int) -> int:
    """Return how many worker processes to use: those asked for, else one a core on a CPU."""
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}.")
    if device.type != "cpu" or not fork_available():
        if workers is not None and workers > 1:
            raise UsageError(f"workers={workers} needs the CPU of a system that can fork; use workers=1 on {device}.")
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min(workers if workers is not None else cores, num_clients)
