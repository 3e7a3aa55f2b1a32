"""Atlases: one vector per client, which describes its data."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.atlas.atlas import Atlas
    from fedatlas.atlas.client2vec.index import client2vec_index, index_client, index_clients, train_index_network
    from fedatlas.atlas.client2vec.network import DSAIGN
    from fedatlas.atlas.client2vec.settings import IndexSettings, IndexTraining
    from fedatlas.atlas.doctor.diagnosis import Diagnosis
    from fedatlas.atlas.doctor.suspect import Suspect
    from fedatlas.atlas.encoders.base import Embeddings, Encoder
    from fedatlas.atlas.encoders.registry import ENCODERS, make_encoder
    from fedatlas.atlas.floor import Comparison
    from fedatlas.atlas.placing import Placement, place_newcomer
    from fedatlas.atlas.registry import SOURCES
    from fedatlas.atlas.settings import AtlasSettings
    from fedatlas.atlas.sources import (
        atlas_disclosures,
        class_prototypes,
        feature_average,
        head_weights,
        label_histogram,
        make_atlas,
    )
    from fedatlas.atlas.subspaces import principal_angles
    from fedatlas.atlas.summary import Summary
    from fedatlas.atlas.verdict import Finding, Matching, Verdict

__all__ = [
    "DSAIGN",
    "ENCODERS",
    "SOURCES",
    "Atlas",
    "AtlasSettings",
    "Comparison",
    "Diagnosis",
    "Embeddings",
    "Encoder",
    "Finding",
    "IndexSettings",
    "IndexTraining",
    "Matching",
    "Placement",
    "Summary",
    "Suspect",
    "Verdict",
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
    "place_newcomer",
    "principal_angles",
    "train_index_network",
]

__getattr__, __dir__ = lazy_exports(__name__)
