"""``fedatlas list``: the names that the other commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from fedatlas.cli.catalogue import CATALOGUES, NOTES, disclosures_by_algorithm
from fedatlas.cli.terminal import friendly, print_lines
from fedatlas.errors import unknown_name


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Only algorithms, datasets, partitions, models, atlases (sources of one), encoders, optimizers, "
            "metrics or settings (keys of a config)."
        ),
    ] = None,
    disclosures: Annotated[
        bool, typer.Option("--disclosures", help="Show instead what leaves a client, by algorithm and by atlas.")
    ] = False,
) -> None:
    """List the names that other commands accept, one line each."""
    with friendly():
        if disclosures:
            print_lines("what leaves a client", disclosures_by_algorithm())
            return
        if kind is not None and kind not in CATALOGUES:
            raise unknown_name("kind", kind, CATALOGUES)
        for title in [kind] if kind else CATALOGUES:
            print_lines(title, CATALOGUES[title](), NOTES[title]() if title in NOTES else None)
