"""Vectors of clients for a page: planes, and short vectors from which the page computes similarities.

Cosines of all pairs would be N x N numbers. In their place the unit rows go to the page in the few directions that keep
their products best (uncentred singular vectors), as signed bytes; ``error`` says how far a cosine may be off.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.grouping import like_together
from fedatlas.atlas.plane import place
from fedatlas.report.packing import pack
from fedatlas.seeds import numpy_generator

WIDTH = 32
"""Directions that are kept."""
MOST_BYTES = 64_000
"""Of the short vectors of one source."""
MOST_PAIRED = 1000
"""Clients of which every two may be compared."""
PROBES = 300
"""Clients on which a plane and the short vectors are judged."""
CELLS = 48
"""Squares along a side of the backdrop."""
TITLES = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
FOR_TSNE = 4
"""The fewest clients that t-SNE takes."""
MOST_MAPPED = 300
"""Clients for which each source has a plane by t-SNE; of more, only the first source."""


def atlas_points(atlas: Atlas) -> dict[str, Tensor]:
    """Return the unit rows of an atlas by title: all halves together, and each half if there are several.

    Rows of several halves are scaled so that their products are the mean of the halves' cosines.
    """
    halves = {own: atlas.unit(own) for own in atlas.halves}
    if len(halves) == 1:
        return halves
    joined = torch.cat(list(halves.values()), dim=1) / len(halves) ** 0.5
    return {"all": joined, **halves}


def unit_rows(vectors: np.ndarray) -> Tensor:
    """Return plain vectors at length 1."""
    rows = torch.from_numpy(np.asarray(vectors, dtype=np.float32))
    return torch.nn.functional.normalize(rows, dim=1)


def plane_methods(source: int, clients: int) -> tuple[str, ...]:
    """Return the planes of one of several sources: those that take long only for the first, or for few clients."""
    if not FOR_TSNE <= clients <= MOST_PAIRED or (source > 0 and clients > MOST_MAPPED):
        return ("pca",)
    return ("pca", "tsne", "umap") if find_spec("umap") is not None else ("pca", "tsne")


def source_block(
    key: str, title: str, about: str, points: Tensor, shown: np.ndarray, *, seed: int, methods: Sequence[str]
) -> dict[str, Any]:
    """Return one source of vectors for the page.

    Args:
        key: its short name, unique on the page.
        title: its name for people.
        about: a sentence that says where the vectors come from.
        points: (clients, width), unit rows of all clients.
        shown: the clients on the page.
        seed: of planes that are drawn at random.
        methods: the planes, ``pca`` first.
    """
    rows = points[torch.from_numpy(shown)]
    short, scale = shorten(rows)
    planes = [_plane("pca", place(points, "pca", seed), points, shown)]
    near = torch.from_numpy(short * scale).float()
    planes += [_plane(own, place(near, own, seed), rows, np.arange(len(rows))) for own in methods if own != "pca"]
    return {
        "key": key,
        "title": title,
        "about": about,
        "width": short.shape[1],
        "scale": scale,
        "vectors": pack(short, "i8"),
        "error": cosine_error(rows.numpy(), short * scale),
        "order": like_order(rows),
        "planes": planes,
    }


def shorten(rows: Tensor) -> tuple[np.ndarray, float]:
    """Return rows in the few directions that keep their products best, as numbers of [-127, 127], and their scale."""
    matrix = rows.double()
    width = max(2, min(WIDTH, matrix.shape[1], len(matrix), MOST_BYTES // len(matrix)))
    values, vectors = torch.linalg.eigh(matrix.T @ matrix if matrix.shape[1] <= len(matrix) else matrix @ matrix.T)
    values, vectors = values.flip(0)[:width].clamp(min=0), vectors.flip(1)[:, :width]
    found = matrix @ vectors if matrix.shape[1] <= len(matrix) else vectors * values.sqrt()
    scale = max(float(found.abs().max()), 1e-12) / 127
    return np.asarray((found / scale).round().numpy()), scale


def cosine_error(rows: np.ndarray, short: np.ndarray) -> float:
    """Return the largest error of a cosine that is computed from the short vectors, on a draw of clients.

    >>> cosine_error(np.eye(2), np.array([[1.0, 0.0], [0.25, 1.0]]))
    0.25
    """
    own = _probes(len(rows))
    exact = rows[own] @ rows[own].T
    near = short[own] @ short[own].T
    off = np.abs(exact - near)
    np.fill_diagonal(off, 0)
    return round(float(off.max()), 3)


def like_order(rows: Tensor) -> list[int]:
    """Return an order in which neighbours are alike: by their similarities, or of many by their largest direction."""
    if len(rows) > MOST_PAIRED:
        return [int(i) for i in np.argsort(place(rows, "pca", 0)[:, 0], kind="stable")]
    return like_together((rows @ rows.T).clamp(-1, 1).numpy())


def _plane(method: str, places: np.ndarray, points: Tensor, shown: np.ndarray) -> dict[str, Any]:
    """Return the places of the shown clients in [0, 65535], with one scale for both directions."""
    places = np.nan_to_num(np.asarray(places, dtype=np.float64))
    low, high = places.min(0), places.max(0)
    side = max(float((high - low).max()), 1e-12)
    centred = (places - (low + high) / 2) / side + 0.5
    distance, near = plane_quality(points.numpy(), places)
    block: dict[str, Any] = {
        "method": method,
        "title": TITLES[method],
        "x": pack(65535 * centred[shown, 0], "u16"),
        "y": pack(65535 * (1 - centred[shown, 1]), "u16"),
        "distance": distance,
        "near": near,
    }
    if len(shown) < len(places):
        counts, _, _ = np.histogram2d(centred[:, 0], 1 - centred[:, 1], bins=CELLS, range=((0, 1), (0, 1)))
        block["backdrop"] = {"side": CELLS, "cells": pack(255 * np.sqrt(counts / max(counts.max(), 1)), "u8")}
    return block


def plane_quality(points: np.ndarray, places: np.ndarray) -> tuple[float | None, float | None]:
    """Return how well a plane keeps distances, and the share of five nearest clients that it keeps.

    The first is Spearman's rank correlation of the distances of every two clients in the plane with those of their
    vectors. Of many clients, a draw is looked at.
    """
    if len(points) < 3:
        return None, None
    own = _probes(len(points))
    tables = [_distances(rows[own]) for rows in (points, places)]
    pairs = np.triu_indices(len(own), 1)
    true, drawn = (_ranks(table[pairs]) for table in tables)
    if np.ptp(true) == 0 or np.ptp(drawn) == 0:
        return None, None
    count = min(5, len(own) - 2)
    nearest = [_nearest(table, count) for table in tables]
    kept = np.mean([len(set(one) & set(other)) / count for one, other in zip(*nearest, strict=True)]) if count else None
    return round(float(np.corrcoef(true, drawn)[0, 1]), 3), None if kept is None else round(float(kept), 3)


def _distances(rows: np.ndarray) -> np.ndarray:
    """Return (rows, rows): the squared distance of every two."""
    centred = rows.astype(np.float64) - rows.mean(0)
    norms = (centred**2).sum(1)
    return np.asarray((norms[:, None] + norms - 2 * centred @ centred.T).clip(min=0))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value; equal ones share the mean of theirs.

    >>> _ranks(np.array([5.0, 1.0, 5.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    _, place, counts = np.unique(values.round(12), return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return np.asarray((ends - (counts + 1) / 2)[place])


def _nearest(distances: np.ndarray, count: int) -> np.ndarray:
    np.fill_diagonal(distances, np.inf)
    return np.argsort(distances, axis=1, kind="stable")[:, :count]


def _probes(count: int) -> np.ndarray:
    if count <= PROBES:
        return np.arange(count)
    return np.sort(numpy_generator(0, "page", "probes").permutation(count)[:PROBES])
