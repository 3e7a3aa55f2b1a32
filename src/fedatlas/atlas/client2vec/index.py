"""The client index of Client2Vec: the look of a client's data, and its labels.

Guo, Wang, Tang, Lin: Client2Vec, section 3.2.

beta^f = mean over the client's examples of u, its half of DSA-IGN's output
beta^l = mean over the client's examples of L, the vector of the label's name
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.client2vec.network import DSAIGN
from fedatlas.atlas.client2vec.settings import IndexTraining
from fedatlas.atlas.client2vec.train_federated import train_federated
from fedatlas.atlas.client2vec.train_global import train_globally
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.provenance import made_of
from fedatlas.atlas.registry import source
from fedatlas.client.machine import keep_freed_memory
from fedatlas.client.precision import products_like_convolutions
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Client, Federation
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import derive, numpy_generator, repeatable
from fedatlas.training.progress import make_progress

READING_BATCH = 256
"""Fixed, so that an index's bits do not depend on the size of training batches."""


@source("client2vec", discloses="the means of its examples' feature indices and of its labels' vectors")
def client2vec_index(
    federation: Federation,
    embeddings: Embeddings,
    how: IndexTraining | None = None,
    *,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: bool | None = None,
    **changes: Any,
) -> Atlas:
    """Client2Vec's index: halves ``feature`` and ``label``, from an encoder and a small network.

    ``changes`` are fields of ``IndexTraining``, such as ``strategy`` and ``epochs``. Held-out clients have no part in
    the training; they get their index from the trained network, as all do.

        >>> from fedatlas.atlas import client2vec_index
        >>> atlas = client2vec_index(federation, embeddings)  # doctest: +SKIP
    """
    how = (how or IndexTraining()).changed(changes)
    network = train_index_network(federation, embeddings, how, device=device, workers=workers, progress=progress)
    return index_clients(network, federation, embeddings)


def train_index_network(
    federation: Federation,
    embeddings: Embeddings,
    how: IndexTraining | None = None,
    *,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: bool | None = None,
    **changes: Any,
) -> DSAIGN:
    """Return a DSA-IGN trained on the clients that may train; keep it for clients that come later."""
    how = (how or IndexTraining()).changed(changes)
    settings, strategy, epochs = how.index_settings(), how.strategy, how.epochs
    place = torch.device(device)
    check_embeddings(federation, embeddings)
    for client in federation:
        if len(client.train):
            _vectors(client, embeddings)
    own = index_seed(how.seed)
    keep_freed_memory(place)
    with repeatable(place), products_like_convolutions():
        network = DSAIGN(embeddings.examples.shape[1], embeddings.classes.shape[1], settings, seed=own)
        network.to(place)
        targets = network.targets(embeddings.classes)
        limit = settings.upload if strategy == "global" else settings.local_samples
        pairs = training_pairs(federation, network.inputs(embeddings.examples), limit, own)
        bar = make_progress(progress, "index", epochs)
        if strategy == "global":
            loss = train_globally(network, pairs, targets, epochs=epochs, seed=own, device=place, progress=bar)
        else:
            loss = train_federated(
                network, pairs, targets, rounds=epochs, seed=own, device=place, workers=workers, progress=bar
            )
    counts = [len(pairs.clients[i].train) for i in pairs.training_ids]
    lengths = pairs.data.inputs.norm(dim=1)
    network.provenance = {
        "source": "client2vec",
        "encoder": embeddings.encoder,
        "strategy": strategy,
        "epochs": epochs,
        "seed": how.seed,
        **made_of(federation),
        "training_clients": len(counts),
        "training_pairs": sum(counts),
        "fewest_pairs": min(counts),
        "most_pairs": max(counts),
        "mean_length": float(torch.cat([lengths[pairs.clients[i].train] for i in pairs.training_ids]).mean()),
        "last_loss": loss,
        "settings": {**asdict(settings), "losses": list(settings.losses)},
        "network": network.describe(),
    }
    return network


def index_seed(seed: int) -> int:
    """Return the seed of the index network, apart from a run's own streams, which may have the same seed."""
    return derive(seed, "client2vec index")


def index_clients(network: DSAIGN, federation: Federation, embeddings: Embeddings) -> Atlas:
    """Return the index of every client of a federation, held-out ones too, from a trained network."""
    rows = _halves(network, federation, embeddings, list(federation))
    return Atlas(
        names=tuple(client.name for client in federation),
        halves={half: torch.stack([row[half] for row in rows]) for half in ("feature", "label")},
        sizes=torch.tensor([len(client.train) for client in federation]),
        domains=tuple(client.domain for client in federation),
        provenance=network.provenance,
    )


