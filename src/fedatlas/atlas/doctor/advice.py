"""What to do about a federation, as commands to run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from fedatlas.atlas.doctor.contents import COLUMN_KINDS, COPIES
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.verdict import Finding

MOST_LEFT_OUT = 20
"""Suspects, or columns, that a command leaves out by name."""
NORMS = "--model cnn --set model.norm=batch"


class Advice(NamedTuple):
    """A command, and what it is good for."""

    command: str
    why: str


class Commands(NamedTuple):
    """How clients are checked and trained: by commands in a simulation or over a network, or in Python."""

    check: str
    train: str
    group: str
    """Trains a model for each group."""
    compare: dict[str, str]
    """Compares FedAvg with another algorithm, or trains by that one, by its name."""
    network: bool = False
    python: bool = False
    dropped: tuple[str, ...] = ()
    """Columns that are left out already."""
    held_out: tuple[str, ...] = ()
    """Clients that never train already."""

    @classmethod
    def here(cls, given: str, dropped: Sequence[str] = (), held_out: Sequence[str] = ()) -> Commands:
        """Return the commands of a simulation; ``given`` are the options that name the data.

        >>> Commands.here("--data heart").check
        'fedatlas check --data heart'
        """
        train = f"fedatlas train {given}"
        compare = {name: f"fedatlas compare fedavg {name} {given}" for name in ("feddisco", "fedper")}
        compare["fedbn"] = f"fedatlas compare fedavg fedbn {given} {NORMS}"
        return cls(
            f"fedatlas check {given}",
            train,
            f"{train} --use group",
            compare,
            dropped=tuple(dropped),
            held_out=tuple(held_out),
        )

    @classmethod
    def over_network(cls, app: str = "APP") -> Commands:
        """Return the commands of a federation of machines, which an app trains.

        >>> Commands.over_network().check
        'fedatlas flower check APP'
        """
        train = f"fedatlas flower run {app}"
        group = _settings('atlas.make={ source = "class-prototypes" }', 'atlas.use=["group"]')
        compare = {name: f"{train} --set algorithm.name={name}" for name in ("feddisco", "fedper")}
        compare["fedbn"] = f"{train} --set algorithm.name=fedbn --set model.name=cnn --set model.norm=batch"
        return cls(f"fedatlas flower check {app}", train, f"{train} {group}", compare, network=True)

    @classmethod
    def in_python(cls) -> Commands:
        """Return calls for a federation that Python made: no options would name the same clients.

        >>> Commands.in_python().check
        'fedatlas.check(federation)'
        """
        atlas = 'fedatlas.make_atlas(federation, source="class-prototypes")'
        compare = {name: f'fedatlas.compare(federation, ["fedavg", "{name}"])' for name in ("feddisco", "fedper")}
        norms = 'fedatlas.Settings(model="cnn", model_options={"norm": "batch"})'
        compare["fedbn"] = f'fedatlas.compare(federation, ["fedavg", "fedbn"], {norms})'
        group = f"fedatlas.train(federation, fedatlas.algorithms.grouped(atlas={atlas}))"
        train = 'fedatlas.train(federation, "fedavg")'
        return cls("fedatlas.check(federation)", train, group, compare, python=True)

    def without(self, columns: Sequence[str], names: Sequence[str], everyone: Sequence[str]) -> list[str]:
        """Return the commands that train without some columns and some clients; none if a list would be too long."""
        columns = columns if len(columns) <= MOST_LEFT_OUT else ()
        names = names if len(names) <= MOST_LEFT_OUT and len(names) < len(everyone) - 1 else ()
        if self.python:
            read = f"# read the table with drop={json.dumps(columns)}, then federate and train again"
            train = f'fedatlas.train(federation.hold_out({json.dumps(names)}), "fedavg")'
            return [*([read] if columns else []), *([train] if names else [])]
        # A setting that is given twice counts as it was given last.
        left_out = [f"data.drop={_texts(self.dropped, columns)}"] if columns else []
        if names and not self.network:
            left_out.append(f"data.held_out={_texts(self.held_out, names)}")
        kept = [name for name in everyone if name not in names]
        if names and self.network and len(kept) <= MOST_LEFT_OUT:
            left_out.append(f"flower.clients={_texts(kept)}")
        return [f"{self.train} {_settings(*left_out)}"] if left_out else []


def advise(
    commands: Commands,
    suspects: Sequence[Suspect],
    clients: Sequence[str],
    *,
    images: bool = True,
    inputs: Finding,
    label_shares: Finding,
    labelling: Finding,
) -> tuple[Advice, ...]:
    """Return commands, the most urgent first.

    Suspects are to be repaired. Until then wrong columns, or clients that are wrong otherwise, are left out; but no
    client for copies, as a few rows are the whole fault, and whose they are is not known. Groups train a model each
    where inputs or labelling differ. Other label shares need one model, by a method that allows for them.
    """
    found = []
    if suspects:
        found.append(Advice(commands.check, "check once more, after the repair"))
    columns = sorted({own.column for own in suspects if own.kind in COLUMN_KINDS and own.column is not None})
    names = list(dict.fromkeys(own.client for own in suspects if own.kind not in (*COLUMN_KINDS, *COPIES)))
    found += [Advice(command, "until repaired") for command in commands.without(columns, names, clients)]
    if inputs.found or labelling.found:
        found.append(Advice(commands.group, "a model for each group that gains"))
    if inputs.found:
        # The method keeps a part of the model with each client that the data's usual model has.
        way, why = ("fedbn", "each client's own norms") if images else ("fedper", "each client's own last layer")
        found.append(Advice(commands.compare[way], why))
    if label_shares.found:
        found.append(Advice(commands.compare["feddisco"], "allows for shares of labels"))
    return tuple(found) or (Advice(commands.train, "nothing speaks against one model for all"),)


def _texts(*parts: Sequence[str]) -> str:
    """Return the texts of all parts as one list of TOML, each once.

    >>> _texts(["old"], ["new", "old"])
    '["old", "new"]'
    """
    # TOML does not take the pairs of escapes that JSON writes for characters beyond 16 bits.
    return json.dumps(list(dict.fromkeys(text for part in parts for text in part)), ensure_ascii=False)


def _settings(*changes: str) -> str:
    return " ".join(f"--set {shlex.quote(change)}" for change in changes)
