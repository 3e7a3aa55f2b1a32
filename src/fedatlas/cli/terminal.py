"""The terminal: results to the output, errors as one message, tables without frames."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from fedatlas.errors import FedatlasError, UsageError, printable

WIDTH = 160
"""Of lists and tables that go to a file or another program."""


@contextmanager
def friendly(status: int = 2) -> Iterator[None]:
    """Print a fedatlas error as one message, without a traceback, and exit with a status; print a warning as a line."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except FedatlasError as error:
        print_error("error:", error)
        raise typer.Exit(status) from None
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)):
            raise
        what = "there is not enough memory. A run that was going on can be resumed from its last checkpoint"
        print_error(
            "error:", f"{what}: use fewer workers, smaller batches or a smaller model ({type(error).__name__})."
        )
        raise typer.Exit(status) from None


def say(text: str, *, bold: bool = False) -> None:
    """Print a text to the output."""
    typer.echo(typer.style(printable(text), bold=True) if bold else printable(text))


def help_alone(context: typer.Context) -> None:
    """Print the help of commands where none of them is named; that is not a mistake."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def remark(text: str, *, title: str = "", colour: str = "") -> None:
    """Print a text beside the output, where it is not part of the result, after a title that stands out."""
    text = f"{typer.style(title, fg=colour, bold=True)} {printable(text)}" if title else printable(text)
    typer.echo(_wrapped(text) if sys.stderr.isatty() else text, err=True)


def _wrapped(text: str) -> str:
    """Return a text in lines of the terminal's width; a terminal by itself would cut words."""
    width = shutil.get_terminal_size().columns
    lines = (textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join("\n".join(parts) for parts in lines)


def print_error(title: str, error: object) -> None:
    """Print what went wrong after a title that stands out."""
    remark(str(error), title=title, colour="red")


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    remark(str(message), title="note:", colour="yellow")


def check_file(option: str, path: Path, usual: str) -> None:
    """Raise an error if no file can be written at a path; ``usual`` is a file's name to propose."""
    if path.is_dir():
        raise UsageError(
            f"{option} takes a file, and {path} is a folder. Write {option} {path / usual}.",
            code="is-folder",
            path=path,
        )
    check_writable(option, path.parent)


def check_writable(option: str, folder: Path) -> None:
    """Raise an error if a folder is a file, or would be inside one."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise UsageError(
                f"{option}: {place} is a file, and a folder is needed there. Choose another place.",
                code="not-a-folder",
                path=place,
            )


def output_width() -> int:
    """Return how wide the output is: the terminal, or the variable COLUMNS; else wide, for a file or a program."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return WIDTH


def print_rows(rows: list[dict[str, str]], caption: str) -> None:
    """Print rows of equal keys as one table; the first column is the name."""
    # Here, not above: it takes a third of the time in which --help is printed.
    from rich.console import Console
    from rich.table import Table

    # Nothing that is printed is markup: a path or a name may have square brackets or colons in it.
    console = Console(width=output_width(), markup=False, emoji=False)
    blocks = fitted(rows, console.width)
    for block in blocks:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for i, title in enumerate(block[0]):
            table.add_column(printable(title.replace("_", " ")), justify="left" if i == 0 else "right")
        for row in block:
            table.add_row(*map(printable, row.values()))
        console.print(table)
    # Not the table's own caption, which is as narrow as the table.
    console.print(printable(caption), style="dim italic")


def fitted(rows: list[dict[str, str]], width: int) -> list[list[dict[str, str]]]:
    """Return rows that are as wide as the terminal: one line a figure for a single row, else in blocks of columns.

    >>> fitted([{"name": "a", "x": "1", "y": "2"}], 8)
    [[{'name': 'x', 'a': '1'}, {'name': 'y', 'a': '2'}]]
    """
    name, *others = rows[0]
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) + 1 for title in rows[0]}
    if sum(widths.values()) <= width:
        return [rows]
    if len(rows) == 1:
        return [[{name: title.replace("_", " "), rows[0][name]: rows[0][title]} for title in others]]
    blocks: list[list[str]] = [[]]
    for title in others:
        if blocks[-1] and widths[name] + sum(widths[own] for own in (*blocks[-1], title)) > width:
            blocks.append([])
        blocks[-1].append(title)
    return [[{own: row[own] for own in (name, *block)} for row in rows] for block in blocks]


def print_lines(title: str, lines: Mapping[str, str], note: str | None = None) -> None:
    """Print names, a line about each, and a note under them."""
    width = output_width()
    indent = max(map(len, lines), default=0) + 1
    say(title, bold=True)
    for name, line in lines.items():
        first, *rest = textwrap.wrap(line, max(20, width - indent)) or [""]
        typer.echo(typer.style(printable(name), fg="cyan") + " " * (indent - len(name)) + printable(first))
        for more in rest:
            say(" " * indent + more)
    if note is not None:
        say(note)
    say("")
