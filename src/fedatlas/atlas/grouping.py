"""Which clients are alike: groups of vectors, one a client."""

import warnings
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.errors import DataError, UsageError, unknown_name
from fedatlas.seeds import derive

METHODS = ("gmm", "kmeans", "finch")
COVARIANCES = ("diag", "spherical", "full")
VARIANCE_FLOOR = 0.1
"""The least variance of a mixture's component, as a share of the vectors' own."""
BEST_ORDERED, MOST_ORDERED = 300, 5000
"""Clients up to which the best order is sought among those that a tree of them allows, and up to which any is: beyond
each it takes seconds."""


class Groups(NamedTuple):
    """Which client is in which group, and where the groups lie."""

    labels: Tensor
    """(clients,) int64 on the CPU; groups are numbered in the order of their first clients, and none is empty."""
    centres: Tensor
    """(groups, width): the means of their members' vectors."""


def group_clients(
    vectors: Tensor,
    count: int,
    *,
    method: str = "gmm",
    covariance: str = "diag",
    n_init: int = 10,
    seed: int = 0,
) -> Groups:
    """Return at most ``count`` groups of clients with similar vectors, (clients, width).

    There are fewer where there are fewer clients, or fewer that differ.

    Args:
        method: ``gmm`` (a mixture of Gaussians), ``kmeans``, or ``finch``, which finds their number by itself.
        covariance: of the mixture: ``diag``, ``spherical`` or ``full``. With fewer clients than widths a full one
            is not reliable.
        n_init: how many starts of ``gmm`` or ``kmeans`` the best is taken from.

    >>> group_clients(torch.tensor([[0.0, 1.0], [5.0, 5.0], [0.0, 1.1]]), 2).labels.tolist()
    [0, 1, 0]
    """
    if vectors.ndim != 2 or not len(vectors):
        raise UsageError(
            f"vectors must be (clients, width), at least one client; got shape {tuple(vectors.shape)}.",
            code="data-empty",
            got=tuple(vectors.shape),
            what="vectors",
        )
    for title, value in (("count of groups", count), ("n_init", n_init)):
        if value < 1:
            raise UsageError(f"{title} must be at least 1, got {value}.", code="out-of-range", got=value, setting=title)
    if method not in METHODS:
        raise unknown_name("method of grouping", method, METHODS)
    if covariance not in COVARIANCES:
        raise unknown_name("covariance", covariance, COVARIANCES)
    points = vectors.detach().double().cpu().numpy()
    if not np.isfinite(points).all():
        raise DataError(
            "vectors of clients to be grouped must be finite; got NaN or infinity.", code="not-finite", what="vectors"
        )
    if method == "finch":
        found = first_neighbours(points)
    else:
        found = _fitted(points.tobytes(), points.shape, count, method, covariance, n_init, seed)
    numbers: dict[int, int] = {}
    labels = torch.tensor([numbers.setdefault(int(label), len(numbers)) for label in found])
    return Groups(labels, group_means(vectors, labels))


def group_means(vectors: Tensor, labels: Tensor) -> Tensor:
    """Return (groups, width): the mean vector of each group; labels are 0, 1, ..., none left out."""
    count = int(labels.max()) + 1
    return torch.stack([vectors[(labels == group).to(vectors.device)].mean(0) for group in range(count)])


@lru_cache(maxsize=4)  # a round's groups are asked for twice, by the weights and by the server
def _fitted(
    values: bytes, shape: tuple[int, ...], count: int, method: str, covariance: str, n_init: int, seed: int
) -> np.ndarray:
    """Return the groups of k-means, or the likeliest components of a mixture of Gaussians.

    In many dimensions a component around one point alone, of no variance, is likelier than any true one, and of many
    starts the worst would win. So no variance may fall below a share of the whole.
    """
    from sklearn.cluster import KMeans  # takes seconds to import
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    points = np.frombuffer(values).reshape(shape)
    count = min(count, len(np.unique(points, axis=0)))
    if count == 1:
        return np.zeros(len(points), dtype=np.int64)
    state = derive(seed, "groups") % 2**32
    scaled = points - points.mean(0)
    scaled /= scaled.std()
    model = (
        KMeans(count, n_init=n_init, random_state=state)
        if method == "kmeans"
        else GaussianMixture(
            count, covariance_type=covariance, n_init=n_init, reg_covar=VARIANCE_FLOOR, random_state=state
        )
    )
    with warnings.catch_warnings():
        # Points that hardly differ make fewer groups, and a start may go on between equally good fits; either will do.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(model.fit_predict(scaled))


def first_neighbours(points: np.ndarray) -> np.ndarray:
    """Return FINCH's first partition: who is, by cosine, another's nearest is in the other's group.

    Sarfraz et al., "Efficient Parameter-free Clustering Using First Neighbor Relations", CVPR 2019.
    """
    from scipy.sparse import coo_array  # here, as it takes longer to load than all of this package
    from scipy.sparse.csgraph import connected_components

    norms = np.linalg.norm(points, axis=1, keepdims=True)
    unit = points / np.where(norms > 0, norms, 1)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    clients = np.arange(len(points))
    # Two that share a nearest are linked through it, so the links to the nearest are all that is needed.
    links = coo_array((np.ones(len(points)), (clients, similarity.argmax(1))), shape=similarity.shape)
    return np.asarray(connected_components(links, directed=False)[1])


def cluster_accuracy(labels: Tensor, types: Sequence[Hashable]) -> float:
    """Return the share of clients that are of their group's most frequent type.

    >>> cluster_accuracy(torch.tensor([0, 0, 0, 1]), ["photo", "photo", "sketch", "sketch"])
    0.75
    """
    if len(labels) != len(types) or not len(labels):
        raise UsageError(
            f"give one type for each client, at least one client; got {len(types)} for {len(labels)}.",
            code="data-empty",
            got=len(types),
            what="types",
            wanted=len(labels),
        )
    members: dict[int, Counter[Hashable]] = {}
    for label, kind in zip(labels.tolist(), types, strict=True):
        members.setdefault(label, Counter())[kind] += 1
    return sum(max(counts.values()) for counts in members.values()) / len(types)


def like_together(similarity: np.ndarray) -> list[int]:
    """Return an order of clients in which neighbours are alike, by how alike every two are: a cosine, 1 at most.

    Very many clients stay as they are.
    """
    # Here, as they take longer to load than all of this package.
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    if not 1 < len(similarity) <= MOST_ORDERED:
        return list(range(len(similarity)))
    distances = squareform(1 - similarity, checks=False).clip(min=0)
    tree = linkage(distances, "average", optimal_ordering=len(similarity) <= BEST_ORDERED)
    return [int(i) for i in leaves_list(tree)]
