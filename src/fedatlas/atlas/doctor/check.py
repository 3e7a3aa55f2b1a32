"""``check``: the whole examination of a federation, in order.

Columns, images and copies; label shares; the noise floor and groups; inputs or labelling between groups; swapped and
inverted labels; noisy labels; and if nothing is found, one model for all. ``examine`` needs the clients' summaries
alone, as they are sent over a network; copies need the examples.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from fedatlas.atlas.doctor.advice import advise
from fedatlas.atlas.doctor.contents import (
    column_figures,
    column_names,
    column_suspects,
    copy_suspects,
    picture_suspects,
    unmeasured,
)
from fedatlas.atlas.doctor.diagnosis import Diagnosis, Member
from fedatlas.atlas.doctor.examination import examine
from fedatlas.atlas.doctor.sizes import USELESS, lacking_classes, small_clients
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.summary import summarise
from fedatlas.data.federation import Federation


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
        given: the options that name the data in the commands of the advice, such as ``--data heart``.
        progress: whether to show how far the encoding is.
    """
    if embeddings is None:
        embeddings = _embeddings(federation, encoder, progress)
    begun = time.perf_counter()
    names = [client.name for client in federation]
    counts = _counts(federation)
    wrong, rare = _contents(federation, names)
    found = examine(summarise(federation, embeddings.cpu()), names, federation.data.classes)
    suspects = (*wrong, *found.suspects, *_useless(names, counts))
    mislabelled = {own.client for own in found.suspects}
    ways = {"inputs": found.inputs, "label_shares": found.label_shares, "labelling": found.labelling}
    different = [*found.different, *_rare(names, counts, federation.data.classes), *rare]
    return Diagnosis(
        data=federation.name,
        clients=tuple(
            Member(name=name, examples=int(own.sum()), classes=int((own > 0).sum()))
            for name, own in zip(names, counts, strict=True)
        ),
        num_classes=federation.num_classes,
        **ways,
        groups=found.groups,
        suspects=suspects,
        different=tuple(own for own in different if own.client not in mislabelled),
        remarks=found.remarks,
        advice=advise(
            given or f"--data {shlex.quote(federation.name)}",
            suspects,
            len(names),
            images=federation.data.kind == "image",
            **ways,
        ),
        seconds=time.perf_counter() - begun,
    )


def _embeddings(federation: Federation, encoder: str, progress: bool | None) -> Tensor:
    if federation.data.kind == "features":
        return federation.data.inputs
    return make_encoder(encoder).encode(federation, progress=progress).examples


def _counts(federation: Federation) -> Tensor:
    """Return int64 (clients, classes): the training examples of each."""
    labels = federation.data.labels.cpu()
    return torch.stack(
        [torch.bincount(labels[client.train.cpu()], minlength=federation.num_classes) for client in federation]
    )


def _contents(federation: Federation, names: Sequence[str]) -> tuple[list[Suspect], list[Suspect]]:
    """Return who has wrong inputs, and who lacks columns that others have."""
    suspects = [*picture_suspects(federation), *copy_suspects(federation)]
    columns = column_names(federation)
    if not columns:
        return suspects, []
    figures = column_figures(federation)
    lacking = [
        Suspect(name, "columns-missing", said := f"hardly any value in {_few(empty)}, which others have", "", said)
        for name, empty in unmeasured(names, columns, figures).items()
    ]
    return [*column_suspects(names, columns, figures), *suspects], lacking


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
