"""The options of ``fedatlas adapt``."""

from pathlib import Path
from typing import Annotated

import typer

from fedatlas.adapting.settings import AdaptSettings

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run that `train` or `compare` made.")]
ClientOption = Annotated[
    list[str] | None,
    typer.Option("--client", help="A client's name; may be given many times; default all that were held out."),
]
NewDataOption = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", help="New clients' data, a name or a path as `train` takes it, in place of the run's clients."
    ),
]
StartOption = Annotated[
    str | None,
    typer.Option(
        "--start",
        help="Where tuning begins: unit (as the run's clients began), mean or first (of those that trained), "
        "nearest (of them, by --atlas), own (if it trained) or group (place each client in a group of the run, and "
        "tune only if --rounds or --tune is given); default own, for newcomers the algorithm's choice.",
    ),
]
NearAtlasOption = Annotated[
    Path | None,
    typer.Option(
        "--atlas",
        help="For --start nearest and group: a file that `fedatlas map` made of the run's clients; for group the "
        "default is the run's own.",
    ),
]
LabelsOption = Annotated[
    bool,
    typer.Option(
        "--labels/--no-labels", help="Whether to look at a newcomer's labels when it is placed in a group of the run."
    ),
]
ExamplesOption = Annotated[
    int | None, typer.Option("--examples", help="Use only this many training examples of each client.")
]
TuneOption = Annotated[
    str | None,
    typer.Option(
        "--tune",
        help="What is tuned: personal (what the algorithm keeps on a client), or also each client's copy of the "
        "head, the norms or all of the model; default personal, or head if the algorithm keeps nothing on clients.",
    ),
]
TuningRoundsOption = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        "-r",
        help=f"How many rounds of tuning; default {AdaptSettings.rounds}, and none with --start group unless --tune is "
        "given.",
        show_default=False,
    ),
]
StepsOption = Annotated[int, typer.Option("--steps", help="Minibatches in each round.")]
RateOption = Annotated[
    float | None,
    typer.Option("--lr", help="The first learning rate; default the algorithm's for newcomers, else the run's."),
]
CompareOption = Annotated[
    bool,
    typer.Option(
        "--compare/--no-compare",
        help="Compare before and after by folds of each client's own training part, and keep the better, else keep "
        "what was tuned.",
    ),
]
CompileOption = Annotated[
    bool, typer.Option("--compile", help="Let torch.compile fuse operations: for long tuning on a GPU.")
]
SaveOption = Annotated[
    Path | None,
    typer.Option(
        "--save",
        help="A folder for the adapted networks, one for each client; earlier ones of the same clients are replaced.",
    ),
]
OnnxOption = Annotated[bool, typer.Option("--onnx", help="With --save: as ONNX too (needs the extra onnx).")]
