"""Prints what groups from an atlas gain over one model, beside the true groups, IFCA and CFL.

python -m papers.tools.groups --data FOLDER --cells rotated-mnist,permuted-mnist --seeds 0,1,2 --out FILE

FOLDER holds mnist.npz and, if asked for, cifar10.npz (x_train, y_train) and what domain_sets.py reads; the digits are
embedded. IFCA gets the true number of groups and is started ``--starts`` times, of which the run with the lowest
training loss counts. CFL's thresholds are chosen from a grid on seed 10, which is not reported. Accuracy is the mean
over clients of their own test parts after the last round; where clients of a domain share its test part, there is also
a table by domain. ``--jobs`` runs are made at a time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, Literal, cast

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from fedatlas import Algorithm, Federation, Run, Settings, federate, from_arrays, load_dataset, make_atlas, train
from fedatlas.algorithms import cfl, fedavg, fedbn, fedpce, grouped, ifca
from fedatlas.algorithms.ifca import ByLoss
from fedatlas.atlas.encoders.projection import WIDTH
from fedatlas.data import Dirichlet, DomainImbalance, Iid, NaturalId, PermutedLabels, Rotated
from fedatlas.data.dataset import Dataset
from fedatlas.data.partitions.basic import Partition
from fedatlas.parts.optimizer import SGD
from fedatlas.parts.sharing import ByGroup, Level
from papers.tools.domain_sets import DOMAIN_SETS

TUNING_SEED = 10
GRID = [(eps1, eps2) for eps1 in (0.1, 0.2, 0.4, 0.8) for eps2 in (0.2, 0.4, 0.8, 1.6) if eps2 >= eps1]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kind of federation."""

    data: str
    partition: Callable[[], Partition]
    model: str = "cnn"
    options: dict[str, Any] = field(default_factory=dict)
    rounds: int = 40
    lr: float = 0.05
    groups: int = 4
    precision: Literal["float32", "bfloat16"] = "float32"
    test: Literal["client", "domain"] = "client"

    def federation(self, folder: Path, seed: int) -> Federation:
        """Return the clients."""
        return federate(load(self.data, folder), self.partition(), seed=seed, test=self.test)


def mnist(shift: Callable[..., Partition], **options: Any) -> Callable[[], Partition]:
    """Return how 24 clients of 500 images are made."""
    return lambda: shift(num_clients=24, examples_per_client=500, **options)


def sized(shift: Callable[..., Partition], images: int, **options: Any) -> Cell:
    """Return a cell of 24 clients with so many training images of MNIST, a quarter more to test, and a perceptron."""
    whole = round(images / 0.75)
    partition = partial(shift, num_clients=24, examples_per_client=whole, **options)
    return Cell(data="mnist", partition=partition, model="mlp", lr=0.1)


def domains(data: str, **options: Any) -> Cell:
    """Return a cell whose domains differ much in size; a small network, so that a processor suffices."""
    return Cell(
        data=data,
        partition=lambda: DomainImbalance(factor=5, **options),
        options={"norm": "batch", "width": 8},
        groups=4 if data == "pacs" else 5,
        test="domain",
    )


