"""``fedatlas compare``: several algorithms on the same clients, one table, one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedatlas.algorithms.registry import standalone
from fedatlas.cli.checks import read_config, run_name, short_name
from fedatlas.cli.options import (
    MACHINE,
    AlgorithmsArgument,
    AllowCodeOption,
    AtlasOption,
    ConfigOption,
    DataFolderOption,
    DataOption,
    DeviceOption,
    EngineOption,
    GroupsOption,
    LevelOption,
    ModelOption,
    OverwriteOption,
    ResumeOption,
    RoundsOption,
    SetOption,
    UseOption,
    WorkersOption,
    atlas_sections,
    sections,
)
from fedatlas.cli.pages import OpenOption, publish
from fedatlas.cli.report import print_results
from fedatlas.cli.terminal import friendly, print_error, remark
from fedatlas.config.config import Config
from fedatlas.config.schema import SETTINGS, defaults
from fedatlas.errors import TrainingError, UsageError
from fedatlas.runs.schema import RESOLVED
from fedatlas.training.settings import Machine

if TYPE_CHECKING:
    from fedatlas.runs.run import Run

ALL = "all"
YARDSTICK = "local"
"""The algorithm that is trained beside those that are named: every client alone."""


def compare(
    algorithms: AlgorithmsArgument,
    config: ConfigOption = None,
    set_: SetOption = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    model: ModelOption = None,
    rounds: RoundsOption = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="Seeds, comma separated; of several, figures are mean ± standard deviation.")
    ] = str(SETTINGS["seed"].default),
    atlas: AtlasOption = None,
    use: UseOption = None,
    groups: GroupsOption = None,
    level: LevelOption = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="Runs at a time, each a process: several small ones share a GPU well.")
    ] = 1,
    device: DeviceOption = MACHINE.device,
    workers: WorkersOption = MACHINE.workers,
    engine: EngineOption = MACHINE.engine,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", "-f", help="Where the runs are kept, a folder for each; default runs/compare."),
    ] = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    allow_code: AllowCodeOption = None,
    open_: OpenOption = False,
    local: Annotated[
        bool,
        typer.Option(
            "--local/--no-local",
            help="Also train `local`, every client alone, as the yardstick: one more training for each seed; default "
            "--local.",
            show_default=False,
        ),
    ] = True,
) -> None:
    """Train several algorithms on the same clients, print one table and write a report.

    Beside them every client is trained alone (`local`), which is what sharing has to beat.
    """
    with friendly():
        _check_names(algorithms, jobs)
        own = {"data": data, "data_folder": data_folder, "model": model, "rounds": rounds}
        uses = atlas_sections(atlas, use, groups, level)
        configs = [
            read_config(config, set_, **sections(algorithm=name, seed=seed, **own), **uses)  # type: ignore[arg-type]
            for seed in _seed_list(seeds)
            for name in (standalone() if algorithms == [ALL] else algorithms)
        ]
        top = folder or Path("runs") / "compare"
        settings = {top / run_name(one): one for one in configs}
        is_named = algorithms == [ALL] or YARDSTICK in map(short_name, algorithms)
        beside = _yardsticks(configs, top) if local and not is_named else {}
        taken = set() if resume or overwrite else {where for where in beside if (where / RESOLVED).exists()}
        for where in sorted(where for where in taken if not _is_kept(where, beside[where])):
            remark(f"{YARDSTICK} is left out: {where} holds a run of other settings. Choose another --folder.")
            del beside[where]
        order = _seed_list(seeds)  # the data of a seed are read once, for all its runs
        settings = dict(sorted((settings | beside).items(), key=lambda own: order.index(own[1].values["seed"])))
        # Several runs share the cores, each with one worker; their number does not change a bit.
        machine = Machine(device=device, workers=workers if jobs == 1 else workers or 1, engine=engine)
        settings = _fitting(settings, machine, resume=resume, spare=settings if algorithms == [ALL] else beside)

        from fedatlas.cli.train_config import train_config

        if more := len(beside.keys() & settings.keys() - taken):
            remark(
                f"{YARDSTICK}, every client alone, is trained too: {more} of {len(settings)} trainings. --no-local "
                "leaves it out."
            )
        show = None if jobs == 1 else False
        play = partial(train_config, machine=machine, overwrite=overwrite, show=show)
        tasks = {where: partial(play, one, where, resume=resume or where in taken) for where, one in settings.items()}
        _train(settings, tasks, jobs, top / "report.html", open_=open_)


def _yardsticks(configs: list[Config], top: Path) -> dict[Path, Config]:
    """Return the configs by folder that train every client alone, one for each seed: no atlas, no groups."""
    plain = {section: defaults()[section] for section in ("atlas", "sharing")}
    alone = {"algorithm": {"name": YARDSTICK}, "algorithms": {}, **plain}
    made = (Config({**one.values, **alone}) for one in configs)
    return {top / run_name(one): one for one in made}


def _is_kept(where: Path, config: Config) -> bool:
    """Return whether a folder holds the run of a config."""
    from fedatlas.runs.run import CONFIG

    kept = where / CONFIG
    return kept.exists() and kept.read_text(encoding="utf-8") == config.to_toml()


def _fitting(
    settings: dict[Path, Config], machine: Machine, *, resume: bool, spare: dict[Path, Config]
) -> dict[Path, Config]:
    """Return the configs by folder whose algorithm fits the data and the model; those in ``spare`` are left out."""
    for one in settings.values():
        one.check_code()
        one.check()

    from fedatlas.cli.train_config import unfit_algorithms

    unfit = unfit_algorithms(settings, machine, resume=resume)
    unasked = {one.values["algorithm"]["name"] for one in spare.values()}
    for name, why in unfit.items():
        if name not in unasked:
            raise why
        remark(f"{name} is left out: {why}")
    fit = {where: one for where, one in settings.items() if one.values["algorithm"]["name"] not in unfit}
    if not fit:
        raise UsageError("no algorithm fits these data and this model; the reasons are above.", code="task-unfit")
    return fit


def _train(
    settings: dict[Path, Config], tasks: Mapping[Path, Callable[[], Run]], jobs: int, page: Path, *, open_: bool
) -> None:
    """Train each config in its folder, print one table, write the page and name what broke."""
    from fedatlas.cli.train_config import check_clients
    from fedatlas.report.findings import keep_findings
    from fedatlas.training.compare import train_each

    first = next(iter(settings))
    found = check_clients(settings[first], first)
    outcomes = train_each(tasks, jobs)
    runs = [outcome for outcome in outcomes if not isinstance(outcome, TrainingError)]
    if runs:
        print_results(runs)
        checked = found if runs[0].folder == first else None
        if checked is not None:
            keep_findings(checked, first)
        publish(page, open_=open_, title="report", runs=runs, diagnosis=checked)
    failures = {where: o for where, o in zip(settings, outcomes, strict=True) if isinstance(o, TrainingError)}
    for where, failure in failures.items():
        print_error(f"{where.name} broke:", failure)
    if failures:
        raise typer.Exit(1)


def _check_names(algorithms: list[str], jobs: int) -> None:
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, got {jobs}.", code="out-of-range", setting="--jobs", got=jobs)
    if joined := [name for name in algorithms if "," in name and ":" not in name]:
        words = " ".join(part.strip() for part in joined[0].split(","))
        raise UsageError(
            f"compare: {joined[0]!r} is not an algorithm. Separate names by spaces: {words}.",
            code="unknown-name",
            got=joined[0],
        )
    if ALL in algorithms and len(algorithms) > 1:
        raise UsageError(
            "compare: `all` is every algorithm; give it alone, or only names.", code="settings-conflict", got=algorithms
        )
    if twice := sorted(name for name, count in Counter(map(short_name, algorithms)).items() if count > 1):
        raise UsageError(
            f"compare: {', '.join(twice)} comes twice, and both would go to one folder. Give functions different "
            "names, or name options under [algorithms].",
            code="name-twice",
            got=twice[0],
        )


def _seed_list(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--seeds takes whole numbers separated by commas, got {text!r}.", code="wrong-type", got=text
        ) from None
