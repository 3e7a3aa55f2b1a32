"""One training of FedGCR's tables: its accuracies by domain, the groups that were found, what travelled."""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fedatlas.algorithms import ADAMW, TYPE_VECTOR, build_algorithm
from fedatlas.atlas import cluster_accuracy, group_clients
from fedatlas.client import LocalWork
from fedatlas.data import Federation
from fedatlas.engines import Simulator
from fedatlas.parts import Algorithm, Memory, ServerState, Tensors, Upload
from fedatlas.training import Round, make_model, play, summarize
from papers.fedgcr.data import TYPES, make_federation
from papers.tables import Numbers, Task

FIRST_ROUNDS, EVERY = 3, 5
"""Groups are looked at in the first rounds, and in every so many."""
OWN_GROUPS = "server/group_customization"
QFFL_ETA = 1.0
"""Of q-FFL, in place of the learning rate: the change of a step of Adam is not a multiple of the gradient, and its
square over 1e-3 would stop the server's progress."""


def _traffic(played: Round) -> tuple[float, float]:
    """Return the bytes that a client got and sent in a round, on average."""
    down = [_size(a.shared, a.buffers, *a.notes.values()) for a in played.assignments]
    up = [_size(u.change, u.buffers, *u.notes.values()) for u in played.uploads]
    return sum(down) / len(down), sum(up) / len(up)


def _size(*tables: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for table in tables for tensor in table.values())


def make_algorithm(method: str, options: Mapping[str, Any], num_types: int) -> Algorithm:
    """Return a method as the tables have it: one optimizer for all of them, as many groups as there are types."""
    given = dict(options)
    if method in ("fedgcr", "fedgc", "fedgr"):
        given = {"num_groups": num_types, **given}
    if method == "qffl":
        given = {"eta": QFFL_ETA, **given}
    algorithm = build_algorithm(method, **given)
    return algorithm if "preset" in given else algorithm.with_optimizer(ADAMW)


def measured(task: Task) -> Numbers:
    """Train one variant and return what the tables show of it."""
    numbers, _, _ = train(task)
    return numbers


def train(task: Task) -> tuple[Numbers, nn.Module, Federation]:
    """Train one variant; return its numbers, the model with the last parameters, and the clients."""
    settings, device = task.settings, torch.device(task.options.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    federation = make_federation(
        settings["data"],
        factor=settings["factor"],
        other_order=settings["other_order"],
        seed=task.seed,
        folder=task.options.data_folder,
    )
    num_types = TYPES[settings["data"]]
    algorithm = make_algorithm(settings["method"], settings["options"], num_types)
    model = make_model("prompted_vit", dict(settings["model"]), federation, algorithm, task.seed)
    work = LocalWork(batch_size=settings["batch_size"], precision=settings["precision"])
    begun = time.perf_counter()
    with Simulator(
        algorithm, model, federation, work=work, seed=task.seed, device=device, workers=task.options.workers
    ) as simulator:
        numbers, state = _rounds(algorithm, simulator, federation, settings, task.seed, num_types)
        simulator.runner.bench.load(state.shared, state.buffers, {})
    numbers["seconds"] = time.perf_counter() - begun
    return numbers, model, federation


def _rounds(
    algorithm: Algorithm,
    simulator: Simulator,
    federation: Federation,
    settings: Mapping[str, Any],
    seed: int,
    num_types: int,
) -> tuple[Numbers, ServerState]:
    domains = {i: client.domain for i, client in enumerate(federation.clients)}
    rounds = settings["rounds"]
    curve: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    took: list[float] = []
    summary: dict[str, Any] = {}
    begun = time.perf_counter()
    for played in play(algorithm, simulator, rounds=rounds, seed=seed):
        state, number = played.state, played.state.round
        _settle(simulator.device)
        took.append(time.perf_counter() - begun)
        sent, received = _traffic(played)
        if number == rounds or number % settings["evaluate_every"] == 0:
            summary = summarize(simulator.evaluate(state.shared, state.buffers, range(len(federation))), domains)
            kept = ("domain_mean", "client_mean", "sigma_type", "sigma_client", "worst_domain")
            curve.append({"round": number, **{key: summary[key] for key in kept}})
        if number <= FIRST_ROUNDS or number % EVERY == 0 or number == rounds:
            found.append({"round": number, **groups_found(played.uploads, domains, num_types, state.memory)})
        begun = time.perf_counter()
    return {
        **curve[-1],
        "domains": summary["domains"],
        "curve": curve,
        "groups": [entry for entry in found if len(entry) > 1],
        "cluster_accuracy": found[-1].get("own"),
        "bytes_down": sent,
        "bytes_up": received,
        "seconds_a_round": median(took),
        "first_round_seconds": took[0],
        "num_clients": len(federation),
        "num_examples": sum(len(client.train) for client in federation),
    }, state


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def groups_found(
    uploads: Sequence[Upload], domains: Mapping[int, str | None], num_types: int, memory: Memory
) -> dict[str, float]:
    """Return the cluster accuracy of a round's vectors under other numbers of groups and other methods."""
    if not uploads or TYPE_VECTOR not in uploads[0].notes:
        return {}
    vectors = torch.stack([upload.notes[TYPE_VECTOR]["mean"] for upload in uploads]).cpu()
    types = [domains[upload.client] for upload in uploads]

    def accuracy(labels: Tensor) -> float:
        return cluster_accuracy(labels, types)

    found = {
        f"gmm {count}": accuracy(group_clients(vectors, count).labels)
        for count in range(max(1, num_types - 2), num_types + 3)
    }
    for method in ("kmeans", "finch"):
        found[method] = accuracy(group_clients(vectors, num_types, method=method).labels)
    if OWN_GROUPS in memory:
        own = memory[OWN_GROUPS]["group"].cpu()
        found["own"] = accuracy(own[[upload.client for upload in uploads]])
    return found
