"""Atlases: one vector a client that says what its data looks like."""

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.dsa_ign import DSAIGN, IndexSettings
from fedatlas.atlas.embeddings import Embeddings, Encoder
from fedatlas.atlas.encoders import ENCODERS, make_encoder
from fedatlas.atlas.index import client2vec_index, index_client, index_clients, train_index_network
from fedatlas.atlas.making import SOURCES, atlas_disclosures, make_atlas
from fedatlas.atlas.plain_sources import class_prototypes, feature_average, head_weights, label_histogram

__all__ = [
    "DSAIGN",
    "ENCODERS",
    "SOURCES",
    "Atlas",
    "Embeddings",
    "Encoder",
    "IndexSettings",
    "atlas_disclosures",
    "class_prototypes",
    "client2vec_index",
    "feature_average",
    "head_weights",
    "index_client",
    "index_clients",
    "label_histogram",
    "make_atlas",
    "make_encoder",
    "train_index_network",
]
