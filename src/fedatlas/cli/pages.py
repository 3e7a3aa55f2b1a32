"""Pages that commands write: where they are, a copy to share, and opening one in a browser."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedatlas.cli.terminal import remark, say

OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]
ShareOption = Annotated[
    bool,
    typer.Option(
        "--share", help="Also write a copy to hand on: no names, pictures, paths or groups of fewer than five clients."
    ),
]


def publish(
    path: Path, *, open_: bool, share: bool = False, title: str = "page", quiet: bool = False, **about: Any
) -> None:
    """Write a page, and a copy to share if that is asked for; say where they are, and open the page if asked to.

    Args:
        path: the file of the page.
        open_: whether to open it in a browser.
        share: whether to write the copy, ``NAME-shared.html`` beside it.
        title: the word in front of the path.
        quiet: whether the paths are printed beside the output, which is for a program.
        about: what the page is about, as ``fedatlas.report.write_page`` takes it.
    """
    from fedatlas.report import write_page

    tell = remark if quiet else say
    tell(f"{title}: {write_page(path, **about)}")
    if share:
        copy = path.with_name(f"{path.stem}-shared.html")
        tell(f"to share: {write_page(copy, share=True, **about)}")
    if open_:
        show(path)


def show(path: Path) -> None:
    """Open a page in a browser, or say that there is none."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        remark(f"no browser was found; open {path} in one.")


def written_options(given: Mapping[str, object]) -> str:
    """Return options as they were written, for commands on a page and in advice."""
    words = []
    for name, value in given.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        words += [f"{name} {shlex.quote(str(one))}" for one in values]
    return " ".join(words)
