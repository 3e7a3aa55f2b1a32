"""What a config says, trained and kept in a folder: one alone, or several at a time."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import typer

from fedatlas.atlas.sources import kept_atlas, make_atlas
from fedatlas.cli.terminal import errors
from fedatlas.client.model import Workbench
from fedatlas.config.config import Config
from fedatlas.data.federation import Federation
from fedatlas.errors import TrainingError, UsageError
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.runs.run import ATLAS, NEW_ATLAS, Run
from fedatlas.runs.writer import check_folder, check_rounds
from fedatlas.training.model import make_model
from fedatlas.training.progress import Bar, make_progress
from fedatlas.training.train import train_run

_last: list[tuple[Any, Federation]] = []
"""What made the federation of this process's last run, and the federation."""


def run_config(
    config: Config,
    folder: Path,
    *,
    device: str,
    workers: int | None,
    engine: Any,
    resume: bool,
    overwrite: bool,
    show: bool | None = None,
    profile: bool = False,
) -> Run:
    """Train what a config says, and say how to resume when it is interrupted."""
    check_device(device)
    taken = check_folder(folder, resume=resume, overwrite=overwrite)
    played, rounds = CheckpointStore(folder / "checkpoints").round() if taken and resume else 0, config.plan().rounds
    check_rounds(played, rounds, folder)
    federation = _federation(config)
    atlas = None
    if (make := config.atlas_settings()) is not None:
        here: dict[str, Any] = {"device": device, "workers": workers, "progress": show}
        file = folder / (NEW_ATLAS if taken and overwrite else ATLAS)
        atlas = kept_atlas(file, lambda: make_atlas(federation, **make, **here), resume=resume)
    try:
        algorithm = config.algorithm(atlas)
        run = train_run(
            federation,
            algorithm,
            config.run_settings(federation.data),
            device=device,
            workers=workers,
            engine=engine,
            profile=profile,
            folder=folder,
            resume=resume,
            overwrite=overwrite,
            progress=make_progress(show, algorithm.name, rounds),
            config=config.to_toml(),
        )
    except KeyboardInterrupt:
        errors.print(
            f"\nStopped; finished rounds are kept. Go on with: fedatlas train --folder {folder} --resume",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    finally:
        if taken:
            (folder / NEW_ATLAS).unlink(missing_ok=True)
    if played == rounds and show is not False:
        errors.print(
            f"{folder} already had all {rounds} rounds: nothing was left to do.", highlight=False, soft_wrap=True
        )
    return run


def _federation(config: Config) -> Federation:
    """Return a config's federation: the last run's if this one's is made alike, so that `compare` reads data once."""
    recipe = (config.values["data"], config.seeds().partition)
    if not _last or _last[0][0] != recipe:
        _last.clear()  # before the next is made: two may not fit
        _last.append((recipe, config.federation()))
    return _last[0][1]


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or see here."""
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UsageError(f"torch knows no device {device!r}; use --device cpu, cuda or cuda:N.") from None
    if place.type == "cuda" and (place.index or 0) >= (count := torch.cuda.device_count()):
        seen = f"{count} GPUs" if count else "no GPU"
        raise UsageError(f"device {device!r} was asked for, but torch sees {seen} here; use --device cpu or another.")


def unfit_algorithms(settings: Iterable[Config]) -> dict[str, UsageError]:
    """Return which algorithms cannot train the model that they are given, and why, without training any.

    The first config of each is looked at; one that makes an atlas of its own is not.
    """
    found: dict[str, UsageError] = {}
    seen: set[str] = set()
    for config in settings:
        name = config.values["algorithm"]["name"]
        if name in seen or config.atlas_settings() is not None:
            continue
        seen.add(name)
        federation = _federation(config)
        algorithm, run = config.algorithm(), config.run_settings(federation.data)
        try:
            network = make_model(run.model, run.model_options, federation, algorithm, run.seeds.model)
            Workbench(network, algorithm)
        except UsageError as error:
            found[name] = error
    return found


def try_config(config: Config, folder: Path, **machine: Any) -> Run | TrainingError:
    """Return the run, or the error with which its training broke, so that the others still run."""
    try:
        return run_config(config, folder, **machine)
    except TrainingError as error:
        return error


def run_side_by_side(settings: dict[Path, Config], jobs: int, machine: dict[str, Any]) -> list[Run | TrainingError]:
    """Train several configs at a time, each in a process of its own, and return the runs in the given order."""
    # One thread of work a run: the runs share the cores, and their number does not change a bit.
    machine = {**machine, "workers": machine["workers"] or 1}
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, Bar("compare", len(settings)) as bar:
        futures = [pool.submit(try_config, one, where, **machine, show=False) for where, one in settings.items()]
        try:
            for done, future in enumerate(futures, 1):
                future.result()
                bar.advance(done, {})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def default_folder(config: Config) -> Path:
    """Return where a run goes when nobody said."""
    values = config.values
    source = Path(str(values["data"]["source"])).stem
    atlas = "-atlas" if values["atlas"]["file"] is not None or values["atlas"]["make"] is not None else ""
    return Path("runs") / f"{source}-{short_name(values['algorithm']['name'])}{atlas}-{values['seed']}"


def short_name(algorithm: str) -> str:
    """Return a name for folders: of a recipe of one's own the function's."""
    return algorithm.rpartition(":")[2]