def index_client(
    network: DSAIGN, federation: Federation, embeddings: Embeddings, client: str | int
) -> dict[str, Tensor]:
    """Return one client's halves, from its training examples: what ``Atlas.add_client`` takes for one that came later.

    A client without training examples gets zeros, which have cosine 0 with everything.

    >>> halves = index_client(network, federation, embeddings, "newcomer")  # doctest: +SKIP
    >>> atlas = atlas.add_client("newcomer", halves, size=80)  # doctest: +SKIP
    """
    return _halves(network, federation, embeddings, [federation.clients[federation.position(client)]])[0]


def sample_indices(network: DSAIGN, examples: Tensor) -> Tensor:
    """Return the feature index u of each example, (N, width), on the CPU; the network reads in evaluation mode."""
    return _read(network, [examples])[0]


def _halves(
    network: DSAIGN, federation: Federation, embeddings: Embeddings, clients: Sequence[Client]
) -> list[dict[str, Tensor]]:
    check_embeddings(federation, embeddings)
    trained_with = network.provenance.get("encoder", embeddings.encoder)
    if embeddings.encoder != trained_with:
        raise UsageError(
            f"the network was trained on embeddings by {trained_with}, got embeddings by {embeddings.encoder}. "
            "Use the same encoder, or train a network again.",
            code="embeddings-mismatch",
            got=embeddings.encoder,
            wanted=trained_with,
        )
    examples = [_vectors(client, embeddings) if len(client.train) else embeddings.examples[:0] for client in clients]
    classes = network.scaled(embeddings.classes.float())
    found = []
    for client, features in zip(clients, _read(network, examples), strict=True):
        labels = federation.data.labels[client.train].to(classes.device)
        label = classes[labels].double().mean(0).float().cpu() if len(labels) else torch.zeros(network.class_width)
        feature = features.double().mean(0).float() if len(labels) else torch.zeros(network.width)
        found.append({"feature": feature, "label": label})
    return found


@torch.no_grad()
def _read(network: DSAIGN, groups: Sequence[Tensor]) -> list[Tensor]:
    """Return the feature indices of each group of examples, which are read apart from each other's."""
    network.eval()
    place = next(network.parameters()).device
    batches = [batch for examples in groups for batch in network.inputs(examples).split(READING_BATCH) if len(batch)]
    with repeatable(place):
        found = [network.halves(network(batch.to(place))[0]).feature for batch in batches]
    # Wait for the GPU once, not for each group.
    whole = torch.cat(found).cpu() if found else torch.zeros(0, network.width)
    return list(whole.split([len(examples) for examples in groups]))


def check_embeddings(federation: Federation, embeddings: Embeddings) -> None:
    """Raise UsageError if the embeddings are of other data."""
    for what, vectors, count in (
        ("examples", embeddings.examples, len(federation.data)),
        ("classes", embeddings.classes, federation.num_classes),
    ):
        if vectors.ndim != 2 or len(vectors) != count:
            raise UsageError(
                f"{federation.name} has {count} {what}, got embeddings of shape {tuple(vectors.shape)}. "
                "Encode this federation, not another.",
                code="wrong-shape",
                what=what,
                got=tuple(vectors.shape),
                wanted=count,
            )


def _vectors(client: Client, embeddings: Embeddings) -> Tensor:
    examples = embeddings.examples[client.train.to(embeddings.examples.device)]
    if not bool(examples.any()):
        raise DataError(
            f"client {client.name}: its {len(examples)} training examples have no vectors, only zeros. "
            "Encode this federation, not another.",
            code="embeddings-mismatch",
            client=client.name,
        )
    return examples


def training_pairs(federation: Federation, inputs: Tensor, limit: int | None, seed: int) -> Federation:
    """Return the federation with vectors as inputs, and at most ``limit`` of them a client, drawn by the seed."""
    data = federation.data
    vectors = Dataset(name=data.name, inputs=inputs.cpu(), labels=data.labels.cpu(), classes=data.classes)
    clients = []
    for client in federation:
        train = client.train.cpu()
        if limit is not None and len(train) > limit:
            drawn = numpy_generator(seed, "pairs", client.name).choice(len(train), size=limit, replace=False)
            train = train[torch.from_numpy(np.sort(drawn))]
        # The encoder has seen the client's transform; what it made of the images is not transformed again.
        clients.append(replace(client, train=train, test=train[:0], transform=None))
    return Federation(data=vectors, clients=tuple(clients), partition=federation.partition)
