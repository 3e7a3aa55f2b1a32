"""The client's side: a ClientApp that runs the simulator's functions on the node's data.

query.hello      the client's name, the number of its examples and their form
query.introduce  the client's introduction: notes for the algorithm's parts, before the first round
query.losses     the client's losses under several models
query.survey     notes of the surveying terms, before a round's training
train            a round of training, after a test of the received model where one is due; memory stays on the node
evaluate         the score of a model, with the client's personal parameters, on the client's test part
query.adapt      a newcomer's tuning of personal parameters, see adapt.py
query.row, query.pairs, train.index, query.index    the client's part in an atlas, see atlas.py
query.sums, query.cells    the client's part in the summary of an atlas, see atlas.py
query.figures, query.hashes, query.card    the client's part in a check of all clients' data, see check.py
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedatlas.client.model import PERSONAL, branch_of, with_branch
from fedatlas.client.runner import ClientRunner
from fedatlas.client.scoring import client_losses
from fedatlas.errors import DataError, RunFolderError, TrainingError
from fedatlas.flower.node import atlas, check
from fedatlas.flower.node.adapt import adapt
from fedatlas.flower.node.gate import Gate
from fedatlas.flower.node.line import NodeError
from fedatlas.flower.node.memory import LostMemoryError
from fedatlas.flower.node.policy import PolicyError
from fedatlas.flower.node.request import Request, load_config
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import (
    ABOUT,
    BUFFERS,
    NOTE,
    SHARED,
    TESTED,
    pack_losses,
    pack_memory,
    pack_score,
    pack_upload,
    plain,
    tensors,
    unpack_assignment,
    unpack_candidates,
    values,
)
from fedatlas.flower.protocol.wire import folded, unfolded
from fedatlas.parts.types import Assignment, Memory
from fedatlas.seeds import repeatable

Handler = Callable[[Request, RecordDict], RecordDict]


def describe_error(error: Exception) -> str:
    """Return a description of an error for the server, without the error's text: that may hold a path or a value.

    The whole error is in the node's log.
    """
    if isinstance(error, TrainingError | PolicyError):
        return str(error)
    if isinstance(error, LostMemoryError):
        return f"this client's memory of round {error.fields['round']} is gone; the node's log says what to do"
    kinds = {DataError: "its data cannot be used", RunFolderError: "its memory cannot be read or saved"}
    what = next((words for kind, words in kinds.items() if isinstance(error, kind)), "the request failed")
    return f"{what} ({type(error).__name__}); the node's log says why"


def hello(request: Request, _: RecordDict) -> RecordDict:
    """Return the client's name, its counts of examples and their form."""
    node, client = request.node, request.federation.clients[0]
    form = DataForm.of(request.federation.data, client.train[:0] if node.held_out else client.train)
    if form.sums is not None and node.told is not None and not node.held_out:
        form = replace(form, sums=node.told.sums(form.sums))
    about: dict[str, Any] = {
        "name": node.name,
        "num_train": len(client.train),
        "num_test": len(client.test),
        "held_out": node.held_out,
        "domain": client.domain or "",
        "position": -1 if node.position is None else node.position,
        **form.values(),
    }
    if form.sums is not None and len(form.sums.count):
        about["num_summed"] = int(form.sums.count[0] + form.sums.missing[0])
    return RecordDict({ABOUT: plain(about)})


def introduce(request: Request, _: RecordDict) -> RecordDict:
    """Return the client's introduction to the algorithm's parts."""
    return RecordDict(dict(pack_memory(NOTE, request.runner().introduce(0))))


def survey(request: Request, received: RecordDict) -> RecordDict:
    """Return the notes of the surveying terms."""
    assignment = unpack_assignment(received)
    answer = request.runner().survey(assignment, _given(assignment, request.memory()))
    return RecordDict(dict(pack_memory(NOTE, answer)))


def train(request: Request, received: RecordDict) -> RecordDict:
    """Train for a round, save the client's memory, and return the upload; test the received model first if asked to."""
    assignment, runner = unpack_assignment(received), request.runner()
    before = request.memory()
    tested = _tested(runner, assignment, before) if request.about.get("test") else {}
    upload, memory = runner.train(assignment, _given(assignment, before))
    after = with_branch(before, memory, assignment.branch, forgets=assignment.forgets)
    remembers = bool(after or before)
    if remembers:
        keep = [str(version) for version in request.about["keep"]]
        request.store.put(assignment.version, after, keep)
    return RecordDict({**pack_upload(upload, remembers=remembers), **tested})


