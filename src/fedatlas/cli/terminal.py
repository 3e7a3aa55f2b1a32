"""What the commands say: results to the output, errors as one message, tables without frames."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedatlas.errors import FedatlasError, UsageError

# Nothing that is printed is markup: a path or a name may have square brackets or colons in it.
output = Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
errors = Console(stderr=True, markup=False, emoji=False)


@contextmanager
def friendly() -> Iterator[None]:
    """Print an error of ours as one message, without a traceback, and a warning as a line."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except FedatlasError as error:
        print_error("error:", error)
        raise typer.Exit(2) from None


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    errors.print(Text.assemble(("note:", "bold yellow"), " ", str(message)), highlight=False, soft_wrap=True)


def print_error(title: str, error: object) -> None:
    """Print what went wrong after a title that stands out."""
    errors.print(Text.assemble((title, "bold red"), " ", str(error)), highlight=False, soft_wrap=True)


def check_file(option: str, path: Path, usual: str) -> None:
    """Refuse a place where no file can be written, before any work is done for it; ``usual`` is a file's name."""
    if path.is_dir():
        raise UsageError(f"{option} takes a file, and {path} is a folder. Write {option} {path / usual}.")
    check_writable(option, path.parent)


def check_writable(option: str, folder: Path) -> None:
    """Refuse a folder that is a file, or would be inside one."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise UsageError(f"{option}: {place} is a file, and a folder is needed there. Choose another place.")


def print_rows(rows: list[dict[str, str]], caption: str) -> None:
    """Print rows of equal keys as one table; the first column is the name."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", caption=caption)
    table.caption_justify = "left"
    for i, title in enumerate(rows[0]):
        table.add_column(title.replace("_", " "), justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row.values())
    output.print(table)


def print_lines(title: str, lines: Mapping[str, str], note: str | None = None) -> None:
    """Print names and what is said of each, and a note under them."""
    table = Table(box=None, pad_edge=False, show_header=False, title=title, title_justify="left", title_style="bold")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, line in lines.items():
        table.add_row(name, line)
    output.print(table)
    if note is not None:
        output.print(note, highlight=False, soft_wrap=True)
    output.print()
