"""``check``: the whole examination of a federation, in order.

Columns, images and copies; label shares; the noise floor and groups; inputs or labelling between groups; swapped and
inverted labels; noisy labels; and if nothing is found, one model for all. All tests about labels need the clients'
summaries alone, as they would be sent over a network; copies need the examples.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

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
from fedatlas.atlas.doctor.labels import INVERTED, SWAPPED, LabelFindings, find_wrong_labels
from fedatlas.atlas.doctor.sizes import USELESS, lacking_classes, small_clients
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.summary import Summary, summarise
from fedatlas.atlas.verdict import Finding, Verdict, judge
from fedatlas.data.federation import Federation

LARGE = 3
"""Clients that a group must have for a client without a group to be called unlike the others."""


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
    >>> from fedatlas.data import ByDomain
    >>> diagnosis = check(federate(load_dataset("heart"), test_fraction=0.25))
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
    suspects, different = _contents(federation, names)
    summary = summarise(federation, embeddings.cpu())
    counts = _counts(federation)
    shape = examine(summary, names, federation.data.classes) if summary is not None else None
    judged = _judged(shape, len(names))
    suspects += judged.suspects
    different += [*judged.different, *_rare(names, counts, federation.data.classes)]
    ways = {"inputs": judged.inputs, "label_shares": judged.label_shares, "labelling": judged.labelling}
    return Diagnosis(
        data=federation.name,
        clients=tuple(
            Member(name=name, examples=int(own.sum()), classes=int((own > 0).sum()))
            for name, own in zip(names, counts, strict=True)
        ),
        num_classes=federation.num_classes,
        **ways,
        groups=judged.groups,
        suspects=tuple(suspects),
        different=tuple(own for own in different if own.client not in {other.client for other in judged.suspects}),
        remarks=judged.remarks,
        advice=advise(given or f"--data {shlex.quote(federation.name)}", suspects, len(names), **ways),
        seconds=time.perf_counter() - begun,
    )
