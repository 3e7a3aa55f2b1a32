"""What to do about a federation, as commands to run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedatlas.atlas.doctor.contents import COLUMN_KINDS
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.verdict import Finding

MOST_LEFT_OUT = 20
"""Suspects, or columns, that a command leaves out by name."""


class Advice(NamedTuple):
    """A command, and what it is good for."""

    command: str
    why: str


def advise(
    given: str,
    suspects: Sequence[Suspect],
    clients: int,
    *,
    images: bool = True,
    inputs: Finding,
    label_shares: Finding,
    labelling: Finding,
) -> tuple[Advice, ...]:
    """Return commands, the most urgent first; ``given`` are the options that name the data.

    Suspects are to be repaired. Until then wrong columns, or clients that are wrong otherwise, are left out. Groups
    train a model each where inputs or labelling differ. Other label shares need one model, by a method that allows for
    them.
    """
    found = []
    if suspects:
        found.append(Advice(f"fedatlas check {given}", "once more, after the suspects were looked at and repaired"))
    columns = {own.column for own in suspects if own.kind in COLUMN_KINDS and own.column is not None}
    names = {own.client: None for own in suspects if own.kind not in COLUMN_KINDS}
    if 0 < len(columns) <= MOST_LEFT_OUT:
        found.append(_leaving_out(given, "data.drop", sorted(columns), "until then, without these columns"))
    if 0 < len(names) <= MOST_LEFT_OUT and len(names) < clients - 1:
        found.append(_leaving_out(given, "data.held_out", names, "until then, without these clients"))
    if inputs.found or labelling.found:
        found.append(Advice(f"fedatlas train {given} --use group", "a model for each group that gains by it"))
    if inputs.found:
        found.append(_personal(given, images))
    if label_shares.found:
        found.append(Advice(f"fedatlas compare fedavg feddisco {given}", "one model that allows for label shares"))
    return tuple(found) or (Advice(f"fedatlas train {given}", "nothing speaks against one model for all"),)


def _personal(given: str, images: bool) -> Advice:
    """Return the comparison with a method that keeps a part of the model with each client; it fits the model."""
    if images:
        norms = "--model cnn --set model.norm=batch"
        return Advice(f"fedatlas compare fedavg fedbn {given} {norms}", "one model, with norms that fit each client")
    return Advice(f"fedatlas compare fedavg fedper {given}", "one model, with a head for each client")


def _leaving_out(given: str, setting: str, names: Collection[str], why: str) -> Advice:
    return Advice(f"fedatlas train {given} --set {shlex.quote(f'{setting}={json.dumps(list(names))}')}", why)
