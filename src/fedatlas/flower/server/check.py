"""``check`` over a network: the simulator's diagnosis, from what clients send by declaration; each gets its card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedatlas.atlas.doctor.advice import Commands
from fedatlas.atlas.doctor.check import Told, diagnose
from fedatlas.atlas.doctor.diagnosis import Diagnosis
from fedatlas.atlas.doctor.figures import FIGURES, HASHES, ClientFigures, feature_names, num_described
from fedatlas.config.config import Config
from fedatlas.data.table import NUMBER
from fedatlas.data.task import require_classes
from fedatlas.errors import DataError
from fedatlas.flower.protocol.checks import check_arrays
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.flower.protocol.messages import ABOUT, BadReplyError, plain
from fedatlas.flower.server.exchange import Exchange, NetworkSettings
from fedatlas.flower.server.gathering import gather
from fedatlas.flower.server.questions import ROW, Questions, resolved
from fedatlas.parts.disclosure import Shapes
from fedatlas.runs.files import atomic_write

CHECKED = "check.json"
"""The diagnosis in the run's folder."""


def check_clients(config: Config, grid: Grid, folder: Path) -> Diagnosis:
    """Look at the data of all connected clients, write the diagnosis, and send every client its card."""
    settings = NetworkSettings(**config.values["flower"])
    exchange = Exchange(grid, settings, _say)
    members, form = gather(exchange, settings)
    require_classes(form.task, "a check of data", "There is none for other tasks yet.")
    _say(f"{len(members)} clients: {', '.join(member.name for member in members)}")
    questions = Questions(exchange, members, form.values(), stage="check")
    told = Told(
        data="the clients of this network",
        images=form.kind == "image",
        names=tuple(member.name for member in members),
        classes=form.classes,
        columns=columns_of(form),
        summary=questions.summary(form, labelled=True),
        figures=_figures(questions, form, members),
        keys=_keys(questions, members),
    )
    found = diagnose(told, Commands.over_network())
    sent = {name: own["up"] for name, own in exchange.log(0).bytes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / CHECKED, json.dumps({**found.to_dict(), "bytes_sent": sent}, indent=1).encode())
    for line in found.lines():
        _say(line)
    cards = {name: RecordDict({ABOUT: plain({"card": found.card(name)})}) for name in told.names}
    questions.tell("query.card", cards, lambda records: None)
    _say("every client has its card: card.txt in its memory folder, and in its node's log")
    return found


def columns_of(form: DataForm) -> tuple[str, ...]:
    """Return the names of the columns of numbers, as clients send figures about them."""
    if form.preparation is not None:
        return tuple(column.name for column in form.preparation.columns if column.kind == NUMBER)
    return feature_names(form.shape[0] if form.kind == "features" else 0)


def _figures(questions: Questions, form: DataForm, members: Sequence[Member]) -> list[ClientFigures]:
    wanted = resolved(FIGURES, {"classes": len(form.classes), "columns": num_described(columns_of(form))})
    expected = {member.name: member.num_train for member in members}

    def read(records: RecordDict) -> ClientFigures:
        try:
            return ClientFigures.from_tensors(check_arrays(records, ROW, wanted))
        except DataError as error:
            raise BadReplyError(str(error), code=error.code, **error.fields) from None

    found = questions.ask("query.figures", {}, members, read)
    for name, own in found.items():
        if sum(own.label_counts) != expected[name]:
            raise DataError(
                f"{name} tells the classes of {sum(own.label_counts)} training examples, and joined with "
                f"{expected[name]}; start its node again.",
                code="wrong-count",
                client=name,
                got=sum(own.label_counts),
                wanted=expected[name],
            )
    return [found[member.name] for member in members]


def _keys(questions: Questions, members: Sequence[Member]) -> list[NDArray[np.int64]]:
    """Return the keyed hashes of clients that were given a key; the first one is of nothing, and tells keys apart."""
    wanted: Shapes = resolved([HASHES], {})
    found = questions.ask("query.hashes", {}, members, lambda records: check_arrays(records, ROW, wanted)["hashes"])
    hashes = {name: own.numpy() for name, own in found.items() if len(own)}
    if not hashes:
        return []
    _say(_who_is_compared(hashes, members))
    none = np.zeros(0, np.int64)
    return [hashes[member.name][1:] if member.name in hashes else none for member in members]


def _who_is_compared(hashes: Mapping[str, NDArray[np.int64]], members: Sequence[Member]) -> str:
    keys = {int(own[0]) for own in hashes.values()}
    if len(keys) > 1:
        return f"copies: the nodes have {len(keys)} different keys; examples are compared where keys are the same"
    return f"copies: examples of {len(hashes)} of {len(members)} clients are compared, by keyed hashes"


def _say(line: str) -> None:
    print(line, flush=True)
