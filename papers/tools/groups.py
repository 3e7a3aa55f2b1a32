"""Prints what groups from an atlas gain over one model, beside the true groups, IFCA and CFL.

python -m papers.tools.groups --data FOLDER --cells rotated-150,permuted-150 --seeds 200,201,202 --out FILE

FOLDER holds mnist.npz and, if asked for, cifar10.npz (x_train, y_train; for all of it x_test, y_test too) and what
domain_sets.py reads; digits and heart are embedded. IFCA gets the true number of groups and is started ``--starts``
times, of which the run with the lowest training loss counts. CFL's settings are chosen from a grid on
``--tuning-seeds``, which are not reported; thresholds are shares of the longest changes of a run without a split.
Accuracy is the mean over clients of their own test parts after the last round, or by domain. What FILE holds already is
not measured again; ``--tables`` only prints it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, cast

import torch
from sklearn.metrics import adjusted_rand_score

from fedatlas import Algorithm, Federation, Run, Settings, make_atlas, train
from fedatlas.algorithms import ByLoss, cfl, fedavg, fedbn, fedpce, grouped, ifca
from fedatlas.atlas import WIDTH
from fedatlas.parts import SGD, ByGroup, Level
from fedatlas.runs import atomic_write
from papers.tools.group_cells import CELLS
from papers.tools.group_tables import NAMES, Result, paired, tables

GRID = [(first, second, gamma) for first in (0.3, 0.6, 1, 2) for second in (0, 0.6) for gamma in (0, 0.5, 0.6, 0.7)]
"""For CFL: eps1 as a share of the longest mean change, eps2 as one of a client's longest change, and gamma_max."""
WITHOUT_SPLIT = (0.0, 0.0, 0.0)
"""CFL's settings under which no group is ever at rest."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    cell: str
    seed: int
    method: str
    options: tuple[float, ...] = ()
    rounds: int
    folder: Path
    device: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What a result is known by."""
        return self.cell, self.seed, self.method, tuple(self.options), self.rounds


@dataclass
class Kept:
    """The results that were measured, in a file after each of them."""

    file: Path | None
    runs: list[Result] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path | None) -> Kept:
        """Return what a file holds."""
        return cls(file, json.loads(file.read_bytes()) if file is not None and file.exists() else [])

    def measured(self, jobs: Iterable[Job], run: Callable[[Sequence[Job]], Iterator[Result]]) -> list[Result]:
        """Return the results of all jobs; run those that lack."""
        asked = list(jobs)
        for result in run([job for job in asked if job.key not in self._known()]):
            self.runs.append(result)
            print(json.dumps(result), flush=True)
            if self.file is not None:
                lines = ",\n".join(json.dumps(one) for one in self.runs)
                atomic_write(self.file, f"[\n{lines}\n]\n".encode())
        known = self._known()
        return [known[job.key] for job in asked]

    def _known(self) -> dict[tuple[Any, ...], Result]:
        names = ("cell", "seed", "method", "options", "rounds")
        return {tuple(tuple(v) if isinstance(v := run[n], list) else v for n in names): run for run in self.runs}


def build(job: Job, federation: Federation) -> tuple[Algorithm, dict[str, Any]]:
    """Return a method's algorithm, and what is known of it before training."""
    cell = CELLS[job.cell]
    kinds = [str(client.kind) for client in federation]
    method, _, part = job.method.partition(" at ")
    level = cast(Level, part or "all")
    match method:
        case "fedavg":
            return fedavg(), {}
        case "true groups":
            numbers = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
            named = {client.name: numbers[str(client.kind)] for client in federation}
            return replace(fedavg(), sharing=ByGroup(groups=named, level=level)), {"ari": 1.0}
        case "auto":
            atlas = make_atlas(federation, source="class-prototypes", progress=False)
            verdict = atlas.verdict()
            ari = float(adjusted_rand_score(kinds, verdict.groups.tolist()))
            return grouped(fedavg(), atlas, level=level), {"ari": ari, "groups": verdict.count}
        case "all groups":
            atlas = make_atlas(federation, source="class-prototypes", progress=False)
            named = dict(zip(atlas.names, atlas.groups().tolist(), strict=True))
            return replace(fedavg(), sharing=ByGroup(groups=named, level=level)), {}
        case "fedbn":
            return fedbn(), {}
        case "fedpce":
            return fedpce(), {}
        case "ifca":
            return ifca(cell.groups, seed=int(job.options[0])), {}
    eps1, eps2, gamma = job.options
    return cfl(eps1=eps1, eps2=eps2, gamma_max=gamma, after=5), {}


def play(job: Job) -> Result:
    """Train, and return what came of it."""
    torch.set_num_threads(1)
    cell = CELLS[job.cell]
    federation = cell.federation(job.folder, job.seed)
    algorithm, known = build(job, federation)
    run = train(
        federation,
        algorithm.with_optimizer(SGD(lr=cell.lr, **cell.optimizer)),
        Settings(
            evaluate_every=job.rounds,
            workers=1,
            device=job.device,
            precision=cell.precision,
            augment=cell.augment,
        ),
        model=cell.model,
        model_options=cell.model_options(job.method),
        rounds=job.rounds,
        seed=job.seed,
        progress=False,
    )
    kinds = [str(client.kind) for client in federation]
    state = run.checkpoint().state
    served = None if state.group_of is None else state.group_of.tolist()
    if "ari" not in known:
        known["ari"] = float(adjusted_rand_score(kinds, served)) if served is not None and len(set(kinds)) > 1 else None
    said = [entry.get("groups", {}) for entry in run.rounds]
    return {
        **{name: value for name, value in asdict(job).items() if name not in ("folder", "device")},
        "options": list(job.options),
        "accuracy": run.last["client_mean"],
        "worst client": run.last["worst_client"],
        "kinds": dict(run.last.get("domains", {})) if cell.by_domain else {},
        "train loss": run.rounds[-1]["train_loss"],
        "models": len(state.groups),
        "megabytes": round(megabytes(run, algorithm, cell.groups) / 1e6, 1),
        "extra work": 0.0 if run.groups is None else round(run.groups.extra_work, 3),
        "trials": left(run, algorithm, federation),
        "lengths": [max(one[name][0] for one in said) for name in ("mean_change", "longest_change")]
        if job.method == "cfl"
        else [],
        **known,
    }


