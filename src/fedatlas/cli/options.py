"""Options that several commands share; help and defaults come from the settings that they set."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from fedatlas.algorithms.user_function import allow_code
from fedatlas.config.schema import SETTINGS
from fedatlas.errors import UsageError
from fedatlas.training.settings import Machine

MACHINE = Machine()
"""The defaults of the machine's options."""
_MACHINE_HELP = {own.name: own.metadata["help"] for own in fields(Machine)}


def sentence(text: str, default: object = None) -> str:
    """Return a setting's help as a sentence of the command line, with the default if it has one."""
    said = text[0].upper() + text[1:] if not text.startswith(("cpu", "`")) else text
    return f"{said}; default {default}." if default is not None else f"{said}."


def setting_option(key: str, *names: str, more: str = "") -> Any:
    """Return the option that sets a key of the config."""
    setting = SETTINGS[key]
    return typer.Option(*names, help=sentence(setting.help + more, setting.default))


def machine_option(name: str, *names: str) -> Any:
    """Return the option that sets a field of ``Machine``."""
    return typer.Option(*names, help=sentence(_MACHINE_HELP[name]))


def _allowed_by_typing(given: Any) -> Any:
    """Allow the functions among names that the user typed: who types a name on this machine trusts it."""
    for name in [given] if isinstance(given, str) else given or ():
        if ":" in name:
            allow_code(name)
    return given


AllowCodeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        callback=_allowed_by_typing,
        help="Code of yours that a config or a run may name: FILE.py:RECIPE or MODULE:RECIPE; may be given many times.",
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="A TOML file of settings; the other options change them.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", help="One of `fedatlas list settings`, such as optimizer.lr=0.05; may be given many times."
    ),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        "-a",
        callback=_allowed_by_typing,
        help=f"One of `fedatlas list algorithms`, or FILE.py:RECIPE; default {SETTINGS['algorithm.name'].default}.",
    ),
]
AlgorithmsArgument = Annotated[
    list[str],
    typer.Argument(callback=_allowed_by_typing, help="Names from `fedatlas list algorithms`, or `all`."),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        help="One of `fedatlas list datasets`, an .npz, a table (.csv, .tsv, .jsonl, .parquet) or a folder of "
        f"pictures; default {SETTINGS['data.source'].default}.",
    ),
]
DataFolderOption = Annotated[Path | None, setting_option("data.folder", "--data-folder")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="One of `fedatlas list models`; default one that suits the data."),
]
RoundsOption = Annotated[int | None, setting_option("training.rounds", "--rounds", "-r")]
SeedOption = Annotated[int | None, setting_option("seed", "--seed")]
DeviceOption = Annotated[str, machine_option("device", "--device")]
EngineOption = Annotated[str, machine_option("engine", "--engine")]
WorkersOption = Annotated[int | None, machine_option("workers", "--workers", "-w")]
ProfileOption = Annotated[bool, typer.Option("--profile", help="Show where the time of a round goes.")]
AtlasOption = Annotated[
    Path | None, typer.Option("--atlas", help=sentence(f"{SETTINGS['atlas.file'].help}; see --use"))
]
UseOption = Annotated[
    str | None,
    typer.Option(
        "--use",
        help="What --atlas is for: any of sample, aggregate, train and group, with commas; group makes one if none is "
        "given; "
        f"default {','.join(SETTINGS['atlas.use'].default)}.",
    ),
]
GroupsOption = Annotated[str | None, setting_option("sharing.groups", "--groups", more=", with --use group")]
LevelOption = Annotated[str | None, setting_option("sharing.level", "--level", more=": all, head or norms")]
LogOption = Annotated[
    list[str] | None,
    typer.Option("--log", help="Also log each round: csv, tensorboard, wandb or mlflow; may be given many times."),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")]


def sections(
    *,
    algorithm: str | None = None,
    data: str | None = None,
    data_folder: Path | None = None,
    model: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Return the options that were given, as sections of a config."""
    tables: dict[str, Any] = {
        "algorithm": {"name": algorithm},
        "data": {"source": data, "folder": str(data_folder) if data_folder else None},
        "model": {"name": model},
        "training": {"rounds": rounds},
    }
    given = {title: {k: v for k, v in keys.items() if v is not None} for title, keys in tables.items()}
    return {title: keys for title, keys in given.items() if keys} | ({} if seed is None else {"seed": seed})


def atlas_sections(
    atlas: Path | None = None, use: str | None = None, groups: str | None = None, level: str | None = None
) -> dict[str, Any]:
    """Return the options about an atlas and its groups, as sections of a config."""
    uses = [] if use is None else [part.strip() for part in use.split(",")]
    if uses and atlas is None and "group" not in uses:
        raise UsageError(
            "--use says what an atlas is for; give it with --atlas FILE.", code="settings-conflict", got=use
        )
    section = {**({} if atlas is None else {"file": str(atlas)}), **({"use": uses} if uses else {})}
    number = int(groups) if groups is not None and groups.removeprefix("-").isdecimal() else groups
    sharing = {key: value for key, value in (("groups", number), ("level", level)) if value is not None}
    return {**({"atlas": section} if section else {}), **({"sharing": sharing} if sharing else {})}
