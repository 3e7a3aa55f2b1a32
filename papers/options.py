"""The command line of the papers' scripts: options that all have, options of one, and how a script ends."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from fedatlas.cli import print_error
from fedatlas.errors import FedatlasError, unknown_name

Given = ParamSpec("Given")

HELP: Mapping[str, str] = {
    "adapt_rounds": "rounds of a new client's training",
    "bases": "base algorithms, comma separated; all of the table's if empty",
    "compile": "compile the clients' training",
    "embeddings": "folder of the encoded examples",
    "encoder": "what encodes the examples: conse, or builtin, which needs nothing",
    "feed_forward": "width of the index network's feed-forward layers",
    "finish": "take each training as far as it is, and go on with what comes after it",
    "index_epochs": "epochs of the index network",
    "length": "paper (5 local epochs) or short (2); the part's own if empty",
    "minutes": "stop after so many minutes and keep what is done; 0: no limit",
    "model": "the network",
    "models": "networks, comma separated",
    "part": "main, search or pacs",
    "plan": "print what would be trained, and train nothing",
    "precision": "float32 or bfloat16",
    "pretrained": "file or hub name of the network's weights, on domains; from scratch if empty",
    "report": "print the page of this file of numbers, and measure nothing",
    "sets": "data sets, comma separated",
    "settings": "federations, comma separated",
    "stem": "the network's first layers: cifar (a 3x3 convolution) or cifar-pool (with a max-pool)",
    "strategies": "how the index is trained: FEDERATED, GLOBAL, comma separated",
    "weights": "file of the frozen backbone, or hf:NAME; the one that ships if empty",
}
"""What the scripts' own options are for."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line said."""

    quick: bool = False
    """A small version for a CPU: it shows that the script works, not what the method does."""
    device: str = "cpu"
    rounds: int = 100
    seeds: tuple[int, ...] = (0,)
    out: Path = Path("runs/papers")
    """Where results and runs are kept; scripts that share variants share the folder."""
    jobs: int = 1
    """Variants at a time, each in its own process."""
    workers: int | None = None
    """Processes of one run on a CPU."""
    data_folder: str | None = None
    only: str | None = None
    """A regular expression: only variants whose name it matches are run; the others are shown if they were before."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the script's own options said; ``deadline``, if there, is the time after which no training goes on."""

    def pick(self, full: Any, quick: Any) -> Any:
        """Return the second of two values with ``--quick``, else the first."""
        return quick if self.quick else full

    def listed(self, option: str, known: Iterable[str]) -> list[str]:
        """Return the names of a comma separated option, all of which must be known; all that are known if empty."""
        names = list(known)
        given = [name.strip() for name in self.extra[option].split(",") if name.strip()]
        return [one_of(option, name, names) for name in given] or names


def one_of(option: str, name: str, known: Iterable[str]) -> str:
    """Return a name that an option gave; raise UsageError if it is not known."""
    names = list(known)
    if name not in names:
        raise unknown_name(f"name in --{option.replace('_', '-')}", name, names)
    return name


def read_options(
    description: str, *, rounds: int, quick_rounds: int = 3, seeds: Sequence[int] = (0,), **extra: Any
) -> Options:
    """Return what the command line says; ``extra`` are options of the script: a name and its default.

    With ``minutes`` among them, ``extra`` has a ``deadline`` too: None where no limit was given.
    """
    begun = time.time()
    spec = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(
        prog=None if spec is None else f"python -m {spec.name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a small version for a CPU")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N; default cpu")
    parser.add_argument(
        "--rounds", type=_positive, help=f"rounds of a training; default {rounds}, or {quick_rounds} with --quick"
    )
    counted = f"{','.join(map(str, seeds))}, or {seeds[0]} with --quick" if len(seeds) > 1 else str(seeds[0])
    parser.add_argument("--seeds", type=_seeds, help=f"comma separated; default {counted}")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="where results are kept; runs/papers")
    parser.add_argument("--jobs", type=_positive, default=1, help="variants at a time; default 1")
    parser.add_argument("--workers", type=_positive, help="processes of one run on a CPU")
    parser.add_argument("--data-folder", help="where data sets are stored; else FEDATLAS_DATA")
    parser.add_argument("--only", type=_expression, help="run only variants whose name matches this regular expression")
    for name, default in extra.items():
        flag, words = f"--{name.replace('_', '-')}", HELP.get(name, "")
        if default is False:
            parser.add_argument(flag, action="store_true", help=words)
        else:
            shown = f"{words}; default {default}" if default else words
            parser.add_argument(flag, default=default, type=type(default), help=shown)
    given = vars(parser.parse_args())
    length = given.pop("rounds")
    if length is None:
        length = quick_rounds if given["quick"] else rounds
    chosen = given.pop("seeds") or tuple(seeds[:1] if given["quick"] else seeds)
    own = {name: given.pop(name) for name in extra}
    if "minutes" in own:
        own["deadline"] = begun + 60 * own["minutes"] if own["minutes"] else None
    return Options(**given, rounds=length, seeds=chosen, extra=own)


def existing(text: str) -> Path:
    """Return a path that an argument names; raise an error if nothing is there."""
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"there is no {text}; check the path")
    return Path(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def _seeds(text: str) -> tuple[int, ...]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be whole numbers separated by commas, such as 0,1,2, got {text!r}")
    return tuple(int(part) for part in text.split(","))


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression, got {text!r}: {error}") from None
    return text


def script(main: Callable[Given, None]) -> Callable[Given, None]:
    """Let what a script runs end with one message where an error of ours, or Ctrl-C, ends it."""

    @wraps(main)
    def run(*arguments: Given.args, **options: Given.kwargs) -> None:
        try:
            main(*arguments, **options)
        except FedatlasError as error:
            print_error("error:", error)
            raise SystemExit(2) from None
        except KeyboardInterrupt:
            print("\nStopped; what was finished is kept. The same command goes on with it.", file=sys.stderr)
            raise SystemExit(130) from None

    return run
