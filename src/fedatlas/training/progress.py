"""Following a run: the protocol of a logger, a bar on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol, Self

from fedatlas.runs.schema import figure


class Progress(Protocol):
    """What follows a run round by round: a bar, a logger."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *details: object) -> None: ...

    def start_from(self, round: int) -> None:
        """Begin after a round that was played before."""
        ...

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Take note of a finished round; ``metrics`` is empty where it was not evaluated."""
        ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        return None

    def start_from(self, round: int) -> None:
        """Show nothing."""

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Show nothing."""


class Bar:
    """A rich progress bar on the terminal."""

    def __init__(self, title: str, rounds: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description:<12}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(title, total=rounds, note="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._bar.stop()

    def start_from(self, round: int) -> None:
        """Begin the bar after a round that was played before."""
        self._bar.update(self._task, completed=round)

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Move the bar and show the accuracy."""
        self._bar.update(self._task, completed=round)
        if metrics:
            self._bar.update(self._task, note=scores_line(metrics).partition(", loss")[0])


class Lines:
    """Prints a plain line for each evaluated round, and now and then for others: for logs, pipes and notebooks."""

    PAUSE = 10.0
    """Seconds without a line after which work that brings no metrics prints how far it is."""

    def __init__(self, title: str, rounds: int) -> None:
        self.title, self.rounds = title, rounds
        self._began = self._printed = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        return None

    def start_from(self, round: int) -> None:
        """Say where a resumed run goes on."""
        if round:
            self._print(f"goes on after round {round} of {self.rounds}")

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Print the round, its main metric, its loss and the seconds so far; without metrics, only how far it is."""
        now = time.perf_counter()
        passed = now - self._began
        if metrics:
            self._print(f"round {round} of {self.rounds}, {scores_line(metrics)}, {passed:.0f} s")
        elif round == self.rounds or now - self._printed > self.PAUSE:
            self._print(f"{round} of {self.rounds}, {passed:.0f} s")

    def _print(self, text: str) -> None:
        self._printed = time.perf_counter()
        print(f"{self.title}: {text}", file=sys.stderr, flush=True)


def scores_line(metrics: Mapping[str, Any]) -> str:
    """Return an evaluation's main metric and loss in words.

    >>> scores_line({"num_clients": 2, "num_examples": 9, "accuracy": 0.5, "loss": 1.25})
    'accuracy 50.0%, loss 1.25'
    """
    main = next(name for name in metrics if name not in ("round", "num_clients", "num_examples"))
    return f"{main} {figure(main, metrics[main])}, loss {figure('loss', metrics['loss'])}"


def make_progress(show: Progress | bool | None, title: str, rounds: int) -> Progress:
    """Return a bar on a terminal, plain lines elsewhere; False is silence. An object that is given is used as it is."""
    if show is not None and not isinstance(show, bool):
        return show
    if show is False:
        return Silent()
    return Bar(title, rounds) if sys.stderr.isatty() else Lines(title, rounds)
