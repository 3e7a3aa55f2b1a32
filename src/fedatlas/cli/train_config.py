"""The training of a config: the run is kept in a folder, and an interrupt says how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import typer

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.doctor.check import check
from fedatlas.atlas.doctor.diagnosis import Diagnosis
from fedatlas.atlas.sources import kept_atlas, make_atlas
from fedatlas.cli.terminal import remark
from fedatlas.client.model import Workbench
from fedatlas.config.checks import named_code
from fedatlas.config.config import Config
from fedatlas.data.federation import Federation
from fedatlas.errors import DataError, UsageError, unknown_name
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.runs.run import ATLAS, CONFIG, NEW_ATLAS, Run
from fedatlas.runs.writer import RunFolder, check_folder, check_rounds
from fedatlas.training.callbacks import LOGGERS, PACKAGES, Callback, need
from fedatlas.training.model import make_model
from fedatlas.training.progress import make_progress
from fedatlas.training.settings import Machine
from fedatlas.training.train import train_run

MOST_CHECKED, MOST_NUMBERS = 300, 20_000_000
"""Clients, and numbers in all examples' inputs, up to which a training checks its data for the page."""
MOST_NAMED = 4
"""Suspects that are named on one line."""
_last: list[tuple[Any, Federation]] = []
"""The settings that made the federation of this process's last run, and the federation."""
_last_atlas: list[tuple[Federation, Any, Atlas]] = []
"""The atlas that this process made last, of which federation and how."""


