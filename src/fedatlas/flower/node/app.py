"""The client's side: a ClientApp that runs the same functions as the simulator, on the node's own data.

query.hello      who the client is, how many examples it has and of what form
query.introduce  what the algorithm's parts must know of a client before the first round
query.survey     what its terms tell before a round's training
train            a round of training; what the client remembers stays on the node
evaluate         how a model with the client's own parameters does on the client's test part
query.adapt      a newcomer's tuning of what the algorithm keeps personal, see client_adapting.py
query.row, query.pairs, train.index, query.index    the client's part in an atlas, see client_atlas.py
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedatlas.client.model import PERSONAL
from fedatlas.errors import DataError, RunFolderError, TrainingError
from fedatlas.flower.node import adapt as client_adapting
from fedatlas.flower.node import atlas as client_atlas
from fedatlas.flower.node.memory import LostMemoryError
from fedatlas.flower.node.request import ClientSide, load_config
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import (
    ABOUT,
    BUFFERS,
    NOTE,
    SHARED,
    pack_memory,
    pack_score,
    pack_upload,
    plain,
    tensors,
    unpack_assignment,
    values,
)
from fedatlas.seeds import repeatable

Handler = Callable[[ClientSide, RecordDict], RecordDict]


class NodeError(Exception):
    """What a server hears of a failure on a node."""


def told(error: Exception) -> str:
    """Return what a server may hear of an error: what others say may hold a file's name, a path or a value.

    The error itself is in the node's own log.
    """
    if isinstance(error, TrainingError):
        return str(error)
    if isinstance(error, LostMemoryError):
        return f"this client's memory of round {error.round} is gone; the node's own log says what to do"
    kinds = {DataError: "its data cannot be used", RunFolderError: "what its client remembers cannot be read or kept"}
    what = next((words for kind, words in kinds.items() if isinstance(error, kind)), "it cannot do what was asked")
    return f"{what} ({type(error).__name__}); the node's own log says why"


def hello(side: ClientSide, _: RecordDict) -> RecordDict:
    """Say who the client is and of what form its examples are."""
    node, client = side.node, side.node.federation.clients[0]
    about: dict[str, Any] = {
        "name": node.name,
        "num_train": len(client.train),
        "num_test": len(client.test),
        "held_out": node.held_out,
        "domain": client.domain or "",
        "position": -1 if node.position is None else node.position,
        **DataForm.of(node.federation.data).values(),
    }
    return RecordDict({ABOUT: plain(about)})


def introduce(side: ClientSide, _: RecordDict) -> RecordDict:
    """Say what the algorithm's parts ask before the first round."""
    return RecordDict(dict(pack_memory(NOTE, side.runner().introduce(0))))


def survey(side: ClientSide, received: RecordDict) -> RecordDict:
    """Answer the surveying terms."""
    answer = side.runner().survey(unpack_assignment(received), side.memory())
    return RecordDict(dict(pack_memory(NOTE, answer)))


def train(side: ClientSide, received: RecordDict) -> RecordDict:
    """Train, keep what the client remembers, and answer."""
    assignment = unpack_assignment(received)
    upload, memory = side.runner().train(assignment, side.memory())
    if memory:
        keep = [int(round) for round in side.about["keep"]]
        side.shelf.put(assignment.round, memory, keep)
    return pack_upload(upload, remembers=bool(memory))


def evaluate(side: ClientSide, received: RecordDict) -> RecordDict:
    """Test a model with the client's own parameters."""
    runner = side.runner()
    if not len(runner.data(0).client.test):
        return pack_score(None)
    shared, buffers = (tensors(received.array_records[name]) for name in (SHARED, BUFFERS))
    return pack_score(runner.score_client(shared, buffers, side.memory().get(PERSONAL, {}), 0))


def make_client_app(config: Path | str) -> ClientApp:
    """Return the ClientApp of a run, from its config file.

    >>> app = make_client_app("run.toml")  # doctest: +SKIP
    """
    app = ClientApp()

    def handle(action: Handler) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                side = ClientSide(load_config(config, context), context, values(message.content, ABOUT))
                with repeatable(side.device):
                    return Message(action(side, message.content), reply_to=message)
            except Exception as error:  # whatever the data, a loader or a part raises; the log has it all
                traceback.print_exc()
                raise NodeError(told(error)) from None

        return answer

    app.query("hello")(handle(hello))
    app.query("introduce")(handle(introduce))
    app.query("survey")(handle(survey))
    app.train()(handle(train))
    app.evaluate()(handle(evaluate))
    app.query("row")(handle(client_atlas.row))
    app.query("pairs")(handle(client_atlas.pairs))
    app.query("index")(handle(client_atlas.index_row))
    app.query("adapt")(handle(client_adapting.adapt))
    app.train("index")(handle(client_atlas.train_index))
    return app
