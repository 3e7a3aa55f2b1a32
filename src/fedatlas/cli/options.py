"""Options that several commands share, with their help."""

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="A TOML file of settings; the other options change them.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="One setting, such as optimizer.lr=0.05; may be given many times."),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option("--algorithm", "-a", help="One of `fedatlas list algorithms`, or FILE.py:RECIPE; default fedavg."),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        help="One of `fedatlas list datasets`, an .npz, a table of texts (.csv, .tsv, .jsonl) or a folder of pictures; "
        "default digits.",
    ),
]
DataFolderOption = Annotated[
    Path | None,
    typer.Option("--data-folder", help="Where the files of named data sets lie; default the variable FEDATLAS_DATA."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="One of `fedatlas list models`; default one that suits the data."),
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", "-r", help="How many rounds of training; default 20.")]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="The seed of partition, model, sampling and batches; default 0.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        help="How clients run: auto, or loop (one by one), workers (processes), graph (recorded steps), "
        "vmap (all together).",
    ),
]
WorkersOption = Annotated[int | None, typer.Option("--workers", "-w", help="Processes on a CPU; default one a core.")]
AtlasOption = Annotated[
    Path | None, typer.Option("--atlas", help="A file that `fedatlas map` made of the same clients; see --use.")
]
UseOption = Annotated[
    str | None,
    typer.Option(
        "--use", help="What --atlas is for: any of sample, aggregate and train, with commas; default sample,aggregate."
    ),
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is in the folder.")]
