"""What every paper's scripts share: variants that run once and are kept, our number beside the paper's.

A script names its variants, measures them and prints a table:

    options = read_options("Table 5: the temperature of the sampling", rounds=100)
    variants = [Variant(name=f"tau {tau}", measure=trained, settings={...}) for tau in (0.1, 0.5)]
    results = measure(variants, options)
    write_table(Table(title=..., setting=..., columns=("tau 0.1",), rows={"FedAvg": (Cell("tau 0.1", paper=44.60),)}),
                results, options)

Scripts are modules: ``PYTHONPATH=src python -m papers.client2vec.table_5 --quick``.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from threading import current_thread, main_thread
from typing import Any, Self

import torch

from fedatlas.config import Config
from fedatlas.data import Federation
from fedatlas.errors import FedatlasError, TrainingError, UsageError
from fedatlas.parts import Algorithm
from fedatlas.runs import Run, RunFolder
from fedatlas.training import Machine, Progress, make_progress, train_run
from papers.kept_results import read_numbers, result_file, write_result
from papers.options import Options
from papers.quick_names import named_as_run

Numbers = dict[str, Any]
"""What a variant measured: plain values that JSON knows."""
BROKEN = "broken"
"""The key under which the numbers of a training that broke say how."""
UNFINISHED = "unfinished"
"""The key under which numbers say that the time was up before they were whole: shown, and measured on next time."""
REFUSED = "failed, and will be tried again next time: "
"""What is said of a training that could not begin, and why."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One thing to measure. Variants with the same function and settings are measured once, whatever their names."""

    name: str
    measure: Callable[[Task], Numbers]
    """A function of a module, so that another process finds it."""
    settings: Mapping[str, Any]
    """Plain values: all that the numbers depend on, besides the seed."""
    seeds: tuple[int, ...] = ()
    """Seeds of this variant alone, in place of the options'."""

    @property
    def key(self) -> str:
        """A hash of the function and the settings."""
        words = [f"{self.measure.__module__}.{self.measure.__qualname__}", self.settings]
        return hashlib.blake2b(json.dumps(words, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Task:
    """A variant at one seed, as its function gets it."""

    name: str
    settings: Mapping[str, Any]
    seed: int
    options: Options
    folder: Path
    """For what it keeps; it may hold what an earlier, interrupted attempt left."""


@dataclass(frozen=True)
class Cell:
    """One number of a table: of which variant, under which key, and what the paper has there."""

    variant: str | None
    """None where there is nothing to measure."""
    paper: float | None = None
    key: str = "best"
    scale: float | None = None
    """In place of the table's."""
    digits: int | None = None
    """In place of the table's."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper, to be filled with our numbers."""

    title: str
    setting: str
    """How our numbers came about, and where that differs from the paper."""
    columns: tuple[str, ...]
    rows: Mapping[str, Sequence[Cell]]
    scale: float = 100.0
    """What our numbers are multiplied with, to be in the paper's unit."""
    digits: int = 1


def measure(variants: Sequence[Variant], options: Options) -> dict[str, list[Numbers]]:
    """Return each variant's numbers, one for every seed that was measured; what was measured before is read."""
    unique = {(variant.key, seed): variant for variant in variants for seed in variant.seeds or options.seeds}
    wanted = [variant for variant in variants if options.only is None or re.search(options.only, variant.name)]
    keys = {variant.key for variant in wanted}
    missing = [
        _task(variant, seed, options)
        for (key, seed), variant in unique.items()
        if key in keys and UNFINISHED in (read_numbers(options.out, key, seed) or {UNFINISHED: "not begun"})
    ]
    begun, refused = time.perf_counter(), set()
    for done, (name, seed, outcome) in enumerate(_outcomes(missing, unique, options), 1):
        took = f"{done}/{len(missing)} after {time.perf_counter() - begun:.0f} s"
        print(f"{took}: {name}, seed {seed}: {outcome}", file=sys.stderr, flush=True)
        if outcome.startswith(REFUSED) and outcome in refused:
            # Such as data that are not there: the others would take as long to say the same.
            raise UsageError(outcome.removeprefix(REFUSED), code="trainings-refused")
        refused.add(outcome)
    found: dict[str, list[Numbers]] = {}
    for variant in variants:
        kept = [read_numbers(options.out, variant.key, seed) for seed in variant.seeds or options.seeds]
        found[variant.name] = [numbers for numbers in kept if numbers is not None]
    return found


def trained(task: Task) -> Numbers:
    """Train what ``settings`` says, as sections of a config, and return the figures of the run."""
    return run_figures(train_sections(task, task.settings))


def train_sections(
    task: Task,
    sections: Mapping[str, Any],
    change: Callable[[Federation], Federation] | None = None,
    adjust: Callable[[Algorithm], Algorithm] | None = None,
) -> Run:
    """Train what sections of a config say, in the task's folder and with its seed; resume if it was interrupted.

    ``change`` turns the federation of the config into another one, ``adjust`` its algorithm. When the deadline passes,
    the run ends early.
    """
    config = task_config(task, sections)
    algorithm = config.algorithm() if adjust is None else adjust(config.algorithm())
    federation = task_federation(config) if change is None else change(task_federation(config))
    bar = make_progress(None if task.options.jobs == 1 else False, algorithm.name, config.plan().rounds)
    return train_in_time(config, federation, algorithm, task.options, folder=task.folder, progress=bar)


def task_config(task: Task, sections: Mapping[str, Any]) -> Config:
    """Return the config of a task: its sections, its seed and the folder of the data."""
    place = {} if task.options.data_folder is None else {"folder": task.options.data_folder}
    return Config.load(None, (), **{**sections, "data": {**sections.get("data", {}), **place}, "seed": task.seed})


def task_federation(config: Config) -> Federation:
    """Return the federation of a config, kept for the next task of this process."""
    return _federation(json.dumps({key: config.values[key] for key in ("data", "seed", "seeds")}))


def train_in_time(
    config: Config, federation: Federation, algorithm: Algorithm, options: Options, *, folder: Path, progress: Progress
) -> Run:
    """Train what a config says, or go on with what is in the folder; when the deadline passes, the run ends early."""
    settings = config.run_settings(machine=Machine(device=options.device, workers=options.workers))
    with _Patience(options) as patience:
        run = train_run(
            federation,
            algorithm,
            settings,
            RunFolder(folder=folder, resume=(folder / "resolved.json").exists(), config=config.to_toml()),
            progress=progress,
            stop=lambda round: patience.ended,
        )
    if patience.interrupted:
        raise KeyboardInterrupt
    return run


def late(options: Options) -> bool:
    """Return whether the deadline has passed."""
    deadline = options.extra.get("deadline")
    return deadline is not None and time.time() > deadline


@dataclass(eq=False)
class _Patience:
    """Lets a training end between two rounds, when the deadline has passed or at the first Ctrl-C.

    In the middle of a round the clients' memory is of two rounds, and all since the last checkpoint would be lost.
    """

    options: Options
    interrupted: bool = False
    before: Any = None
    """The handler of Ctrl-C before."""

    def __enter__(self) -> Self:
        if current_thread() is main_thread():
            self.before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)

    @property
    def ended(self) -> bool:
        """Whether the training must stop."""
        return self.interrupted or late(self.options)

    def _interrupt(self, *_: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"\nStopping at the end of this round; Ctrl-C once more stops at once.\n")


def run_figures(run: Run) -> Numbers:
    """Return the figures of a run, which say so if it ended early."""
    wanted = run.resolved["training"]["rounds"]
    early = {UNFINISHED: f"round {len(run.rounds)} of {wanted}"} if len(run.rounds) < wanted else {}
    return {**figures(run), **early}


@lru_cache(maxsize=2)
def _federation(words: str) -> Federation:
    """Return a federation, kept for the next variant of this process: reading the images may take longer than a run."""
    return Config.load(None, (), **json.loads(words)).federation()


def figures(run: Run) -> Numbers:
    """Return what tables show of a run: accuracies as shares, and what it cost."""
    tested = [entry["evaluation"] for entry in run.evaluations]
    last = tested[-5:]
    spent = accumulate(entry["train"] for entry in run.timings)
    clock = dict(zip((entry["round"] for entry in run.timings), spent, strict=True))
    sizes = {client["name"]: client["num_train"] for client in run.resolved["federation"]["clients"]}
    names = list(sizes)
    epochs = run.resolved["training"]["epochs"]
    own = [entry["own"]["accuracy"] for entry in run.rounds if entry.get("own")][-10:]
    keys = ("sigma_client", "worst_client", "domain_mean", "worst_domain", "sigma_type")
    return {
        "best": run.best["accuracy"],
        "best_round": run.best["round"],
        "last": run.last["accuracy"],
        "last_five": mean(entry["accuracy"] for entry in last),
        "last_ten": mean(entry["accuracy"] for entry in tested[-10:]),
        **{key: mean(entry[key] for entry in last) for key in keys if last[0].get(key) is not None},
        **({"own": mean(own)} if own else {}),
        "rounds": len(run.rounds),
        "seconds": run.seconds,
        "images": epochs * sum(sizes[names[client]] for entry in run.rounds for client in entry["cohort"]),
        "curve": [[entry["round"], entry["evaluation"]["accuracy"]] for entry in run.evaluations],
        "clock": [clock[entry["round"]] for entry in run.evaluations],
    }


def write_table(table: Table, results: Mapping[str, list[Numbers]], options: Options) -> str:
    """Print a table, keep it as JSON and Markdown in ``options.out``, and return the Markdown."""
    file_name = table.title.split(":")[0].lower()
    table = named_as_run(table) if options.quick else table
    text = render(table, results)
    name = re.sub(r"[^a-z0-9]+", "-", file_name).strip("-")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.md").write_text(text)
    shown = {cell.variant for cells in table.rows.values() for cell in cells if cell.variant is not None}
    words = {"title": table.title, "setting": table.setting, "seeds": options.seeds, "quick": options.quick}
    numbers = {name: results.get(name, []) for name in sorted(shown)}
    (options.out / f"{name}.json").write_text(json.dumps({**words, "results": numbers}, indent=1))
    print(text)
    return text


def render(table: Table, results: Mapping[str, list[Numbers]]) -> str:
    """Return a table as Markdown: ours, mean ± standard deviation over seeds, and the paper's in brackets."""
    lines = [f"### {table.title}", "", table.setting, ""]
    if any(cell.paper is not None for cells in table.rows.values() for cell in cells):
        lines += ["Ours, and in brackets the paper's, of its own data.", ""]
    stopped = {row: numbers[UNFINISHED] for row in results for numbers in results[row] if UNFINISHED in numbers}
    shown = {cell.variant for cells in table.rows.values() for cell in cells}
    if early := "; ".join(f"{row}: {where}" for row, where in stopped.items() if row in shown):
        lines[-1:] = [f"\\* The time was up ({early}).", ""]
    lines += [f"| | {' | '.join(table.columns)} |", "|---" * (len(table.columns) + 1) + "|"]
    for title, cells in table.rows.items():
        if len(cells) != len(table.columns):
            raise UsageError(
                f"{table.title}: row {title!r} has {len(cells)} cells for {len(table.columns)} columns.",
                code="wrong-count",
                got=len(cells),
                wanted=len(table.columns),
            )
        lines.append(f"| {title} | {' | '.join(_shown(cell, results, table) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _shown(cell: Cell, results: Mapping[str, list[Numbers]], table: Table) -> str:
    theirs = "" if cell.paper is None else f" ({cell.paper:g})"
    if cell.variant is None:
        return f"–{theirs}"
    measured = results.get(cell.variant, [])
    if any(BROKEN in numbers for numbers in measured):
        return f"broke{theirs}"
    scale = table.scale if cell.scale is None else cell.scale
    ours = [scale * numbers[cell.key] for numbers in measured if numbers.get(cell.key) is not None]
    if not ours:
        return f"–{theirs}"
    digits = table.digits if cell.digits is None else cell.digits
    mark = "\\*" if any(UNFINISHED in numbers for numbers in measured) else ""
    return f"{over_seeds(ours, digits, mark)}{theirs}"


def over_seeds(values: Sequence[float], digits: int, mark: str = "") -> str:
    """Return a mean and, of several values, their sample standard deviation."""
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{mark}{spread}"


def _task(variant: Variant, seed: int, options: Options) -> Task:
    folder = options.out / "runs" / f"{variant.key}-{seed}"
    return Task(name=variant.name, settings=variant.settings, seed=seed, options=options, folder=folder)


def _outcomes(
    tasks: Sequence[Task], variants: Mapping[tuple[str, int], Variant], options: Options
) -> Iterator[tuple[str, int, str]]:
    """Yield each finished task's name, seed and how it went, and keep its numbers."""
    functions = {(variant.name, seed): variant for (_, seed), variant in variants.items()}
    if options.jobs == 1:
        for task in tasks:
            yield task.name, task.seed, _measured(task, functions[task.name, task.seed])
        return
    left = iter(tasks)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        # No more than run at once are handed over: the others are not begun when the script is interrupted.
        running: dict[Future[str], Task] = {}
        while True:
            for task in islice(left, options.jobs - len(running)):
                running[pool.submit(_measured, task, functions[task.name, task.seed])] = task
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                yield task.name, task.seed, future.result()


def _measured(task: Task, variant: Variant) -> str:
    """Measure a task and keep its numbers; say how it went. An error of ours does not stop the others."""
    begun = time.perf_counter()
    if late(task.options):
        return "not begun: the time was up"
    try:
        numbers = variant.measure(task)
    except TrainingError as error:
        # The same seed breaks in the same way: trying again would not help.
        numbers = {BROKEN: str(error)}
    except FedatlasError as error:
        return f"{REFUSED}{error}"
    except (ArithmeticError, LookupError, OSError, RuntimeError, ValueError):
        return "failed, and will be tried again next time:\n" + traceback.format_exc()
    finally:
        # A process that has nothing more to do would hold what it once needed, and those beside it starve.
        if torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()
    content = {"name": task.name, "seed": task.seed, "settings": task.settings, "quick": task.options.quick}
    write_result(result_file(task.options.out, variant.key, task.seed), {**content, "numbers": numbers})
    if BROKEN in numbers or UNFINISHED in numbers:
        return str(numbers.get(BROKEN, f"not finished: {numbers.get(UNFINISHED)}"))
    best = f", best {numbers['best']:.1%}" if "best" in numbers else ""
    return f"{time.perf_counter() - begun:.0f} s{best}"
