"""The client's side: a ClientApp that runs the same functions as the simulator, on the node's own data.

query.hello      who the client is, how many examples it has and of what form
query.introduce  what the algorithm's parts must know of a client before the first round
query.survey     what its terms tell before a round's training
train            a round of training; what the client remembers stays on the node
evaluate         how a model with the client's own parameters does on the client's test part
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedatlas.algorithm import Algorithm
from fedatlas.atlas.atlas import Atlas
from fedatlas.client import PERSONAL
from fedatlas.config import Config
from fedatlas.errors import UsageError
from fedatlas.flower.form import DataForm
from fedatlas.flower.node import Node, open_node
from fedatlas.flower.packets import (
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
from fedatlas.flower.shelf import ContextShelf, FolderShelf, Shelf
from fedatlas.simulate import ClientRunner, repeatable
from fedatlas.training import make_model

Handler = Callable[["ClientSide", RecordDict], RecordDict]


class ClientSide:
    """One message's work: the node, opened, with what the message says of the run."""

    def __init__(self, config: Config, context: Context, about: Mapping[str, Any]) -> None:
        self.config, self.about = config, about
        self.node: Node = open_node(context.node_config, config)
        self.shelf: Shelf = ContextShelf(context.state)
        if self.node.memory is not None:
            self.shelf = FolderShelf(self.node.memory / str(about.get("run", "run")))
        if "kind" in about:
            data = DataForm.from_values(about).adopt(self.node.federation.data)
            self.federation = replace(self.node.federation, data=data)
        else:
            self.federation = self.node.federation
        self.device = torch.device(self.node.device)

    def algorithm(self) -> Algorithm:
        """Return the run's algorithm; of an atlas the client knows the form only, and is told what it needs."""
        return self.config.algorithm(atlas_of_form(str(self.about["atlas"]), self.node.name))

    def runner(self) -> ClientRunner:
        """Return the functions that train and test the client."""
        algorithm, seeds = self.algorithm(), self.config.seeds()
        name, options = self.config.model()
        federation = self.federation.to(self.device)
        network = make_model(name, options, federation, algorithm, seeds.model).to(self.device)
        runner = ClientRunner(algorithm, network, federation, self.config.work(), seeds.batches)
        runner.data(0).place = int(self.about["place"])
        return runner

    def memory(self) -> Any:
        """Return what the client remembers, as of the round that the server says is valid."""
        try:
            return self.shelf.take(int(self.about["version"]))
        except UsageError:
            if self.node.forget:
                return {}
            raise


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
            side = ClientSide(load_config(config, context), context, values(message.content, ABOUT))
            with repeatable(side.device):
                return Message(action(side, message.content), reply_to=message)

        return answer

    app.query("hello")(handle(hello))
    app.query("introduce")(handle(introduce))
    app.query("survey")(handle(survey))
    app.train()(handle(train))
    app.evaluate()(handle(evaluate))
    return app


def load_config(path: Path | str, context: Context) -> Config:
    """Return a run's config, with the run's own settings (``section.key=value``, separated by ``;``) on top."""
    settings = str(context.run_config.get("settings", ""))
    return Config.load(path, [part.strip() for part in settings.split(";") if part.strip()])


def atlas_form(atlas: Atlas | None) -> str:
    """Return what a client must know of an atlas to build the algorithm: halves, widths and the index's strategy."""
    if atlas is None:
        return ""
    widths = {half: table.shape[1] for half, table in atlas.halves.items()}
    return json.dumps({"widths": widths, "strategy": atlas.provenance.get("strategy")})


def atlas_of_form(form: str, name: str) -> Atlas | None:
    """Return an atlas of one client, with zeros for vectors: it has the form of the server's, and none of its rows."""
    if not form:
        return None
    said = json.loads(form)
    halves = {half: torch.zeros(1, int(width)) for half, width in said["widths"].items()}
    provenance = {"strategy": said["strategy"]}
    return Atlas(names=(name,), halves=halves, sizes=torch.ones(1, dtype=torch.int64), provenance=provenance)
