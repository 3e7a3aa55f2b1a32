"""A client's part in making an atlas: it encodes its examples at home, and sends what the source needs."""

from __future__ import annotations

import torch
from flwr.app import RecordDict

from fedatlas.atlas.client2vec.index import index_client, index_seed, training_pairs
from fedatlas.atlas.client2vec.network import DSAIGN
from fedatlas.atlas.client2vec.train_federated import index_algorithm, index_work
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.settings import AtlasSettings
from fedatlas.atlas.sources import make_atlas
from fedatlas.client.runner import ClientRunner
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.flower.node.request import ClientSide
from fedatlas.flower.protocol.messages import SHARED, arrays, pack_upload, tensors, unpack_assignment
from fedatlas.flower.server.atlas import PAIRS, ROW


class IndexSide:
    """The client's examples as vectors, and the index network that reads them."""

    def __init__(self, side: ClientSide) -> None:
        options = side.config.atlas_settings()
        if options is None:
            raise UsageError("this run's config makes no atlas.", code="option-missing", option="atlas.make")
        self.federation, self.device = side.federation, side.device
        self.settings = AtlasSettings(**options).index_settings()
        self.strategy = options["strategy"]
        self.seed = index_seed(int(options["seed"]))
        encoder = make_encoder(options.get("encoder", "builtin"), **options.get("encoder_options") or {})
        self.embeddings: Embeddings = encoder.encode(self.federation, progress=False)
        widths = (self.embeddings.examples.shape[1], self.embeddings.classes.shape[1])
        self.network = DSAIGN(*widths, self.settings, seed=self.seed)

    def pairs(self, limit: int | None) -> Federation:
        """Return the client with vectors in place of examples, at most so many."""
        return training_pairs(self.federation, self.network.inputs(self.embeddings.examples), limit, self.seed)


def row(side: ClientSide, _: RecordDict) -> RecordDict:
    """Send the client's row of a plain atlas."""
    options = side.config.atlas_settings()
    if options is None:
        raise UsageError("this run's config makes no atlas.", code="option-missing", option="atlas.make")
    atlas = make_atlas(side.federation, **options, device=str(side.device), progress=False)
    return RecordDict({ROW: arrays({half: table[0] for half, table in atlas.halves.items()})})


def pairs(side: ClientSide, _: RecordDict) -> RecordDict:
    """Send some pairs of an example's vector and its label; only where the config trains the index globally."""
    index = IndexSide(side)
    if index.strategy != "global":
        raise UsageError(
            "the config does not train the index globally, so no vector of an example leaves this client.",
            code="settings-conflict",
        )
    found = index.pairs(index.settings.upload)
    own = found.clients[0].train
    return RecordDict({PAIRS: arrays({"inputs": found.data.inputs[own], "labels": found.data.labels[own]})})


def train_index(side: ClientSide, received: RecordDict) -> RecordDict:
    """Train the index network for a round on the client's vectors."""
    index = IndexSide(side)
    algorithm = index_algorithm(index.settings, index.network.targets(index.embeddings.classes))
    found = index.pairs(index.settings.local_samples).to(side.device)
    runner = ClientRunner(algorithm, index.network.to(side.device), found, index_work(index.settings), index.seed)
    upload, _ = runner.train(unpack_assignment(received), {})
    return pack_upload(upload, remembers=False)


def index_row(side: ClientSide, received: RecordDict) -> RecordDict:
    """Send the client's row of the index, read by the trained network."""
    index = IndexSide(side)
    trained = tensors(received.array_records[SHARED])
    with torch.no_grad():
        for name, parameter in index.network.named_parameters():
            parameter.copy_(trained[name])
    halves = index_client(index.network, index.federation, index.embeddings, 0)
    return RecordDict({ROW: arrays(halves)})
