"""``fedatlas train``: one algorithm, one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedatlas.cli.checks import default_folder, read_config
from fedatlas.cli.options import (
    MACHINE,
    AlgorithmOption,
    AllowCodeOption,
    AtlasOption,
    ConfigOption,
    DataFolderOption,
    DataOption,
    DeviceOption,
    EngineOption,
    GroupsOption,
    LevelOption,
    LogOption,
    ModelOption,
    OverwriteOption,
    ProfileOption,
    ResumeOption,
    RoundsOption,
    SeedOption,
    SetOption,
    UseOption,
    WorkersOption,
    atlas_sections,
    sections,
)
from fedatlas.cli.pages import OpenOption, publish
from fedatlas.cli.report import print_results
from fedatlas.cli.terminal import friendly, print_rows, remark, say
from fedatlas.training.settings import Machine

if TYPE_CHECKING:
    from fedatlas.runs.run import Run


def train(
    config: ConfigOption = None,
    set_: SetOption = None,
    algorithm: AlgorithmOption = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    model: ModelOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    atlas: AtlasOption = None,
    use: UseOption = None,
    groups: GroupsOption = None,
    level: LevelOption = None,
    device: DeviceOption = MACHINE.device,
    workers: WorkersOption = MACHINE.workers,
    engine: EngineOption = MACHINE.engine,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            "-f",
            help="Where the run is kept; default runs/DATA-ALGORITHM-SEED, or with an atlas ...-atlas-SEED.",
        ),
    ] = None,
    resume: ResumeOption = False,
    overwrite: OverwriteOption = False,
    profile: ProfileOption = MACHINE.profile,
    log: LogOption = None,
    allow_code: AllowCodeOption = None,
    open_: OpenOption = False,
) -> None:
    """Train one algorithm and keep the run in a folder."""
    with friendly():
        machine = Machine(device=device, workers=workers, engine=engine, profile=profile)
        given = sections(algorithm=algorithm, data=data, data_folder=data_folder, model=model, rounds=rounds, seed=seed)
        if resume and folder is not None and config is None and (folder / "config.toml").exists():
            config = folder / "config.toml"
        settings = read_config(config, set_, **given, **atlas_sections(atlas, use, groups, level))
        where = folder or default_folder(settings)
        settings.check_code()
        settings.check()

        from fedatlas.cli.train_config import check_clients, make_loggers, train_config
        from fedatlas.report.findings import keep_findings
        from fedatlas.runs.writer import check_folder

        if resume and not check_folder(where, resume=resume, overwrite=overwrite):
            remark(f"{where} holds no run yet: a new one begins.")
        run = train_config(
            settings, where, machine=machine, resume=resume, overwrite=overwrite, callbacks=make_loggers(log or [])
        )
        print_results([run])
        if run.groups is not None:
            say(f"groups: {run.groups.describe()}")
        if profile:
            _print_profile(run)
        say(f"run: {run.folder}")
        if (found := check_clients(settings, run.folder)) is not None:
            keep_findings(found, run.folder)
        publish(run.folder / "report.html", open_=open_, title="report", runs=[run], diagnosis=found)


def _print_profile(run: Run) -> None:
    """Print where the time of a round went, stage by stage."""
    rows = [
        {"stage": row.stage, "ms a round": f"{1e3 * row.seconds:.1f}", "share": f"{row.share:.1%}", "what": row.what}
        for row in run.profile()
    ]
    print_rows(rows, "mean over rounds, without the first")
