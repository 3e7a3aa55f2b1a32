"""``check``: the whole examination of a federation, in order.

Columns, images and copies; label shares; the noise floor and groups; inputs or labelling between groups; swapped and
inverted labels; noisy labels; and if nothing is found, one model for all. ``diagnose`` takes what clients tell, here or
over a network, and no example.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.atlas.doctor.advice import Commands, advise
from fedatlas.atlas.doctor.cells import with_cells
from fedatlas.atlas.doctor.contents import ColumnFindings, column_findings, copy_suspects, picture_suspects, unmeasured
from fedatlas.atlas.doctor.diagnosis import Diagnosis, Member
from fedatlas.atlas.doctor.duplicates import find_copies
from fedatlas.atlas.doctor.examination import UNLIKE, examine
from fedatlas.atlas.doctor.figures import MOST_COLUMNS, ClientFigures, column_names, describe_clients, own_keys
from fedatlas.atlas.doctor.sizes import USELESS, lacking_classes, small_clients
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.encoders.projection import WIDTH, to_width
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.summary import Summary, summarise
from fedatlas.data.federation import Federation
from fedatlas.data.task import require_classes


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """What all clients told: the whole of what a diagnosis knows."""

    data: str
    """The name of the data."""
    images: bool
    names: tuple[str, ...]
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    """The names of the columns of numbers; () of data that have none."""
    summary: Summary | None
    """None if no example says anything about noise."""
    figures: Sequence[ClientFigures]
    keys: Sequence[NDArray[np.int64]] = ()
    """Of each client's examples, the same for equal ones; without them clients' examples are not compared."""


def check(
    federation: Federation,
    *,
    encoder: str = "builtin",
    embeddings: Tensor | None = None,
    given: str | None = None,
    progress: bool | None = None,
) -> Diagnosis:
    """Return how the clients of a federation differ, whose data are probably wrong, and what to do.

    >>> from fedatlas import federate, load_dataset
    >>> from fedatlas.data import NaturalId
    >>> diagnosis = check(federate(load_dataset("heart"), NaturalId(min_samples=1)))
    >>> sorted({own.client for own in diagnosis.suspects})
    ['switzerland', 'va']

    Args:
        federation: the clients.
        encoder: what turns examples into vectors; rows of numbers are vectors already.
        embeddings: (N, D), where the examples were encoded before.
        given: the options that name these clients on the command line, such as ``--data heart``, for the advice; by
            default it is calls in Python.
        progress: whether to show how far the encoding is.
    """
    require_classes(federation.data.task, "a check of data", "Map the clients' inputs instead: source feature-average.")
    if embeddings is None:
        embeddings = embeddings_of(federation, encoder, progress=progress)
    begun = time.perf_counter()
    told = Told(
        data=federation.name,
        images=federation.data.kind == "image",
        names=tuple(client.name for client in federation),
        classes=federation.data.classes,
        columns=column_names(federation.data),
        summary=summarise(federation, embeddings.cpu()),
        figures=describe_clients(federation),
        keys=own_keys(federation),
    )
    found = diagnose(told, Commands.in_python() if given is None else _commands(given, federation), begun)
    return replace(found, suspects=with_cells(found.suspects, federation))


def _commands(given: str, federation: Federation) -> Commands:
    table = federation.data.table
    held_out = [client.name for client in federation if client.held_out]
    return Commands.here(given, () if table is None else table.dropped, held_out)


def embeddings_of(federation: Federation, encoder: str, *, progress: bool | None = None, **options: object) -> Tensor:
    """Return the vectors that a check compares, (N, D): of rows of numbers the rows themselves, as they are scaled.

    Rows of more than 512 numbers are projected, so that the time does not grow with the cube of their width.
    """
    if federation.data.kind == "features":
        inputs = federation.data.inputs
        return inputs if inputs.shape[1] <= WIDTH else to_width(inputs, "check")
    return make_encoder(encoder, **options).encode(federation, progress=progress).examples


def diagnose(told: Told, commands: Commands, begun: float | None = None) -> Diagnosis:
    """Return the diagnosis of what clients told.

    Args:
        told: what all clients told.
        commands: how to check and to train these clients, for the advice.
        begun: when the work began, by ``time.perf_counter``; by default now.
    """
    begun = time.perf_counter() if begun is None else begun
    names, counts = told.names, torch.tensor([own.label_counts for own in told.figures])
    wrong, rare, columns = _contents(told)
    found = examine(told.summary, names, told.classes)
    # Labels first: wrong ones harm most, and columns can be many.
    suspects = (*found.suspects, *wrong, *_useless(names, counts))
    mislabelled, accused = ({own.client for own in some} for some in (found.suspects, suspects))
    ways = {"inputs": found.inputs, "label_shares": found.label_shares, "labelling": found.labelling}
    different = [*found.different, *_rare(names, counts, told.classes), *rare]
    return Diagnosis(
        data=told.data,
        clients=tuple(
            Member(name=name, examples=int(own.sum()), classes=int((own > 0).sum()))
            for name, own in zip(names, counts, strict=True)
        ),
        num_classes=len(told.classes),
        **ways,
        groups=found.groups,
        suspects=suspects,
        # What is wrong with its columns may be all that is special about a client.
        different=tuple(
            own
            for own in different
            if own.client not in mislabelled and not (own.kind == UNLIKE and own.client in accused)
        ),
        remarks=(*found.remarks, *columns.remarks, *_remarks(told)),
        notes=tuple(columns.notes),
        advice=advise(commands, suspects, names, images=told.images, **ways),
        seconds=time.perf_counter() - begun,
        summary=told.summary,
    )


def _remarks(told: Told) -> list[str]:
    """Return what was not looked at."""
    said = []
    if len(told.names) == 1:
        said.append("Whether this client is like others: it is alone.")
    if len(told.columns) > MOST_COLUMNS:
        said.append(f"Faults of single columns: there are {len(told.columns):,}, and {MOST_COLUMNS:,} are the most.")
    return said


def _contents(told: Told) -> tuple[list[Suspect], list[Suspect], ColumnFindings]:
    """Return who has wrong inputs, who lacks columns that others have, and what the columns show."""
    copies = find_copies([own.copies for own in told.figures], told.keys)
    suspects = [
        *picture_suspects(told.names, [own.images for own in told.figures]),
        *copy_suspects(told.names, copies),
    ]
    if not 0 < len(told.columns) <= MOST_COLUMNS:
        return suspects, [], ColumnFindings([], [], [])
    columns = [own.columns for own in told.figures]
    lacking = [
        Suspect(name, "columns-missing", said := f"hardly any value in {_few(empty)}, which others have", "", said)
        for name, empty in unmeasured(told.names, told.columns, columns).items()
    ]
    found = column_findings(told.names, told.columns, columns)
    return [*found.suspects, *suspects], lacking, found


def _useless(names: Sequence[str], counts: Tensor) -> list[Suspect]:
    sizes = counts.sum(1).tolist()
    return [
        Suspect(
            name,
            "too-few-examples",
            said := f"{size} training examples are too few to compare or to train with",
            f"whether all examples of {name} were read",
            said,
        )
        for name, size in zip(names, sizes, strict=True)
        if size < USELESS
    ]


def _rare(names: Sequence[str], counts: Tensor, classes: Sequence[str]) -> list[Suspect]:
    """Return the clients that have few examples or lack classes."""
    sizes = counts.sum(1).tolist()
    small = [
        Suspect(names[i], "few-examples", said := f"only {sizes[i]} training examples", "", said)
        for i in small_clients(sizes)
        if sizes[i] >= USELESS
    ]
    lacking = [
        Suspect(names[i], "classes-missing", said := f"no example of {_few([classes[k] for k in own])}", "", said)
        for i, own in lacking_classes(counts).items()
    ]
    return [*small, *lacking]


def _few(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
