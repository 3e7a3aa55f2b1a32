"""``fedatlas map``: an atlas of the clients, and the page that shows it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedatlas.atlas.encoders.registry import ENCODERS
from fedatlas.atlas.registry import SOURCES
from fedatlas.atlas.settings import AtlasSettings
from fedatlas.cli.checks import read_config
from fedatlas.cli.options import (
    MACHINE,
    ConfigOption,
    DataFolderOption,
    DataOption,
    DeviceOption,
    SetOption,
    WorkersOption,
    sections,
)
from fedatlas.cli.pages import OpenOption, ShareOption, publish, written_options
from fedatlas.cli.terminal import check_file, friendly, print_lines, remark, say
from fedatlas.config.config import Config
from fedatlas.config.schema import SETTINGS
from fedatlas.errors import UsageError, unknown_name
from fedatlas.runs.schema import check_run

if TYPE_CHECKING:
    from fedatlas.atlas.atlas import Atlas

USUAL = AtlasSettings()


def map_(
    config: ConfigOption = None,
    set_: SetOption = None,
    data: DataOption = None,
    data_folder: DataFolderOption = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help=f"The seed of the partition and of the index network; default {SETTINGS['seed'].default}.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="A run's folder: map the parameters that its clients keep, instead of data."),
    ] = None,
    source: Annotated[
        str, typer.Option("--source", help="What makes the vectors: one of `fedatlas list atlases`.")
    ] = USUAL.source,
    encoder: Annotated[
        str,
        typer.Option("--encoder", help="What turns examples into embeddings: one of `fedatlas list encoders`."),
    ] = USUAL.encoder,
    encoder_path: Annotated[
        Path | None,
        typer.Option("--encoder-path", help="With --encoder precomputed: the file of vectors, .npz or .safetensors."),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option("--strategy", help="How the index network is trained: global (at the server) or federated."),
    ] = USUAL.strategy,
    epochs: Annotated[
        int, typer.Option("--epochs", help="Passes (global) or rounds (federated) of the index network.")
    ] = USUAL.epochs,
    device: DeviceOption = MACHINE.device,
    workers: WorkersOption = MACHINE.workers,
    to: Annotated[Path, typer.Option("--to", help="The file of the atlas; its page goes beside it.")] = Path(
        "atlas.safetensors"
    ),
    open_: OpenOption = False,
    share: ShareOption = False,
) -> None:
    """Give every client a vector that says what its data look like; save them as an atlas and write its page."""
    with friendly():
        if source not in SOURCES.entries:
            raise unknown_name(SOURCES.kind, source, SOURCES)
        if encoder not in ENCODERS.entries:
            raise unknown_name(ENCODERS.kind, encoder, ENCODERS)
        check_file("--to", to, "atlas.safetensors")
        chosen = _encoder_options(encoder, encoder_path)
        others = {"--config": config, "--set": set_, "--data": data, "--data-folder": data_folder, "--seed": seed}
        if run is not None:
            _check_alone(run, [name for name, value in others.items() if value is not None])
            atlas, left, about = _of_run(run)
        else:
            settings = read_config(config, set_, **sections(data=data, data_folder=data_folder, seed=seed))
            settings.check()
            how = AtlasSettings(
                source=source,
                encoder=encoder,
                encoder_options=chosen or None,
                strategy=strategy,
                epochs=epochs,
                seed=settings.seeds().model,
            )
            atlas, left, about = _of_data(settings, how, device, workers)
            about["given"] = written_options(others) or f"--data {shlex.quote(about['federation'].name)}"
        atlas.save(to)
        _print_neighbours(atlas)
        say(f"what left each client: {left}\natlas: {to}")
        publish(to.with_suffix(".html"), open_=open_, share=share, atlas=atlas, **about)


def _of_run(run: Path) -> tuple[Atlas, str, dict[str, Any]]:
    """Return the atlas of what clients keep in a run, what left each of them, and what the page is about."""
    from fedatlas.atlas.from_run import run_atlas
    from fedatlas.runs.run import Run

    left = "the client's vector: the parameters that it keeps in the run and that otherwise stay with it"
    return run_atlas(Run(run)), left, {"runs": (Run(run),)}


def _of_data(
    settings: Config, how: AtlasSettings, device: str, workers: int | None
) -> tuple[Atlas, str, dict[str, Any]]:
    """Return the atlas of a config's clients, what left each of them, and what the page is about."""
    from fedatlas.atlas.sources import atlas_disclosures, make_atlas
    from fedatlas.cli.train_config import check_device
    from fedatlas.parts.disclosure import words

    check_device(device)
    left = "; ".join(words(atlas_disclosures(how.source, how.strategy)))
    federation = settings.federation()
    for line in federation.remarks:
        remark(line)
    atlas = make_atlas(federation, how, device=device, workers=workers)
    return atlas, left, {"federation": federation, "config": settings.to_toml()}


def _encoder_options(encoder: str, path: Path | None) -> dict[str, Path]:
    """Return the options of an encoder; raise an error before any data are read if its file is missing."""
    takes_path = "path" in ENCODERS.entries[encoder].parameters
    if takes_path != (path is not None):
        raise UsageError(
            f"--encoder {encoder} reads its vectors from a file: give --encoder-path FILE."
            if takes_path
            else f"--encoder-path is the file of --encoder precomputed; --encoder {encoder} has none.",
            code="settings-conflict",
            got=encoder,
        )
    if path is not None and not path.is_file():
        raise UsageError(
            f"{path}: there is no such file of precomputed embeddings. Check the path.",
            code="file-missing",
            path=str(path),
        )
    return {} if path is None else {"path": path}


def _check_alone(run: Path, others: list[str]) -> None:
    if others:
        raise UsageError(
            f"--run maps what clients keep in that run; leave out {', '.join(others)}, or --run.",
            code="settings-conflict",
            got=others,
        )
    check_run(run)


def _print_neighbours(atlas: Atlas) -> None:
    from fedatlas.atlas.grouping import cluster_accuracy

    near = {name: atlas.neighbours(name, 3) for name in atlas.names[:20]}
    print_lines(
        "nearest clients",
        {name: ", ".join(f"{other} {cosine:.2f}" for other, cosine in found) for name, found in near.items()},
    )
    if 1 < (count := len({*atlas.domains})) < len(atlas):
        right = cluster_accuracy(atlas.groups(count), list(atlas.domains))
        say(f"groups: {count} by k-means, {right:.0%} of clients are of their group's commonest domain")
    if atlas.summary is not None:
        say(f"beyond noise: {atlas.verdict().describe()}")
