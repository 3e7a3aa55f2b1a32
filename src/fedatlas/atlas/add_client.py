"""Add a new client to an atlas, by the source that made its other vectors."""

from __future__ import annotations

from dataclasses import replace

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.sources import class_prototypes, feature_average, label_histogram
from fedatlas.atlas.subspaces import principal_angles
from fedatlas.atlas.summary import cells_of_client
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError

ENCODED = {
    "feature_average": feature_average,
    "class_prototypes": class_prototypes,
    "principal_angles": principal_angles,
}


def place_client(atlas: Atlas, federation: Federation, name: str) -> Atlas:
    """Return the atlas with one client of a federation added; a client that it has already stays as it is.

    Only that client's training examples are looked at, so the atlas's source must need nothing else: label histograms,
    and feature averages and class prototypes of the built-in encoder. For others, such as Client2Vec's index, compute
    the vector yourself and use ``atlas.add_client``.
    """
    if name in atlas.names:
        return atlas
    client = federation.clients[federation.position(name)]
    alone = replace(federation, clients=(replace(client, held_out=False),))
    source = str(atlas.provenance.get("source"))
    cells = None
    if source == "label_histogram":
        own = label_histogram(alone)
    elif source in ENCODED:
        embeddings = encode_newcomer(atlas, alone, name)
        own = ENCODED[source](alone, embeddings)
        if (known := atlas.summary) is not None:
            rows = embeddings.examples.cpu()
            cells = cells_of_client(known.whitening, alone, rows, labelled=known.labelled)
    else:
        raise _cannot(name, f"its source is {source}")
    if {half: rows.shape[1] for half, rows in own.halves.items()} != {h: r.shape[1] for h, r in atlas.halves.items()}:
        raise _cannot(name, "its vectors have another width, as of other classes")
    halves = {half: rows[0] for half, rows in own.halves.items()}
    return atlas.add_client(name, halves, len(client.train), client.domain, cells=cells)


def encode_newcomer(atlas: Atlas, alone: Federation, name: str) -> Embeddings:
    """Return the embeddings of a federation's only client, as the atlas's encoder makes them.

    Raise UsageError if that is not the built-in one: others need settings that an atlas does not have.
    """
    embeddings = make_encoder("builtin").encode(alone)
    if embeddings.encoder != atlas.provenance.get("encoder"):
        raise _cannot(name, f"its encoder is {atlas.provenance.get('encoder')}")
    return embeddings


def _cannot(name: str, why: str) -> UsageError:
    return UsageError(
        f"client {name!r} is not in the atlas and cannot be placed from here: {why}. Map it together with the others, "
        "or add its vector with atlas.add_client.",
        code="client-missing",
        client=name,
    )
