"""A client's part in making an atlas: it encodes its examples on its node, and sends the data that the source needs."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from fedatlas.atlas.client2vec.index import index_client, index_seed, training_pairs
from fedatlas.atlas.client2vec.network import DSAIGN
from fedatlas.atlas.client2vec.train_federated import index_algorithm, index_work
from fedatlas.atlas.doctor.check import embeddings_of
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.settings import AtlasSettings
from fedatlas.atlas.sources import make_atlas, summary_by_class
from fedatlas.atlas.summary import Whitening, cells_of_client, sums_of_client
from fedatlas.client.runner import ClientRunner
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.flower.node.request import CHECK, Request
from fedatlas.flower.protocol.messages import SHARED, arrays, pack_upload, tensors, unpack_assignment
from fedatlas.flower.server.atlas import PAIRS
from fedatlas.flower.server.questions import ROW


class ClientIndex:
    """The client's examples as vectors, and the index network that reads them."""

    def __init__(self, request: Request) -> None:
        options = _atlas_settings(request)
        self.federation, self.device = request.federation, request.device
        self.settings = AtlasSettings(**options).index_settings()
        self.strategy = options["strategy"]
        self.seed = index_seed(int(options["seed"]))
        encoder = make_encoder(options.get("encoder", "builtin"), **options.get("encoder_options") or {})
        self.embeddings: Embeddings = encoder.encode(self.federation, progress=False)
        widths = (self.embeddings.examples.shape[1], self.embeddings.classes.shape[1])
        self.network = DSAIGN(*widths, self.settings, seed=self.seed)

    def pairs(self, limit: int | None) -> Federation:
        """Return the client with vectors in place of examples, at most ``limit`` of them."""
        return training_pairs(self.federation, self.network.inputs(self.embeddings.examples), limit, self.seed)


def _atlas_settings(request: Request) -> dict[str, Any]:
    options = request.config.atlas_settings()
    if options is None:
        raise UsageError("the run's config makes no atlas; set atlas.make.", code="missing-option", option="atlas.make")
    return options


def row(request: Request, _: RecordDict) -> RecordDict:
    """Return the client's row of a plain atlas."""
    options = _atlas_settings(request)
    atlas = make_atlas(request.federation, **options, device=str(request.device), progress=False)
    return RecordDict({ROW: arrays({half: table[0] for half, table in atlas.halves.items()})})


def _encoded(request: Request) -> tuple[Tensor, bool]:
    """Return the embeddings of the client's examples, and whether its summary goes by class."""
    if request.task == CHECK:
        made = request.config.atlas_settings() or {}
        options = made.get("encoder_options") or {}
        return embeddings_of(request.federation, made.get("encoder", "builtin"), progress=False, **options).cpu(), True
    options = _atlas_settings(request)
    encoder = make_encoder(options.get("encoder", "builtin"), **options.get("encoder_options") or {})
    labelled = summary_by_class(options["source"])
    if labelled is None:
        raise UsageError(
            f"an atlas of {options['source']} has no summary, so nothing for one leaves this client.",
            code="settings-conflict",
            source=options["source"],
        )
    return encoder.encode(request.federation, progress=False).examples.cpu(), labelled


def sums(request: Request, _: RecordDict) -> RecordDict:
    """Return the client's sums, of which the server keeps the total of all clients."""
    examples, labelled = _encoded(request)
    return RecordDict({ROW: arrays(sums_of_client(request.federation, examples, labelled=labelled).tensors())})


def cells(request: Request, received: RecordDict) -> RecordDict:
    """Return the client's cells, in the directions that the server sent."""
    examples, labelled = _encoded(request)
    whitening = Whitening(**tensors(received.array_records[SHARED]))
    return RecordDict({ROW: arrays(cells_of_client(whitening, request.federation, examples, labelled=labelled))})


def pairs(request: Request, _: RecordDict) -> RecordDict:
    """Return some pairs of an example's vector and its label; only if the config trains the index globally."""
    index = ClientIndex(request)
    if index.strategy != "global":
        raise UsageError(
            "the config does not train the index globally, so no example's vector leaves this client.",
            code="settings-conflict",
            strategy=index.strategy,
        )
    found = index.pairs(index.settings.upload)
    own = found.clients[0].train
    return RecordDict({PAIRS: arrays({"inputs": found.data.inputs[own], "labels": found.data.labels[own]})})


def train_index(request: Request, received: RecordDict) -> RecordDict:
    """Train the index network for a round on the client's vectors."""
    index = ClientIndex(request)
    if index.strategy != "federated":
        raise UsageError(
            "the config does not train the index on the clients, so no change of it leaves this one.",
            code="settings-conflict",
            strategy=index.strategy,
        )
    work = index_work(index.settings)
    request.policy.check_step("the index network's batch_size", work.batch_size)
    request.policy.check_step("the index network's local_samples", index.settings.local_samples)
    algorithm = index_algorithm(index.settings, index.network.targets(index.embeddings.classes))
    found = index.pairs(index.settings.local_samples).to(request.device)
    work = request.in_large_steps(work)
    runner = ClientRunner(algorithm, index.network.to(request.device), found, work, index.seed)
    upload, _ = runner.train(unpack_assignment(received), {})
    return pack_upload(upload, remembers=False)


def index_row(request: Request, received: RecordDict) -> RecordDict:
    """Return the client's row of the atlas, made by the trained network."""
    index = ClientIndex(request)
    trained = tensors(received.array_records[SHARED])
    with torch.no_grad():
        for name, parameter in index.network.named_parameters():
            parameter.copy_(trained[name])
    halves = index_client(index.network, index.federation, index.embeddings, 0)
    return RecordDict({ROW: arrays(halves)})
