"""Atlases: one vector per client, which describes its data."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.atlas.add_client import place_client
    from fedatlas.atlas.atlas import Atlas
    from fedatlas.atlas.client2vec.index import (
        client2vec_index,
        index_client,
        index_clients,
        sample_indices,
        train_index_network,
    )
    from fedatlas.atlas.client2vec.network import DSAIGN
    from fedatlas.atlas.client2vec.settings import EPOCHS, IndexSettings, IndexTraining
    from fedatlas.atlas.doctor.advice import Advice
    from fedatlas.atlas.doctor.check import check
    from fedatlas.atlas.doctor.columns import DISTINCT, describe_columns, find_faults
    from fedatlas.atlas.doctor.diagnosis import Diagnosis, Member
    from fedatlas.atlas.doctor.duplicates import keyed_hashes
    from fedatlas.atlas.doctor.examination import Examination, examine
    from fedatlas.atlas.doctor.figures import FIGURES, HASHES
    from fedatlas.atlas.doctor.inverted import find_inverted
    from fedatlas.atlas.doctor.reference import Pairing, pairings
    from fedatlas.atlas.doctor.suspect import Cells, Suspect, threshold
    from fedatlas.atlas.doctor.swapped import FEWEST, MOSTLY, SURELY, UNEXPLAINED
    from fedatlas.atlas.encoders.base import Embeddings, Encoder
    from fedatlas.atlas.encoders.cache import read_tensors, write_tensors
    from fedatlas.atlas.encoders.conse import PACKAGES
    from fedatlas.atlas.encoders.projection import WIDTH
    from fedatlas.atlas.encoders.registry import ENCODERS, make_encoder
    from fedatlas.atlas.floor import Comparison, noise_floor
    from fedatlas.atlas.from_run import run_atlas
    from fedatlas.atlas.grouping import cluster_accuracy, group_clients
    from fedatlas.atlas.merge import cells_of, scores, weigh_evidence
    from fedatlas.atlas.noise import clip_rows
    from fedatlas.atlas.placing import Placement, place_newcomer
    from fedatlas.atlas.plane import principal
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
    from fedatlas.atlas.storage import write_vectors
    from fedatlas.atlas.subspaces import leading_directions, narrowed, principal_angles, projection_row
    from fedatlas.atlas.summary import Summary, Whitening, summarise, summary_disclosures
    from fedatlas.atlas.verdict import Finding, Matching, Verdict, judge

__all__ = [
    "DISTINCT",
    "DSAIGN",
    "ENCODERS",
    "EPOCHS",
    "FEWEST",
    "FIGURES",
    "HASHES",
    "MOSTLY",
    "PACKAGES",
    "SOURCES",
    "SURELY",
    "UNEXPLAINED",
    "WIDTH",
    "Advice",
    "Atlas",
    "AtlasSettings",
    "Cells",
    "Comparison",
    "Diagnosis",
    "Embeddings",
    "Encoder",
    "Examination",
    "Finding",
    "IndexSettings",
    "IndexTraining",
    "Matching",
    "Member",
    "Pairing",
    "Placement",
    "Summary",
    "Suspect",
    "Verdict",
    "Whitening",
    "atlas_disclosures",
    "cells_of",
    "check",
    "class_prototypes",
    "client2vec_index",
    "clip_rows",
    "cluster_accuracy",
    "describe_columns",
    "examine",
    "feature_average",
    "find_faults",
    "find_inverted",
    "group_clients",
    "head_weights",
    "index_client",
    "index_clients",
    "judge",
    "keyed_hashes",
    "label_histogram",
    "leading_directions",
    "make_atlas",
    "make_encoder",
    "narrowed",
    "noise_floor",
    "pairings",
    "place_client",
    "place_newcomer",
    "principal",
    "principal_angles",
    "projection_row",
    "read_tensors",
    "run_atlas",
    "sample_indices",
    "scores",
    "summarise",
    "summary_disclosures",
    "threshold",
    "train_index_network",
    "weigh_evidence",
    "write_tensors",
    "write_vectors",
]

__getattr__, __dir__ = lazy_exports(__name__)
