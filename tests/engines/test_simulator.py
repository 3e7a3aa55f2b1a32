import gc
import os
import resource
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedatlas.algorithms import fedavg, fedbn, fedprox
from fedatlas.client import LocalContext, Workbench
from fedatlas.data import GaussianNoise
from fedatlas.engines.simulator import Simulator
from fedatlas.engines.workers import Task, WorkerPool
from fedatlas.errors import FedatlasError, TrainingError, UsageError
from fedatlas.parts import SGD, Assignment, Batch, Output, Term
from fedatlas.testing import tiny_federation
from fedatlas.training import make_model
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_does_not_change_a_bit(workers: int) -> None:
    federation = blob_federation(num_clients=7, held_out=1)
    algorithm = fedprox(mu=0.1).with_optimizer(SGD(lr=0.1, momentum=0.9, keep_state=True)).with_buffers("keep")
    alone, records, one = play(algorithm, Norms(), federation, rounds=3, cohort=4)
    together, records_together, many = play(algorithm, Norms(), federation, rounds=3, cohort=4, workers=workers)
    assert same_bits(alone.shared, together.shared)
    assert records == records_together
    assert one.memory.keys() == many.memory.keys()
    for client, memory in one.memory.items():
        assert all(same_bits(memory[part], many.memory[client][part]) for part in memory)


@pytest.mark.parametrize("workers", [1, 2])
def test_evaluation_scores_each_client_on_its_own_test_part(workers: int) -> None:
    """w = 1: label 0 is right where x > 0. Client 0 has 2 of 3 right, client 1 has 1 of 2."""
    federation = line_federation(([1, 2, -1], [0, 0, 0]), ([3, 3], [0, 1]))
    with Simulator(fedavg(), Line(start=1.0), federation, workers=workers) as simulator:
        scores = simulator.evaluate(*simulator.runner.bench.shared(), [0, 1])
    assert [(s.client, s.num_examples, s.accuracy) for s in scores] == [(0, 3, 2 / 3), (1, 2, 1 / 2)]
    expected = torch.tensor([1.0, 2.0, -1.0]).neg().exp().log1p().mean()
    assert scores[0].loss == pytest.approx(expected.item(), rel=1e-6)


def test_clients_that_share_test_examples_get_the_same_score() -> None:
    federation = blob_federation(num_clients=3)
    test = torch.cat([client.test for client in federation.clients])
    federation = replace(federation, clients=tuple(replace(c, test=test) for c in federation.clients))
    with Simulator(fedavg(), Norms(), federation, workers=1) as simulator:
        scores = simulator.evaluate(*simulator.runner.bench.shared(), range(3))
    assert len({(s.accuracy, s.loss, s.num_examples) for s in scores}) == 1


def test_each_client_is_tested_with_its_own_statistics_when_they_are_kept() -> None:
    algorithm = fedavg().with_buffers("keep")
    federation = blob_federation(num_clients=4, held_out=1)
    state, _, simulator = play(algorithm, Norms(), federation, rounds=2)
    scores = simulator.evaluate(state.shared, state.buffers, range(4))
    own = simulator.runner.score_client(state.shared, state.buffers, simulator.memory[1]["personal"], 1)
    assert scores[1].loss == own.loss
    # a client that never trained starts from the mean of those that did
    mean = {k: sum(simulator.memory[c]["personal"][k] for c in range(3)) / 3 for k in simulator.memory[0]["personal"]}
    newcomer = simulator.runner.score_client(state.shared, state.buffers, mean, 3)  # type: ignore[arg-type]
    assert scores[3].loss == pytest.approx(newcomer.loss, rel=1e-5)


def test_an_error_in_a_worker_arrives_with_its_client() -> None:
    federation = line_federation(([1], [0]), ([1e30], [0]), ([1], [1]))
    with raises(TrainingError, "training-diverged") as caught:
        play(fedavg().with_optimizer(SGD(lr=1e30)), Line(), federation, rounds=2, workers=2)
    assert caught.value.client == "client-1"


@dataclass(frozen=True, kw_only=True)
class Dies(Term):
    name: ClassVar[str] = "dies"

    def loss(self, local: LocalContext, batch: Batch, output: Output) -> Tensor | None:
        os._exit(9)


def test_a_worker_that_dies_is_reported() -> None:
    with raises(FedatlasError, "worker-lost"):
        play(fedavg().with_terms(Dies()), Norms(), blob_federation(), workers=2)


def test_workers_on_a_gpu_or_none_at_all_are_refused() -> None:
    from fedatlas.engines.simulator import choose_workers

    with raises(UsageError, "no-workers", got=2):
        choose_workers(2, torch.device("cuda"), 5)
    with raises(UsageError, "out-of-range"):
        choose_workers(0, torch.device("cpu"), 5)
    assert choose_workers(8, torch.device("cpu"), 5) == 5


