"""Train several algorithms on the same clients, one run each."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from fedatlas.data.federation import Federation
from fedatlas.errors import TrainingError, UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.runs.run import Run
from fedatlas.training.progress import Bar, Progress
from fedatlas.training.settings import Settings
from fedatlas.training.train import named_algorithm, train


def compare(
    federation: Federation,
    algorithms: Mapping[str, Algorithm] | Sequence[Algorithm | str],
    settings: Settings | None = None,
    *,
    seeds: Sequence[int] = (0,),
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | bool | None = None,
) -> list[Run]:
    """Train each algorithm with each seed on a federation, and return the runs, those of the first seed first.

    ``algorithms`` or names of recipes go by their names, or by the keys of a mapping. Each run is kept in
    ``folder``/NAME-SEED. One whose training breaks does not stop the others; when all have ended, its error is raised.
    Name ``"local"`` too for what sharing has to beat: every client alone.

        runs = compare(federation, [fedavg(), fedprox(mu=0.1)], Settings(rounds=10), seeds=(0, 1, 2))
        fedatlas.report.write_report(runs, "report.html")
    """
    named = list(algorithms.items() if isinstance(algorithms, Mapping) else _by_name(algorithms))
    if twice := sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1):
        raise UsageError(
            f"compare: two algorithms are named {twice[0]!r}, and both would go to one folder. Give a mapping with a "
            "name for each.",
            code="name-twice",
            got=twice[0],
        )
    top = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="fedatlas-"))
    base = settings or Settings()
    tasks = {
        top / f"{name}-{seed}": partial(
            train,
            federation,
            algorithm,
            replace(base, seed=seed),
            folder=top / f"{name}-{seed}",
            resume=resume,
            overwrite=overwrite,
            progress=progress,
        )
        for seed in seeds
        for name, algorithm in named
    }
    outcomes = train_each(tasks)
    for outcome in outcomes:
        if isinstance(outcome, TrainingError):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, TrainingError)]


def _by_name(algorithms: Sequence[Algorithm | str]) -> list[tuple[str, Algorithm]]:
    built = [named_algorithm(one) for one in algorithms]
    return [(one.name, one) for one in built]


def train_each(tasks: Mapping[Path, Callable[[], Run]], jobs: int = 1) -> list[Run | TrainingError]:
    """Return the run of each task, or the error with which its training broke, so that the others still run.

    With several ``jobs`` as many tasks run at a time, each in a process, and tasks must be such that can be pickled.
    """
    if jobs == 1:
        return [_try(task) for task in tasks.values()]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, Bar("compare", len(tasks)) as bar:
        futures = [pool.submit(_try, task) for task in tasks.values()]
        try:
            for done, future in enumerate(futures, 1):
                future.result()
                bar.advance(done, {})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _try(task: Callable[[], Run]) -> Run | TrainingError:
    try:
        return task()
    except TrainingError as error:
        return error