SHIFTS: dict[str, Callable[..., Partition]] = {"rotated": Rotated, "permuted": PermutedLabels}
CELLS: dict[str, Cell] = {
    **{f"{name}-{n}": sized(shift, n) for name, shift in SHIFTS.items() for n in (60, 150, 500)},
    **{f"{name}-{n}-0.3": sized(shift, n, alpha=0.3) for name, shift in SHIFTS.items() for n in (60, 150, 500)},
    "small-digits": domains("digits-16"),
    "digit-five": domains("digit-five"),
    "pacs": domains("pacs", quota=400),
    "rotated-mnist": Cell(data="mnist", partition=mnist(Rotated)),
    "permuted-mnist": Cell(data="mnist", partition=mnist(PermutedLabels)),
    "rotated-mnist-0.3": Cell(data="mnist", partition=mnist(Rotated, alpha=0.3)),
    "permuted-mnist-0.3": Cell(data="mnist", partition=mnist(PermutedLabels, alpha=0.3)),
    "iid-mnist": Cell(data="mnist", partition=mnist(Rotated, num_groups=1), groups=1),
    "permuted-cifar10": Cell(
        data="cifar10",
        partition=lambda: PermutedLabels(num_clients=24),
        model="resnet18",
        precision="bfloat16",
    ),
    "dirichlet-cifar10": Cell(
        data="cifar10",
        partition=lambda: Dirichlet(num_clients=24, alpha=0.3),
        model="resnet18",
        precision="bfloat16",
        groups=1,
    ),
    "digits-domains": Cell(
        data="digits", partition=lambda: DomainImbalance(factor=5), options={"norm": "batch"}, groups=5
    ),
    "heart": Cell(data="heart", partition=NaturalId, model="mlp", rounds=20),
    "iid-digits": Cell(data="digits", partition=lambda: Iid(num_clients=12), groups=1, rounds=20),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    cell: str
    seed: int
    method: str
    options: tuple[Any, ...] = ()
    folder: Path
    device: str
    rounds: int | None


def load(name: str, folder: Path) -> Dataset:
    """Return a data set by its name."""
    if name in ("digits", "heart"):
        return load_dataset(name)
    if name in DOMAIN_SETS:
        return DOMAIN_SETS[name](folder)
    with np.load(folder / f"{name}.npz") as file:
        images, labels = file["x_train"], file["y_train"]
    return from_arrays(images, labels.reshape(-1).astype(np.int64), name=name)


def build(job: Job, federation: Federation) -> tuple[Algorithm, dict[str, Any]]:
    """Return a method's algorithm, and what is known of it before training."""
    cell = CELLS[job.cell]
    kinds = [str(client.kind) for client in federation]
    method, _, level = job.method.partition(" at ")
    match method:
        case "fedavg":
            return fedavg(), {}
        case "true groups":
            numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
            named = {client.name: numbers[str(client.kind)] for client in federation}
            return replace(fedavg(), sharing=ByGroup(groups=named)), {"ari": 1.0}
        case "auto":
            began = time.perf_counter()
            atlas = make_atlas(federation, source="class-prototypes", progress=False)
            encoded = time.perf_counter()
            verdict = atlas.verdict()
            known = {
                "ari": float(adjusted_rand_score(kinds, verdict.groups.tolist())),
                "groups": verdict.count,
                "seconds of the atlas": round(encoded - began, 2),
                "seconds of the verdict": round(time.perf_counter() - encoded, 2),
            }
            algorithm = grouped(fedavg(), atlas, level=cast(Level, level or "all"))
            return algorithm, {**known, "reason": getattr(algorithm.sharing, "reason", "")}
        case "fedbn":
            return fedbn(), {}
        case "fedpce":
            return fedpce(), {}
        case "ifca":
            return ifca(cell.groups, seed=job.options[0]), {}
    return cfl(eps1=job.options[0], eps2=job.options[1], after=5), {}


def play(job: Job) -> dict[str, Any]:
    """Train, and return what came of it."""
    torch.set_num_threads(1)
    cell = CELLS[job.cell]
    federation = cell.federation(job.folder, job.seed)
    algorithm, known = build(job, federation)
    began = time.perf_counter()
    run = train(
        federation,
        algorithm.with_optimizer(SGD(lr=cell.lr)),
        Settings(evaluate_every=job.rounds or cell.rounds, workers=1, device=job.device, precision=cell.precision),
        model=cell.model,
        model_options=cell.options,
        rounds=job.rounds or cell.rounds,
        seed=job.seed,
        progress=False,
    )
    kinds = [str(client.kind) for client in federation]
    state = run.checkpoint().state
    served = None if state.group_of is None else state.group_of.tolist()
    if "ari" not in known:
        known["ari"] = float(adjusted_rand_score(kinds, served)) if served is not None and len(set(kinds)) > 1 else None
    return {
        "cell": job.cell,
        "seed": job.seed,
        "method": job.method,
        "options": list(job.options),
        "accuracy": run.last["client_mean"],
        "worst client": run.last["worst_client"],
        "kinds": dict(run.last.get("domains", {})),
        "train loss": run.rounds[-1]["train_loss"],
        "models": len(state.groups),
        "seconds": round(time.perf_counter() - began, 1),
        "megabytes": round(megabytes(run, algorithm, cell.groups) / 1e6, 1),
        "sharing": run.rounds[-1].get("groups"),
        "extra work": 0.0 if run.groups is None else round(run.groups.extra_work, 3),
        "trials": [] if run.groups is None else [list(trial.left) for trial in run.groups.trials],
        **known,
    }


def megabytes(run: Run, algorithm: Algorithm, groups: int) -> float:
    """Return the bytes of models that went to clients and back over all rounds, and of trials and an atlas."""
    state = run.checkpoint().state
    shared, buffers = state.model(0) if state.groups else (state.shared, state.buffers)
    size = sum(tensor.nbytes for tensor in (*shared.values(), *buffers.values()))
    taken = sum(len(entry["answered"]) for entry in run.rounds)
    down = groups if isinstance(algorithm.sharing, ByLoss) else 1
    clients = len(run.resolved["federation"]["clients"])
    more = 0
    if algorithm.name.startswith("grouped"):
        # Sums for the covariance, sums of classes, then cells in 128 directions.
        classes = len(run.resolved["federation"]["classes"])
        more += clients * (8 * WIDTH * (WIDTH + classes) + classes * (4 * 128 + 48))
    history = run.groups
    if history is not None:
        taken = sum(history.trained.values())
        # Where models are compared, each client gets two.
        compared = [entry for entry in run.rounds if entry.get("groups", {}).get("compared")]
        more += sum(len(entry["answered"]) * 2 * size for entry in compared)
    return float(size * taken * (down + 1) + more)


def jobs(options: argparse.Namespace, chosen: dict[str, tuple[float, float]]) -> Iterator[Job]:
    """Yield the runs that are reported."""
    for name in options.cells:
        for seed in options.seeds:
            common = {"cell": name, "seed": seed, "folder": options.data, "device": options.device}
            shared = {**common, "rounds": options.rounds}
            for method in options.methods:
                if method == "ifca" and CELLS[name].groups > 1:
                    yield from (Job(method=method, options=(start,), **shared) for start in range(options.starts))
                elif method == "cfl" and name in chosen:
                    yield Job(method=method, options=chosen[name], **shared)
                elif method not in ("ifca", "cfl") and (method != "true groups" or CELLS[name].groups > 1):
                    yield Job(method=method, **shared)


def tuned(options: argparse.Namespace, pool: ProcessPoolExecutor) -> dict[str, tuple[float, float]]:
    """Return CFL's thresholds for each cell, chosen on a seed that is not reported."""
    if "cfl" not in options.methods:
        return {}
    tries = [
        Job(
            cell=name,
            seed=TUNING_SEED,
            method="cfl",
            options=pair,
            folder=options.data,
            device=options.device,
            rounds=options.tuning_rounds or options.rounds,
        )
        for name in options.cells
        if CELLS[name].groups > 1
        for pair in options.grid
    ]
    found: dict[str, tuple[float, tuple[float, float]]] = {}
    for job, result in zip(tries, pool.map(play, tries), strict=True):
        print("tuning", json.dumps(result), flush=True)
        best = found.get(job.cell)
        if best is None or result["accuracy"] > best[0]:
            found[job.cell] = (result["accuracy"], (job.options[0], job.options[1]))
    return {name: pair for name, (_, pair) in found.items()}


def best_starts(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results with one of IFCA's starts for each federation: that of the lowest training loss."""
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for result in results:
        key = (result["cell"], result["seed"], result["method"])
        if key not in kept or result["train loss"] < kept[key]["train loss"]:
            kept[key] = result
    return list(kept.values())


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the means over seeds as a Markdown table."""
    lines = ["| cell | method | accuracy | by seed | ARI | models | MB |", "|---|---|---|---|---|---|---|"]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in best_starts(results):
        rows.setdefault((result["cell"], result["method"]), []).append(result)
    for (cell, method), own in rows.items():
        found = [100 * result["accuracy"] for result in own]
        ari = [result["ari"] for result in own if result["ari"] is not None]
        lines.append(
            f"| {cell} | {method} | {mean(found):.1f} | {', '.join(f'{value:.1f}' for value in found)} | "
            f"{f'{mean(ari):.2f}' if ari else '–'} | {', '.join(str(result['models'] or 1) for result in own)} | "
            f"{mean(result['megabytes'] for result in own):.0f} |"
        )
    return "\n".join(lines)


def by_domain(results: Sequence[dict[str, Any]]) -> str:
    """Return the accuracy of each domain, its mean over seeds, for cells whose clients share their domain's test."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        if CELLS[result["cell"]].test == "domain" or result["cell"] == "heart":
            rows.setdefault((result["cell"], result["method"]), []).append(result)
    lines = []
    for (cell, method), own in rows.items():
        names = list(own[0]["kinds"])
        found = [mean(100 * result["kinds"][name] for result in own) for name in names]
        work = mean(result["extra work"] for result in own)
        left = "; ".join(", ".join(map(str, result["trials"][-1])) if result["trials"] else "–" for result in own)
        each = ", ".join(f"{name} {value:.1f}" for name, value in zip(names, found, strict=True))
        lines.append(f"| {cell} | {method} | {mean(found):.1f} | {each} | {left} | {work:.0%} |")
    head = "| cell | method | domain mean | by domain | left, by seed | more work |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(lines) if lines else ""


def pairs(text: str) -> list[tuple[float, ...]]:
    """Return pairs of numbers."""
    return [tuple(float(part) for part in pair.split(":")) for pair in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--cells", type=lambda text: text.split(","), default=["rotated-mnist", "permuted-mnist"])
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--methods", type=lambda text: text.split(","), default="fedavg,true groups,auto,ifca,cfl")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--tuning-rounds", type=int, default=None)
    parser.add_argument("--starts", type=int, default=3, help="of IFCA")
    parser.add_argument("--grid", type=pairs, default=GRID, help="of CFL's thresholds: EPS1:EPS2,...")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    if isinstance(options.methods, str):
        options.methods = options.methods.split(",")
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        chosen = tuned(options, pool)
        print("thresholds of CFL:", chosen, flush=True)
        for result in pool.map(play, jobs(options, chosen)):
            results.append(result)
            print(json.dumps(result), flush=True)
            if options.out is not None:
                options.out.write_text(
                    json.dumps({"cfl": {k: list(v) for k, v in chosen.items()}, "runs": results}, indent=1)
                )
    print(table(results))
    print(by_domain(results))


if __name__ == "__main__":
    main()