def _tested(runner: ClientRunner, assignment: Assignment, memory: Memory) -> Mapping[str, Any]:
    """Return the score of the model that the client received, with the personal parameters that it has."""
    if not len(runner.data(0).client.test):
        return pack_score(None, TESTED)
    own = branch_of(memory, "").get(PERSONAL, {})
    return pack_score(runner.score_client(assignment.shared, assignment.buffers, own, 0), TESTED)


def _given(assignment: Assignment, memory: Memory) -> Memory:
    """Return the part of the client's memory with which it trains: for its group's model, or for the common one."""
    return branch_of(memory, "" if assignment.restarts else assignment.branch)


def losses(request: Request, received: RecordDict) -> RecordDict:
    """Return the client's losses under some models, on its training examples or on those that it holds back."""
    runner, memory, held_back = request.runner(), request.memory(), bool(request.about["held_back"])
    rows = [
        runner.example_losses(shared, buffers, branch_of(memory, branch).get(PERSONAL, {}), 0, held_back)
        for shared, buffers, branch in unpack_candidates(received)
    ]
    return pack_losses(client_losses(rows), [str(name) for name in request.about["wanted"]])


def evaluate(request: Request, received: RecordDict) -> RecordDict:
    """Return the score of a model with the client's personal parameters."""
    runner = request.runner()
    if not len(runner.data(0).client.test):
        return pack_score(None)
    shared, buffers = (tensors(received.array_records[name]) for name in (SHARED, BUFFERS))
    own = branch_of(request.memory(), request.about["branch"]).get(PERSONAL, {})
    return pack_score(runner.score_client(shared, buffers, own, 0))


def answered(action: Handler, config: Path | str, message: Message, context: Context) -> RecordDict:
    """Return the reply to a message, if the node's policy allows it; the audit log has a line about it either way."""
    received = unfolded(message.content)
    about = values(received, ABOUT)
    task = str(context.run_config.get("task", "train"))
    gate = Gate(context.node_config, message.metadata.message_type, about, task)
    try:
        settings = load_config(config, context)
        gate.check_config(settings)
        request = Request(settings, context, about, gate.policy)
        client, data = request.federation.clients[0], request.federation.data
        gate.check_data(settings, len(client.train), is_table=data.table is not None, algorithm=request.algorithm)
        request.federation = gate.shown(request.federation)
        with repeatable(request.device):
            reply = action(request, received)
        gate.check_reply(reply)
        if request.node.told is not None:
            request.node.told.keep()
    except Exception as error:
        gate.refused(error)
        raise
    gate.wrote(reply)
    return reply


def answer(config: Path | str, message: Message, context: Context) -> Message:
    """Return the reply to a message of a run as it travels, by the run's config file."""
    reply: Message = make_client_app(config)(message, context)
    return Message(folded(reply.content), reply_to=message) if reply.has_content() else reply


def make_client_app(config: Path | str) -> ClientApp:
    """Return the ClientApp of a run that does the work in this process; ``front`` has one that hands it over."""
    app = ClientApp()

    def handle(action: Handler) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                return Message(answered(action, config, message, context), reply_to=message)
            except Exception as error:  # the data, a loader or a part may raise anything; the log has it all
                traceback.print_exc()
                raise NodeError(describe_error(error)) from None

        return answer

    app.query("hello")(handle(hello))
    app.query("introduce")(handle(introduce))
    app.query("losses")(handle(losses))
    app.query("survey")(handle(survey))
    app.train()(handle(train))
    app.evaluate()(handle(evaluate))
    app.query("row")(handle(atlas.row))
    app.query("sums")(handle(atlas.sums))
    app.query("cells")(handle(atlas.cells))
    app.query("pairs")(handle(atlas.pairs))
    app.query("index")(handle(atlas.index_row))
    app.query("figures")(handle(check.figures))
    app.query("hashes")(handle(check.hashes))
    app.query("card")(handle(check.card))
    app.query("adapt")(handle(adapt))
    app.train("index")(handle(atlas.train_index))
    return app
