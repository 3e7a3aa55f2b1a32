"""What to do about a federation, as commands to run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.verdict import Finding

MOST_LEFT_OUT = 20
"""Suspects that a command leaves out by name."""


def advise(
    given: str,
    suspects: Sequence[Suspect],
    clients: int,
    *,
    inputs: Finding,
    label_shares: Finding,
    labelling: Finding,
) -> tuple[str, ...]:
    """Return commands, the most urgent first; ``given`` are the options that name the data.

    Suspects are to be repaired, and until then left out. Groups train a model each where inputs or labelling differ.
    Other label shares need one model, by a method that allows for them.
    """
    commands = []
    if suspects:
        commands.append(f"fedatlas check {given}  # once more, after a repair")
        names = list(dict.fromkeys(own.client for own in suspects))
        if len(names) <= MOST_LEFT_OUT and len(names) < clients - 1:
            setting = shlex.quote(f"data.held_out={json.dumps(names)}")
            commands.append(f"fedatlas train {given} --set {setting}  # until then, without them")
    if inputs.found or labelling.found:
        commands.append(f"fedatlas train {given} --use group")
    if inputs.found:
        commands.append(f"fedatlas compare fedavg fedbn {given}")
    if label_shares.found:
        commands.append(f"fedatlas compare fedavg feddisco fedlc {given}")
    return tuple(commands) or (f"fedatlas train {given}",)
