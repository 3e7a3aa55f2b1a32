"""Make an atlas by the name of its source."""

from typing import Any

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.dsa_ign import IndexSettings
from fedatlas.atlas.embeddings import Embeddings
from fedatlas.atlas.encoders import make_encoder
from fedatlas.atlas.index import client2vec_index
from fedatlas.atlas.plain_sources import class_prototypes, feature_average, label_histogram
from fedatlas.data.federation import Federation
from fedatlas.errors import unknown_name

SOURCES = {
    "client2vec": "Client2Vec's index: a feature half and a label half from an encoder and a small network",
    "class-prototypes": "the mean embedding of each class, side by side",
    "feature-average": "the mean embedding of a client's examples",
    "label-histogram": "the share of each class; needs no encoder",
}


def make_atlas(
    federation: Federation,
    *,
    source: str = "client2vec",
    encoder: str = "builtin",
    encoder_options: dict[str, Any] | None = None,
    strategy: str = "global",
    epochs: int = 100,
    seed: int = 0,
    settings: IndexSettings | None = None,
    workers: int | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> Atlas:
    """Return an atlas of a federation; ``strategy``, ``epochs`` and ``settings`` are Client2Vec's.

    Without settings the network is the paper's, except that over the built-in encoder its feed-forward layers are 64
    wide and not 2048: a CPU then needs minutes and not hours.

    >>> from fedatlas import Iid, federate, load_dataset
    >>> federation = federate(load_dataset("digits"), Iid(num_clients=4))
    >>> make_atlas(federation, source="label-histogram").half("label").shape
    torch.Size([4, 10])
    """
    if source not in SOURCES:
        raise unknown_name("source of an atlas", source, SOURCES)
    if source == "label-histogram":
        return label_histogram(federation)
    embeddings: Embeddings = make_encoder(encoder, **encoder_options or {}).encode(federation, progress=progress)
    if source == "client2vec":
        if settings is None and encoder == "builtin":
            settings = IndexSettings(feed_forward=64)
        return client2vec_index(
            federation,
            embeddings,
            settings=settings,
            strategy=strategy,
            epochs=epochs,
            seed=seed,
            device=device,
            workers=workers,
            progress=progress,
        )
    make = feature_average if source == "feature-average" else class_prototypes
    return make(federation, embeddings)
