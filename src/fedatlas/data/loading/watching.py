"""Showing how far a long reading is: a bar on a terminal, plain lines elsewhere, nothing where it is short."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
SHORT = 1.0
"""Seconds of reading before a bar is shown."""
PAUSE = 10.0
"""Seconds between two plain lines."""


def watched(items: Sequence[T], title: str) -> Iterator[T]:
    """Yield items one by one, and show on the error output how many are done."""
    began = printed = time.monotonic()
    bar: Any = None
    try:
        for number, item in enumerate(items):
            yield item
            now = time.monotonic()
            if sys.stderr.isatty():
                bar = _bar(title, len(items)) if bar is None and now - began > SHORT else bar
                if bar is not None:
                    bar.update(0, completed=number + 1)
            elif now - printed > PAUSE:
                printed = now
                told = f"{title}: {number + 1:,} of {len(items):,}, {now - began:.0f} s"
                print(told, file=sys.stderr, flush=True)
    finally:
        if bar is not None:
            bar.stop()


def _bar(title: str, total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    bar = Progress(TextColumn("{task.description}", markup=False), *columns, console=Console(stderr=True))
    bar.add_task(title, total=total)
    bar.start()
    return bar
