"""The vectors that a page can show: the atlas of a run or a given one, what clients keep, and plain statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.doctor.diagnosis import Diagnosis
from fedatlas.report.sources import atlas_points, unit_rows
from fedatlas.runs.run import ATLAS, CONFIG, Run
from fedatlas.runs.schema import read_config_file

MOST_NUMBERS = 100_000_000
"""Of the vectors that a check compared; beyond, a page places clients by something shorter."""


class Vectors(NamedTuple):
    """Unit rows of all clients, and where they come from."""

    key: str
    title: str
    about: str
    points: Tensor
    """float32 (clients, width); zeros for a client that is not among them."""


def run_atlas_of(run: Run) -> Atlas | None:
    """Return the atlas that a run made or was given, where it can still be read."""
    own = run.folder / ATLAS
    if own.exists():
        return Atlas.load(own)
    file = read_config_file(run.folder / CONFIG).get("atlas", {}).get("file")
    return Atlas.load(file) if isinstance(file, str) and Path(file).exists() else None


def atlas_vectors(atlas: Atlas, names: Sequence[str], title: str = "atlas") -> list[Vectors]:
    """Return the vectors of an atlas in the order of the page's clients, one for each half and one for all."""
    place = {name: i for i, name in enumerate(atlas.names)}
    if not any(name in place for name in names):
        return []
    rows = torch.tensor([place.get(name, -1) for name in names])
    about = describe_source(atlas.provenance)
    found = []
    for half, points in atlas_points(atlas).items():
        ordered = torch.where(rows[:, None] >= 0, points[rows.clamp(min=0)], torch.zeros(1))
        alone = len(atlas.halves) == 1
        said = title if alone else f"{title}, both halves" if half == "all" else f"{title}, {half} half"
        found.append(Vectors(f"{title}/{half}", said, about, ordered))
    return found


def check_vectors(diagnosis: Diagnosis, names: Sequence[str]) -> Vectors | None:
    """Return what a check compared, in the order of the page's clients; None where it had nothing to compare.

    A class's mean embedding less its mean over the clients that have it; zeros for a class that a client lacks.
    """
    summary = diagnosis.summary
    place = {member.name: i for i, member in enumerate(diagnosis.clients)}
    if summary is None or len(names) < 2 or not any(name in place for name in names):
        return None
    if summary.means.numel() > MOST_NUMBERS:
        return None
    known = (summary.counts > 0).unsqueeze(2)
    centre = (summary.means * known).sum(0) / known.sum(0).clamp(min=1)
    points = torch.nn.functional.normalize(((summary.means - centre) * known).flatten(1), dim=1)
    rows = torch.tensor([place.get(name, -1) for name in names])
    ordered = torch.where(rows[:, None] >= 0, points[rows.clamp(min=0)], torch.zeros(1))
    about = "What the check compared: how a client's mean of each class differs from that of all clients."
    return Vectors("check", "what the check compared", about, ordered)


def plain_vectors(vectors: np.ndarray, kind: str) -> Vectors:
    """Return the plain statistics that a run keeps of its clients' data."""
    what = {
        "image": "mean and spread of its images in each cell of a grid of 8 by 8",
        "tokens": "how often each token occurs",
    }.get(kind, "mean and spread of each feature")
    about = f"Plain statistics of each client's training data: {what}, and the share of each class."
    return Vectors("plain", "plain statistics", about, unit_rows(vectors))


def label_vectors(labels: np.ndarray) -> Vectors:
    """Return the label shares as vectors."""
    about = "The share of each class in a client's training data."
    return Vectors("labels", "label shares", about, unit_rows(labels.astype(np.float32)))


def describe_source(provenance: Mapping[str, Any]) -> str:
    """Return where the vectors of an atlas come from, in a sentence."""
    source, encoder = provenance.get("source"), provenance.get("encoder")
    if source == "run":
        return f"The parameters that each client keeps in a run of {provenance.get('algorithm')}."
    over = f", made with the encoder {encoder}" if encoder else ""
    kind = str(source).replace("_", " ")
    return f"The atlas: {kind} of each client{over}." if source else "An atlas whose source is not written down."


def describe_noise(provenance: Mapping[str, Any] | None) -> str:
    """Return what noise the vectors have, in a sentence."""
    noise = (provenance or {}).get("noise")
    if not isinstance(noise, Mapping):
        return "No noise was added to the vectors."
    parts = [f"{key} {noise[key]:.3g}" for key in ("epsilon", "delta") if isinstance(noise.get(key), float)]
    protects = noise.get("protects")
    return (
        f"Gaussian noise was added to the vectors ({', '.join(parts) or 'its amount is not written down'}"
        f"{f'; it protects each {protects}' if protects else ''})."
    )
