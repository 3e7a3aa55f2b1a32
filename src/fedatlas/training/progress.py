"""Following a run: the protocol of a logger, and a bar that shows the round, the accuracy and the time left."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol, Self


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
            self._bar.update(self._task, note=f"accuracy {metrics['accuracy']:.1%}")


def make_progress(show: Progress | bool | None, title: str, rounds: int) -> Progress:
    """Return a bar, or silence; None shows the bar on a terminal. An object that is given is used as it is."""
    if show is not None and not isinstance(show, bool):
        return show
    return Bar(title, rounds) if (sys.stderr.isatty() if show is None else show) else Silent()
