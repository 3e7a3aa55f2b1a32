"""An atlas made over the network before round 1: each client encodes its examples on its node.

federated   FedAvg trains the index network by the usual rounds; no example's vector leaves a client
global      each client uploads some pairs (example vector, label) and the server trains; only if the config says so
others      each client computes its row on its node and sends it; where the atlas has a summary, its sums and its cells
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.client2vec.index import index_seed
from fedatlas.atlas.client2vec.network import DSAIGN
from fedatlas.atlas.client2vec.train_federated import index_algorithm
from fedatlas.atlas.client2vec.train_global import train_globally
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.registry import SOURCES
from fedatlas.atlas.settings import AtlasSettings
from fedatlas.atlas.sources import check_task, summary_by_class
from fedatlas.atlas.summary import Summary
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Client, Federation
from fedatlas.errors import unknown_name
from fedatlas.flower.protocol.checks import check_arrays
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.flower.protocol.expectations import Expectations
from fedatlas.flower.protocol.messages import BadReplyError
from fedatlas.flower.server.exchange import Exchange
from fedatlas.flower.server.questions import Questions
from fedatlas.flower.server.transport import FlowerClients
from fedatlas.parts.disclosure import Shape, Shapes, shapes
from fedatlas.parts.types import Tensors
from fedatlas.training.progress import Silent
from fedatlas.training.rounds import play
from fedatlas.training.settings import TrainingPlan

PAIRS = "pairs"


class NetworkAtlas:
    """Makes an atlas of a run's clients."""

    def __init__(
        self,
        exchange: Exchange,
        members: Sequence[Member],
        form: DataForm,
        options: Mapping[str, Any],
        about: Mapping[str, Any],
    ) -> None:
        self.exchange, self.members, self.form = exchange, list(members), form
        self.questions = Questions(exchange, self.members, {**about, **form.values()})
        how = AtlasSettings(**options)
        self.source, self.strategy, self.epochs, self.seed = how.source, how.strategy, how.epochs, how.seed
        self.encoder, self.encoder_options = how.encoder, how.encoder_options or {}
        self.settings = how.index_settings()
        if self.source not in SOURCES:
            raise unknown_name("source of an atlas", self.source, SOURCES)
        check_task(self.source, form.task)

    def make(self) -> Atlas:
        """Return the atlas."""
        if self.source != "client2vec":
            labels = self.source == "label-histogram"
            form = {"label": _row(len(self.form.classes))} if labels else {"feature": _row(None)}
            rows = self._rows("query.row", {}, form)
            return self._atlas(rows, {"source": self.source.replace("-", "_")}, self._summary())
        sample = self._sample()
        own = index_seed(self.seed)
        network = DSAIGN(sample.examples.shape[1], sample.classes.shape[1], self.settings, seed=own)
        targets = network.targets(sample.classes)
        train = self._train_globally if self.strategy == "global" else self._train_federated
        loss = train(network, targets, own)
        trained = {name: parameter.detach() for name, parameter in network.named_parameters()}
        form = {"feature": _row(network.width), "label": _row(network.class_width)}
        rows = self._rows("query.index", trained, form)
        provenance = {
            "source": "client2vec",
            "encoder": sample.encoder,
            "strategy": self.strategy,
            "epochs": self.epochs,
            "seed": self.seed,
            "training_clients": sum(not member.held_out for member in self.members),
            "last_loss": loss,
            "settings": {**asdict(self.settings), "losses": list(self.settings.losses)},
            "network": network.describe(),
        }
        return self._atlas(rows, provenance)

    def _summary(self) -> Summary | None:
        """Return the summary of all members, if the source has one."""
        labelled = summary_by_class(self.source)
        return None if labelled is None else self.questions.summary(self.form, labelled)

    def _sample(self) -> Embeddings:
        """Return embeddings of random examples, for their widths and for the vectors of the classes."""
        encoder = make_encoder(self.encoder, **self.encoder_options)
        return encoder.encode(self.form.stand_in(self.members[:1], [2]), progress=False)

    def _train_federated(self, network: DSAIGN, targets: Tensor, own: int) -> float:
        algorithm = index_algorithm(self.settings, targets)
        expected = Expectations(change=shapes({**dict(network.named_parameters())}), buffers={})
        clients = FlowerClients(
            self.exchange, algorithm, network, self.members, expected, about=self.questions.about, action="index"
        )
        num_clients = sum(not member.held_out for member in self.members)
        size = TrainingPlan(rounds=self.epochs, cohort=self.settings.cohort).cohort_size(num_clients)
        loss = 0.0
        for state, record, *_ in play(algorithm, clients, rounds=self.epochs, cohort_size=size, seed=own):
            loss = sum(record.weights[client] * own_loss for client, own_loss in record.losses.items())
            self.exchange.say(f"index: round {state.round} of {self.epochs}, loss {loss:.3f}")
        network.load_state_dict({**state.shared, **state.buffers}, strict=False)
        return loss

    def _train_globally(self, network: DSAIGN, targets: Tensor, own: int) -> float:
        members = [member for member in self.members if not member.held_out]
        wanted: Shapes = {"inputs": Shape(torch.float32, (None, network.width)), "labels": Shape(torch.int64, (None,))}
        found = self.questions.ask("query.pairs", {}, members, lambda records: self._pairs(records, wanted))
        inputs = torch.cat([found[m.name]["inputs"] for m in members])
        labels = torch.cat([found[m.name]["labels"] for m in members])
        parts = torch.arange(len(labels)).split([len(found[m.name]["labels"]) for m in members])
        clients = tuple(Client(name=m.name, train=part, test=part[:0]) for m, part in zip(members, parts, strict=True))
        data = Dataset(name="pairs", inputs=inputs, labels=labels, classes=self.form.classes)
        pairs = Federation(data=data, clients=clients)
        cpu = torch.device("cpu")
        return train_globally(network, pairs, targets, epochs=self.epochs, seed=own, device=cpu, progress=Silent())

    def _pairs(self, records: RecordDict, wanted: Shapes) -> Tensors:
        found = check_arrays(records, PAIRS, wanted)
        labels = found["labels"]
        if not len(labels) or len(labels) != len(found["inputs"]) or len(labels) > self.settings.upload:
            limit, inputs = self.settings.upload, len(found["inputs"])
            raise BadReplyError(
                f"{len(labels)} labels for {inputs} vectors; wanted as many, at least 1 and at most {limit}",
                code="wrong-count",
                got=(len(labels), inputs),
                limit=limit,
            )
        if int(labels.min()) < 0 or int(labels.max()) >= len(self.form.classes):
            raise BadReplyError(
                f"labels must be in [0, {len(self.form.classes)}), got {int(labels.min())} to {int(labels.max())}",
                code="out-of-range",
                got=(int(labels.min()), int(labels.max())),
            )
        return found

    def _rows(self, kind: str, shared: Tensors, form: Shapes) -> dict[str, Tensors]:
        return self.questions.rows(kind, shared, form)

    def _atlas(
        self, rows: Mapping[str, Tensors], provenance: Mapping[str, Any], summary: Summary | None = None
    ) -> Atlas:
        halves = list(next(iter(rows.values())))
        return Atlas(
            names=tuple(m.name for m in self.members),
            halves={half: torch.stack([rows[m.name][half] for m in self.members]) for half in halves},
            sizes=torch.tensor([m.num_train for m in self.members]),
            domains=tuple(m.domain for m in self.members),
            provenance={**provenance, "federation": "over a network"},
            summary=summary,
        )


def _row(width: int | None) -> Shape:
    return Shape(torch.float32, (width,))
