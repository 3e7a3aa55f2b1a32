"""Make an atlas by the name of its source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.client2vec.index import EPOCHS, STRATEGIES, client2vec_index
from fedatlas.atlas.client2vec.network import IndexSettings
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.atlas.plain_sources import class_prototypes, feature_average, label_histogram
from fedatlas.data.federation import Federation
from fedatlas.errors import unknown_name

SOURCES = {
    "client2vec": "Client2Vec's index: a feature half and a label half from an encoder and a small network",
    "class-prototypes": "the mean embedding of each class, side by side",
    "feature-average": "the mean embedding of a client's examples",
    "label-histogram": "the share of each class; needs no encoder",
}

_DISCLOSED: dict[str, tuple[str, ...]] = {
    "client2vec": ("the client's vector: the means of its examples' feature indices and of its labels' vectors",),
    "class-prototypes": ("the client's vector: the mean embedding of its examples of each class",),
    "feature-average": ("the client's vector: the mean embedding of its examples",),
    "label-histogram": ("the client's vector: the share of each class among its examples",),
}


def atlas_disclosures(
    source: str = "client2vec", strategy: str = "global", settings: IndexSettings | None = None
) -> list[str]:
    """Return what leaves a client while an atlas is made, before any training.

    >>> atlas_disclosures("label-histogram")
    ["the client's vector: the share of each class among its examples"]
    """
    if source not in SOURCES:
        raise unknown_name("source of an atlas", source, SOURCES)
    said = list(_DISCLOSED[source])
    if source == "client2vec":
        if strategy not in STRATEGIES:
            raise unknown_name("strategy", strategy, STRATEGIES)
        upload = (settings or IndexSettings()).upload
        pairs = f"up to {upload} of its examples, each as the pair of the example's embedding and its label"
        change = "the change of the index network, in each round that the client takes part in"
        said.insert(0, pairs if strategy == "global" else change)
    return said


def index_settings(encoder: str, settings: IndexSettings | None = None) -> IndexSettings:
    """Return the settings of the index network over an encoder, where none are given."""
    if settings is not None:
        return settings
    return IndexSettings(feed_forward=64) if encoder == "builtin" else IndexSettings()


def kept_atlas(file: Path, make: Callable[[], Atlas], *, resume: bool) -> Atlas:
    """Return the atlas that a run's folder keeps; one that is not there, or not to be resumed, is made and kept."""
    if resume and file.exists():
        return Atlas.load(file)
    atlas = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    atlas.save(file)
    return atlas


def make_atlas(
    federation: Federation,
    *,
    source: str = "client2vec",
    encoder: str = "builtin",
    encoder_options: dict[str, Any] | None = None,
    strategy: str = "global",
    epochs: int = EPOCHS,
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
        return client2vec_index(
            federation,
            embeddings,
            settings=index_settings(encoder, settings),
            strategy=strategy,
            epochs=epochs,
            seed=seed,
            device=device,
            workers=workers,
            progress=progress,
        )
    make = feature_average if source == "feature-average" else class_prototypes
    return make(federation, embeddings)