def left(run: Run, algorithm: Algorithm, federation: Federation) -> list[list[str]]:
    """Return the kinds of clients that left the common model after each trial."""
    if run.groups is None or not isinstance(algorithm.sharing, ByGroup):
        return []
    members: dict[int, dict[str, None]] = {}
    for client in federation:
        members.setdefault(algorithm.sharing.groups[client.name], {})[str(client.kind)] = None
    return [["+".join(members[group]) for group in trial.left] for trial in run.groups.trials]


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


def jobs(options: argparse.Namespace, chosen: dict[str, tuple[float, ...]]) -> Iterator[Job]:
    """Yield the runs that are reported."""
    for name in options.cells:
        for seed in options.seeds:
            for method in options.methods:
                if method == "ifca" and CELLS[name].groups > 1:
                    yield from (make_job(options, name, seed, method, (start,)) for start in range(options.starts))
                elif method == "cfl" and name in chosen:
                    yield make_job(options, name, seed, method, chosen[name])
                elif method not in ("ifca", "cfl") and (method != "true groups" or CELLS[name].groups > 1):
                    yield make_job(options, name, seed, method)


def make_job(options: argparse.Namespace, cell: str, seed: int, method: str, settings: tuple[float, ...] = ()) -> Job:
    """Return one run of a method."""
    rounds = options.rounds or CELLS[cell].rounds
    return Job(
        cell=cell,
        seed=seed,
        method=method,
        options=settings,
        rounds=rounds,
        folder=options.data,
        device=options.device,
    )


def tuned(
    options: argparse.Namespace, kept: Kept, run: Callable[[Sequence[Job]], Iterator[Result]]
) -> dict[str, tuple[float, ...]]:
    """Return CFL's settings for each cell: those with the best mean accuracy on seeds that are not reported."""
    chosen: dict[str, tuple[float, ...]] = {}
    for name in options.cells if "cfl" in options.methods else ():
        if CELLS[name].groups < 2:
            continue
        seeds = options.tuning_seeds
        before = kept.measured((make_job(options, name, seed, "cfl", WITHOUT_SPLIT) for seed in seeds), run)
        mean_change, longest = (mean(result["lengths"][i] for result in before) for i in (0, 1))
        tries = [(round(a * mean_change, 3), round(b * longest, 3), gamma) for a, b, gamma in options.grid]
        found: dict[tuple[float, ...], float] = {
            pair: mean(
                result["accuracy"]
                for result in kept.measured((make_job(options, name, seed, "cfl", pair) for seed in seeds), run)
            )
            for pair in tries
        }
        chosen[name] = max(found, key=lambda pair: found[pair])
        print(f"CFL on {name}: eps1, eps2, gamma_max {chosen[name]}, {100 * found[chosen[name]]:.1f}", flush=True)
    return chosen


def triples(text: str) -> list[tuple[float, ...]]:
    """Return a grid."""
    return [tuple(float(part) for part in one.split(":")) for one in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words: Callable[[str], list[str]] = lambda text: text.split(",")  # noqa: E731
    numbers: Callable[[str], list[int]] = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--cells", type=words, default=["rotated-150", "permuted-150"])
    parser.add_argument("--seeds", type=numbers, default=[200, 201, 202])
    parser.add_argument("--methods", type=words, default=["fedavg", "auto", "true groups", "ifca", "cfl"])
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--starts", type=int, default=3, help="of IFCA")
    parser.add_argument("--grid", type=triples, default=GRID, help="of CFL: SHARE:SHARE:GAMMA,...")
    parser.add_argument("--tuning-seeds", type=numbers, default=[100, 101], help="for CFL")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=None, help="where results are kept")
    parser.add_argument("--tables", action="store_true", help="only print what is kept")
    parser.add_argument("--paired", action="store_true", help="with --tables: auto less each other method, by seed")
    options = parser.parse_args()
    kept = Kept.read(options.out)
    if options.tables:
        shown = [r for r in kept.runs if r["cell"] in options.cells and r["seed"] in options.seeds]
        shown = [result for result in shown if result["method"] in options.methods or options.methods == ["all"]]
        print((paired if options.paired else tables)(shown))
        return
    if unknown := [method for method in options.methods if method not in NAMES]:
        parser.error(f"unknown methods: {', '.join(unknown)}; known are {', '.join(NAMES)}")
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:

        def run(asked: Sequence[Job]) -> Iterator[Result]:
            return (future.result() for future in as_completed([pool.submit(play, job) for job in asked]))

        print(tables(kept.measured(jobs(options, tuned(options, kept, run)), run)))


if __name__ == "__main__":
    main()