@pytest.mark.parametrize("numbers", [1, 100_000])
def test_many_small_tasks_and_few_large_ones_come_back_in_order(numbers: int) -> None:
    """Small ones are sent to a worker before it is idle; of large ones two ends of a pipe could wait for each other."""

    class Echo:
        bench = Workbench(Line(), fedavg())

        def echo(self, position: int, content: bytes) -> tuple[int, bytes]:
            return position, content

        def new_refusals(self) -> dict[str, int]:
            return {}

    pool = WorkerPool(Echo(), 2)  # type: ignore[arg-type]
    try:
        tasks = [Task("echo", (i, bytes(8 * numbers)), cost=i % 3) for i in range(20)]
        assert pool.run(tasks) == [(i, bytes(8 * numbers)) for i in range(20)]
    finally:
        pool.close()


def test_what_somebody_keeps_of_a_client_is_not_overwritten_by_the_next() -> None:
    """Changes lie in shared memory while somebody has them; beyond what is lent they are copied."""
    federation, algorithm = blob_federation(num_clients=6), fedavg()
    with Simulator(algorithm, Norms(), federation, workers=2) as simulator:
        shared, buffers = simulator.runner.bench.shared()
        kept: list[tuple[Tensor, Tensor]] = []
        for number in range(1, 25):
            assignments = [
                Assignment(round=number, rounds=24, client=i, shared=shared, buffers=buffers, notes={})
                for i in range(6)
            ]
            for upload in simulator.train(assignments):
                part = upload.change["body.weight"][1:]
                kept.append((part, part.clone()))
        assert all(torch.equal(part, copy) for part, copy in kept)
        pool = simulator.pool
        assert pool is not None
        assert all(len(free) == 2 for free in pool._free)
        del upload, part
        kept.clear()
        gc.collect()
        assert all(len(free) == 34 for free in pool._free)


def test_an_evaluation_of_some_clients_does_not_answer_for_those_of_the_last() -> None:
    with Simulator(fedavg(), Norms(), blob_federation(), workers=1) as simulator:
        shared, buffers = simulator.runner.bench.shared()
        asked = [[0, 1], [2], [0, 1]]
        found = [simulator.evaluate(shared, buffers, clients) for clients in asked]
    assert [[score.client for score in scores] for scores in found] == asked
    assert [score.loss for score in found[0]] == [score.loss for score in found[2]]


def test_clients_without_test_examples_are_left_out_of_an_evaluation() -> None:
    federation = blob_federation(num_clients=3)
    clients = tuple(replace(c, test=c.test[:0]) if i == 1 else c for i, c in enumerate(federation))
    with Simulator(fedavg(), Norms(), replace(federation, clients=clients), workers=1) as simulator:
        found = simulator.evaluate(*simulator.runner.bench.shared(), [0, 1, 2])
    assert [score.client for score in found] == [0, 2]


def test_a_client_is_tested_on_images_changed_as_its_own_are() -> None:
    plain = tiny_federation("images")
    noisy = plain.with_transforms([GaussianNoise(variance=9.0) if i == 1 else None for i in range(len(plain))])
    found = []
    for federation in (plain, noisy):
        model = make_model("cnn", {"width": 4}, federation, fedavg(), 0)
        with Simulator(fedavg(), model, federation, workers=1) as simulator:
            found.append(simulator.evaluate(*simulator.runner.bench.shared(), [0, 1, 2]))
    assert [one.loss == other.loss for one, other in zip(*found, strict=True)] == [True, False, True]


def test_more_clients_than_are_looked_at_together_are_all_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedatlas.engines.simulator.EVALUATED_TOGETHER", 2)
    with Simulator(fedbn(), Norms(), blob_federation(num_clients=5), workers=1) as simulator:
        found = simulator.evaluate(*simulator.runner.bench.shared(), range(5))
    assert [score.client for score in found] == [0, 1, 2, 3, 4]


def test_workers_need_no_room_in_dev_shm_and_few_descriptors() -> None:
    """A container often has 64 MB of shared memory files, and a process 1024 descriptors."""
    before = set(os.listdir("/proc/self/fd"))
    with Simulator(fedavg(), Norms(), blob_federation(num_clients=6), workers=5) as simulator:
        assert simulator.pool is not None
        opened = len(set(os.listdir("/proc/self/fd")) - before)
        with open("/proc/self/maps", encoding="utf-8") as maps:
            shared = [line for line in maps if "/dev/shm/" in line]
        assert not [line for line in shared if "/dev/shm/sem." not in line]  # a lock is one page
    assert opened <= 3 * 5 + 1


def test_workers_that_cannot_be_started_are_one_error() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, limits[1]))
    try:
        with raises(FedatlasError, "no-workers"):
            Simulator(fedavg(), Norms(), blob_federation(num_clients=9), workers=8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
