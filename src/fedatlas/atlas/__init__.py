"""Atlases: one vector a client that says what its data looks like."""

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.dsa_ign import IndexSettings
from fedatlas.atlas.embeddings import Embeddings, Encoder
from fedatlas.atlas.encoders import ENCODERS, make_encoder
from fedatlas.atlas.index import client2vec_index
from fedatlas.atlas.making import SOURCES, make_atlas
from fedatlas.atlas.plain_sources import class_prototypes, feature_average, head_weights, label_histogram

__all__ = [
    "ENCODERS",
    "SOURCES",
    "Atlas",
    "Embeddings",
    "Encoder",
    "IndexSettings",
    "class_prototypes",
    "client2vec_index",
    "feature_average",
    "head_weights",
    "label_histogram",
    "make_atlas",
    "make_encoder",
]
