"""Groups of vectors, and their places in a plane.

scikit-learn is imported where it is used: it takes seconds, and most runs have no need of it.
"""

import warnings

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas.grouping import group_clients
from fedatlas.errors import UsageError, expect_number, unknown_name
from fedatlas.seeds import derive, numpy_generator


def group_labels(points: Tensor, count: int, method: str, seed: int) -> Tensor:
    """Return (points,) int64: the group of each point, numbered in the order of the groups' first points.

    ``count`` is the most groups: points that hardly differ make fewer, and ``finch`` finds the number itself.
    """
    expect_number(count, "count of groups", whole=True)
    if not 1 <= count <= len(points):
        raise UsageError(
            f"count of groups must be in [1, {len(points)}], the number of clients; got {count}.",
            code="out-of-range",
            got=count,
            setting="count",
            most=len(points),
        )
    # Spherical: the points are unit vectors, whose directions have no scales of their own.
    return group_clients(points, count, method=method, covariance="spherical", seed=seed).labels


def place(points: Tensor, method: str, seed: int) -> np.ndarray:
    """Return (points, 2): a place for each point in a plane."""
    if method == "pca":
        return principal(points)
    if method not in ("tsne", "umap"):
        raise unknown_name("method of mapping", method, ["pca", "tsne", "umap"])
    if len(points) < 4:
        raise UsageError(
            f"{method} needs at least 4 clients, got {len(points)}; use pca.",
            code="out-of-range",
            got=len(points),
            what="clients",
        )
    return _by_umap(points, seed) if method == "umap" else _by_tsne(points, seed)


def _by_umap(points: Tensor, seed: int) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", ImportWarning
            )  # it says that a part which is not used here needs tensorflow
            from umap import UMAP
    except ImportError as error:
        raise UsageError(
            "umap needs the package umap-learn: pip install umap-learn; or use tsne.",
            code="extra-missing",
            extra="umap-learn",
        ) from error
    # From the principal components, as a spectral start fails for a handful of clients; with one thread, as several
    # would make the places differ from time to time.
    start = principal(points)
    start = 10 * start / max(float(np.abs(start).max()), 1e-12)
    start = (start + 1e-3 * numpy_generator(seed, "umap").normal(size=start.shape)).astype(np.float32)  # none are equal
    neighbours = min(15, len(points) - 1)
    mapping = UMAP(n_neighbors=neighbours, init=start, random_state=_state(seed, "umap"), n_jobs=1)
    return np.asarray(mapping.fit_transform(points.numpy()), dtype=np.float64)


def _by_tsne(points: Tensor, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    start = principal(points)
    start = (1e-4 * start / max(float(start[:, 0].std()), 1e-12)).astype(np.float32)
    perplexity = min(30.0, (len(points) - 1) / 3)
    mapping = TSNE(perplexity=perplexity, init=start, random_state=_state(seed, "tsne"))
    # A thousand short steps: threads that wait for each other make them many times slower on a busy machine.
    with threadpool_limits(1):
        return np.asarray(mapping.fit_transform(points.numpy()))


def principal(points: Tensor) -> np.ndarray:
    """Return (points, 2): the first two principal components; the point farthest out has a positive coordinate."""
    centred = points - points.mean(0)
    # The smaller of the two product matrices: 100,000 clients of width 1,000, or 100 clients of width 25,000.
    if len(centred) > centred.shape[1]:
        vectors = torch.linalg.eigh((centred.T @ centred).double()).eigenvectors
        found = centred.double() @ vectors[:, -2:].flip(1)
    else:
        values, vectors = torch.linalg.eigh((centred @ centred.T).double())
        found = (vectors * values.clamp(min=0).sqrt())[:, -2:].flip(1)
    farthest = found.gather(0, found.abs().argmax(0, keepdim=True))
    found = torch.where(farthest < 0, -found, found)
    places = torch.zeros(len(points), 2, dtype=torch.float64)
    places[:, : found.shape[1]] = found
    return np.asarray(places.numpy())


def _state(seed: int, purpose: str) -> int:
    return derive(seed, purpose) % 2**32