def train_config(
    config: Config,
    folder: Path,
    *,
    machine: Machine,
    resume: bool = False,
    overwrite: bool = False,
    show: bool | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train what a config says, and say how to resume when it is interrupted."""
    check_device(machine.device)
    taken = check_folder(folder, resume=resume, overwrite=overwrite)
    played, rounds = CheckpointStore(folder / "checkpoints").round() if taken and resume else 0, config.plan().rounds
    check_rounds(played, rounds, folder)
    federation = _federation(config)
    atlas = None
    if config.atlas_settings() is not None:
        file = folder / (NEW_ATLAS if taken and overwrite else ATLAS)
        atlas = kept_atlas(file, lambda: _atlas(config, machine, show=show), resume=resume)
    try:
        algorithm = config.algorithm(atlas)
        if show is not False and (reason := getattr(algorithm.sharing, "reason", "")):
            remark(reason)
        run = train_run(
            federation,
            algorithm,
            config.run_settings(federation.data, machine),
            RunFolder(folder=folder, resume=resume, overwrite=overwrite, config=config.to_toml()),
            progress=make_progress(show, _label(config, algorithm.name), rounds),
            callbacks=callbacks,
        )
    except KeyboardInterrupt:
        allowed = "".join(f" --allow-code {name}" for name in named_code(config.values).values())
        remark(f"\nStopped; finished rounds are kept. Go on with: fedatlas train --folder {folder} --resume{allowed}")
        raise typer.Exit(130) from None
    finally:
        if taken:
            with suppress(OSError):  # on a file system that became read-only there is none to delete
                (folder / NEW_ATLAS).unlink()
    if played == rounds and show is not False:
        remark(f"{folder} already had all {rounds} rounds: nothing was left to do.")
    return run


def _label(config: Config, name: str) -> str:
    """Return the name that [algorithms] gives a run, else the algorithm's."""
    chosen = str(config.values["algorithm"]["name"])
    return chosen if "name" in config.values["algorithms"].get(chosen, {}) else name


def check_clients(config: Config, folder: Path) -> Diagnosis | None:
    """Check the data that a config trains on, for the page of its run in a folder, where that takes seconds.

    Returns None, and says so, where the data are many or cannot be checked; ``fedatlas check RUN`` then does it.
    """
    federation = _federation(config)
    if len(federation) > MOST_CHECKED or federation.data.inputs.numel() > MOST_NUMBERS:
        remark(f"the data are many and are not checked; do so with: fedatlas check {shlex.quote(str(folder))}")
        return None
    try:
        found = check(federation, given=f"--config {shlex.quote(str(folder / CONFIG))}", progress=False)
    except (DataError, UsageError) as error:
        remark(f"the data are not checked: {error}")
        return None
    if named := suspected(found):
        remark(f"data that look wrong: {named}. The page says why.")
    return found


def suspected(found: Diagnosis) -> str:
    """Return the suspects of a diagnosis with their faults, in a few words."""
    kinds: dict[str, list[str]] = {}
    for own in found.suspects:
        kinds.setdefault(own.client, []).append(own.kind.replace("-", " "))
    said = [f"{name} ({', '.join(dict.fromkeys(own))})" for name, own in kinds.items()]
    return ", ".join(said[:MOST_NAMED]) + (f" and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else "")


def make_loggers(names: Sequence[str]) -> list[Callback]:
    """Return loggers by name, each once; raise an error if a package is missing, before any data are read."""
    for name in names:
        if name not in LOGGERS:
            raise unknown_name(LOGGERS.kind, name, LOGGERS)
        if name in PACKAGES:
            need(*PACKAGES[name])
    return [LOGGERS[name]() for name in dict.fromkeys(names)]


def _federation(config: Config) -> Federation:
    """Return a config's federation: the last run's if this one's is made alike, so that `compare` reads data once."""
    source = (config.values["data"], config.seeds().partition)
    if not _last or _last[0][0] != source:
        # Before the next is made: two may not fit.
        _last.clear()
        _last_atlas.clear()
        _last.append((source, config.federation()))
        for line in _last[0][1].remarks:
            remark(line)
    return _last[0][1]


def _atlas(config: Config, machine: Machine, *, show: bool | None = None) -> Atlas:
    """Return the atlas that a config says to make: the last one if it was made alike, so that `compare` makes one."""
    federation, how = _federation(config), (config.atlas_settings() or {}, machine.device)
    if not _last_atlas or _last_atlas[0][0] is not federation or _last_atlas[0][1] != how:
        _last_atlas.clear()
        made = make_atlas(federation, **how[0], device=machine.device, workers=machine.workers, progress=show)
        _last_atlas.append((federation, how, made))
    return _last_atlas[0][2]


def check_device(device: str) -> None:
    """Raise an error if torch does not know or see a device here."""
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UsageError(
            f"torch knows no device {device!r}; use --device cpu, cuda or cuda:N.", code="device", got=device
        ) from None
    if place.type == "cuda" and (place.index or 0) >= (count := torch.cuda.device_count()):
        seen = f"{count} GPUs" if count else "no GPU"
        raise UsageError(
            f"device {device!r} was asked for, but torch sees {seen} here; use --device cpu or another.",
            code="device",
            got=device,
        )


def unfit_algorithms(settings: Mapping[Path, Config], machine: Machine, *, resume: bool) -> dict[str, UsageError]:
    """Return the algorithms that cannot train their model or take the atlas, and why, without training any.

    ``settings`` are by the folder of the run. The first of each algorithm is looked at.
    """
    found: dict[str, UsageError] = {}
    seen: set[str] = set()
    for folder, config in settings.items():
        name = config.values["algorithm"]["name"]
        if name in seen:
            continue
        seen.add(name)
        federation, atlas = _federation(config), None
        if config.atlas_settings() is not None:
            kept = folder / ATLAS
            atlas = Atlas.load(kept) if resume and kept.exists() else _atlas(config, machine)
        if (why := _misfit(config, federation, atlas)) is not None:
            found[name] = why
    return found


def _misfit(config: Config, federation: Federation, atlas: Atlas | None) -> UsageError | None:
    """Return why an algorithm cannot take its atlas or train its model; what is wrong for every algorithm is raised."""
    run = config.run_settings(federation.data)
    try:
        algorithm = config.algorithm(atlas)
    except UsageError as error:
        if error.code != "base-unfit":
            raise
        return error
    try:
        network = make_model(run.model, run.model_options, federation, algorithm, run.seeds.model)
        Workbench(network, algorithm)
    except UsageError as error:
        return error
    return None
