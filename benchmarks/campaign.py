"""A short run to which things happen, and how that ended: the base of the campaign of faults.

Used by benchmarks/faults.py and by the tests. Every trial ends in one of five outcomes; three of them are defects.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from click.testing import CliRunner
from typer.main import get_command

from fedatlas.cli import train_config
from fedatlas.cli.app import app
from fedatlas.runs import Run, atomic_write
from fedatlas.training import saving

SECONDS = 300
"""A command that takes longer hangs: it takes less than a second."""
RIGHT, REFUSED, TRACEBACK, WRONG, HANG = "right bits", "one message", "traceback", "silently wrong", "hang"
BAD = (TRACEBACK, WRONG, HANG)
COMMAND = get_command(app)
Outcomes = Counter[str]


class Trials:
    """How trials ended, by row of the table; a file keeps them, so that a long campaign can be played in pieces."""

    def __init__(self, file: Path | None = None, minutes: float | None = None) -> None:
        self.file, self.rows = file, json.loads(file.read_text()) if file is not None and file.exists() else {}
        self.until = None if minutes is None else time.monotonic() + 60 * minutes

    def play(self, row: str, count: Callable[[], int], trial: Callable[[int], Outcomes]) -> Outcomes:
        """Play the trials of a row that are not kept yet, and return how all ended."""
        if row not in self.rows:
            self.rows[row] = {"trials": count(), "played": 0, "outcomes": {}}
        kept = self.rows[row]
        for number in range(kept["played"], kept["trials"]):
            if self.until is not None and time.monotonic() > self.until:
                raise PausedError(f"{number} of {kept['trials']} trials of {row}")
            kept["outcomes"] = dict(Counter(kept["outcomes"]) + trial(number))
            kept["played"] = number + 1
            if self.file is not None:
                atomic_write(self.file, json.dumps(self.rows, indent=1).encode())
        return Counter(kept["outcomes"])


class PausedError(Exception):
    """The time for this piece of the campaign is over."""


class HangError(BaseException):
    """A command took too long; no handler catches it."""


@dataclass
class Campaign:
    """A short run of SCAFFOLD, what it ends with if nothing happens, and a folder to try faults in."""

    folder: Path
    settings: tuple[str, ...] = ("training.checkpoint_every=1",)
    examples: list[str] = field(default_factory=list)
    """What went wrong, in words."""

    def __post_init__(self) -> None:
        rng, data = np.random.default_rng(0), self.folder / "data.npz"
        self.folder.mkdir(parents=True, exist_ok=True)
        labels = np.arange(48) % 3
        np.savez(data, x=(rng.normal(size=(48, 4)) + labels[:, None]).astype(np.float32), y=labels)
        own = ["data.partition={ name = 'iid', num_clients = 3 }", "training.cohort=2", *self.settings]
        self.train = ["train", "-d", str(data), "-a", "scaffold", "--model", "linear", "--workers", "1"]
        self.train += [word for setting in own for word in ("--set", setting)]
        for rounds in (3, 5):
            assert self.run(self.folder / f"whole-{rounds}", rounds) is None
        self.reference = self.result(self.folder / "whole-5")

    def run(self, folder: Path, rounds: int, *, check: bool = False) -> str | None:
        """Train, and check the data afterwards if asked to; return None if it worked, else the outcome."""
        command = [*self.train, "--folder", str(folder), "--rounds", str(rounds), "--resume"]
        checked = nullcontext() if check else mock.patch.object(train_config, "check_clients", return_value=None)
        with limited(), mock.patch.object(saving, "LEAST_SECONDS", 0.0), checked:
            try:
                result = CliRunner().invoke(COMMAND, command)
            except HangError:
                return HANG
        return self._outcome(result.exit_code, result.exception, result.output, command)

    def _outcome(self, status: int, error: BaseException | None, said: str, command: list[str]) -> str | None:
        if status == 0:
            return None
        if isinstance(error, HangError):
            return HANG
        if status == 2 and isinstance(error, SystemExit) and "error:" in said and "Traceback" not in said:
            return REFUSED
        self.examples.append(f"{error!r} of {' '.join(command[-5:])}: {said[-300:]}")
        return TRACEBACK

    def result(self, folder: Path) -> tuple[Any, ...]:
        """Return all that a run must end with."""
        run = Run(folder)
        found = run.checkpoint()
        tensors = {f"shared/{name}": tensor for name, tensor in found.state.shared.items()}
        for client, memory in found.clients.items():
            for part, own in memory.items():
                tensors |= {f"{client}/{part}/{name}": tensor for name, tensor in own.items()}
        records = tuple((folder / name).read_bytes() for name in ("rounds.jsonl", "clients.jsonl"))
        return (*records, {name: tensor.numpy().tobytes() for name, tensor in sorted(tensors.items())})

    def resumed(self, folder: Path, what: str) -> str:
        """Go on without faults, and return how that ends."""
        if (outcome := self.run(folder, 5)) is not None:
            return outcome
        if self.result(folder) == self.reference:
            return RIGHT
        self.examples.append(f"other results after {what}")
        return WRONG


@contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Let a block that takes too long end with HangError."""

    def end(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def table(found: Mapping[str, Outcomes]) -> list[dict[str, str]]:
    """Return one row for each kind of fault."""
    kinds = (RIGHT, REFUSED, *BAD)
    return [
        {"fault": name, "times": f"{sum(own.values()):,}", **{kind: f"{own[kind]:,}" for kind in kinds}}
        for name, own in found.items()
    ]
