"""``fedatlas compare``: several algorithms on the same clients, one table, one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
from fedatlas.config.schema import SETTINGS
from fedatlas.errors import TrainingError, UsageError
from fedatlas.training.settings import Machine

if TYPE_CHECKING:
    from fedatlas.runs.run import Run

ALL = "all"


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
) -> None:
    """Train several algorithms on the same clients, print one table and write a report."""
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
        # Several runs share the cores, each with one worker; their number does not change a bit.
        machine = Machine(device=device, workers=workers if jobs == 1 else workers or 1, engine=engine)
        settings = _fitting(settings, machine, resume=resume, all_=algorithms == [ALL])

        from fedatlas.cli.train_config import train_config

        show = None if jobs == 1 else False
        play = partial(train_config, machine=machine, resume=resume, overwrite=overwrite, show=show)
        _train(settings, play, jobs, top / "report.html", open_=open_)


def _fitting(settings: dict[Path, Config], machine: Machine, *, resume: bool, all_: bool) -> dict[Path, Config]:
    """Return the configs by folder whose algorithm fits the data and the model; of ``all`` others are left out."""
    for one in settings.values():
        one.check_code()
        one.check()

    from fedatlas.cli.train_config import unfit_algorithms

    unfit = unfit_algorithms(settings, machine, resume=resume)
    for name, why in unfit.items():
        if not all_:
            raise why
        remark(f"{name} is left out: {why}")
    fit = {where: one for where, one in settings.items() if one.values["algorithm"]["name"] not in unfit}
    if not fit:
        raise UsageError("no algorithm fits these data and this model; the reasons are above.", code="task-unfit")
    return fit


def _train(settings: dict[Path, Config], play: Callable[..., Run], jobs: int, page: Path, *, open_: bool) -> None:
    """Train each config in its folder, print one table, write the page and name what broke."""
    from fedatlas.cli.train_config import check_clients
    from fedatlas.report.findings import keep_findings
    from fedatlas.training.compare import train_each

    first = next(iter(settings))
    found = check_clients(settings[first], first)
    outcomes = train_each({where: partial(play, one, where) for where, one in settings.items()}, jobs)
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
