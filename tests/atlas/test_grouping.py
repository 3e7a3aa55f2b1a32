import numpy as np
import pytest
import torch
from torch import Tensor

from fedatlas.atlas import grouping
from fedatlas.atlas.grouping import METHODS, cluster_accuracy, first_neighbours, group_clients, like_together
from fedatlas.errors import DataError, UsageError
from raising import raises

COUNTS = (10, 6, 3, 2, 1)
TYPES = [kind for kind, count in enumerate(COUNTS) for _ in range(count)]


def domains(width: int = 64, noise: float = 0.3, scale: float = 1.0) -> Tensor:
    """22 clients of five types, in the proportions of an imbalanced federation."""
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(len(COUNTS), width, generator=rng)
    return scale * (centres[torch.tensor(TYPES)] + noise * torch.randn(len(TYPES), width, generator=rng))


def test_a_full_covariance_needs_more_clients_than_widths() -> None:
    """Eighty clients of two numbers each are enough; the clients of the next test are not."""
    rng = torch.Generator().manual_seed(0)
    points = torch.randn(80, 2, generator=rng) + torch.tensor([[0.0, 0.0]] * 40 + [[10.0, 10.0]] * 40)
    assert group_clients(points, 2, covariance="full").labels.tolist() == [0] * 40 + [1] * 40
    assert group_clients(domains(scale=1.0), 5, covariance="full").labels.tolist() != TYPES


@pytest.mark.parametrize("method", ["gmm", "kmeans"])
@pytest.mark.parametrize("covariance", ["diag", "spherical"])
def test_types_are_found_whatever_the_scale_of_the_vectors(method: str, covariance: str) -> None:
    for scale in (1e-3, 1.0, 1e3):
        groups = group_clients(domains(scale=scale), 5, method=method, covariance=covariance)
        assert groups.labels.tolist() == TYPES
        assert cluster_accuracy(groups.labels, TYPES) == 1.0


def test_a_mixture_does_not_take_lone_clients_for_types() -> None:
    """Two clients a type: without a floor on the variance, components around one client each win over the pairs."""
    rng = torch.Generator().manual_seed(1)
    centres = torch.randn(5, 256, generator=rng)
    types = [i // 2 for i in range(10)]
    vectors = centres[torch.tensor(types)] + torch.randn(10, 256, generator=rng)
    assert group_clients(vectors, 5, method="gmm").labels.tolist() == types


def test_centres_are_the_means_of_the_members_and_keep_the_vectors_type() -> None:
    vectors = torch.tensor([[0.0, 2.0], [9.0, 9.0], [0.0, 4.0], [9.0, 7.0]])
    labels, centres = group_clients(vectors, 2, method="kmeans")
    assert labels.tolist() == [0, 1, 0, 1]
    assert centres.tolist() == [[0.0, 3.0], [9.0, 8.0]]
    assert (labels.dtype, centres.dtype) == (torch.int64, torch.float32)


@pytest.mark.parametrize("method", METHODS)
def test_fewer_clients_than_groups_make_fewer_groups(method: str) -> None:
    for vectors in (torch.randn(1, 3), torch.tensor([[0.0, 1.0], [5.0, 0.0]]), torch.zeros(4, 3), torch.ones(3, 2)):
        labels, centres = group_clients(vectors, 5, method=method)
        assert len(labels) == len(vectors)
        assert len(centres) == len(labels.unique()) <= len(vectors)
        assert bool(centres.isfinite().all())


def test_clients_that_do_not_differ_are_one_group() -> None:
    for method in ("gmm", "kmeans"):
        assert group_clients(torch.ones(4, 3), 3, method=method).labels.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides_and_no_global_generator(method: str) -> None:
    vectors = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for number in (1, 2):
        torch.manual_seed(number)
        found.append(group_clients(vectors, 6, method=method, seed=3).labels.tolist())
    assert found[0] == found[1]


def test_finch_links_each_client_with_its_nearest() -> None:
    """Angles 0, 10, 15 and 90, 97 degrees: 0 -> 10 <-> 15 and 90 <-> 97 make two groups; lengths do not matter."""
    angles = torch.tensor([0.0, 90.0, 10.0, 15.0, 97.0]).deg2rad()
    lengths = torch.tensor([1.0, 5.0, 3.0, 0.1, 2.0])
    vectors = lengths[:, None] * torch.stack([angles.cos(), angles.sin()], dim=1)
    groups = group_clients(vectors, 1, method="finch")
    assert groups.labels.tolist() == [0, 1, 0, 0, 1]
    assert first_neighbours(vectors.numpy()[:1]).tolist() == [0]


def test_finch_finds_types_without_being_told_their_number() -> None:
    """A type of one client cannot be found: its nearest is of another type."""
    groups = group_clients(domains(), 99, method="finch")
    assert cluster_accuracy(groups.labels, TYPES) == pytest.approx(21 / 22)


def test_cluster_accuracy_counts_the_majority_of_each_group() -> None:
    """Groups of (a a b) and (b c): 2 and 1 of 5."""
    assert cluster_accuracy(torch.tensor([0, 0, 0, 4, 4]), ["a", "a", "b", "b", "c"]) == pytest.approx(3 / 5)


def test_what_cannot_be_grouped_is_refused() -> None:
    with raises(UsageError, "data-empty", what="vectors", got=(3,)):
        group_clients(torch.zeros(3), 2)
    with raises(UsageError, "out-of-range", setting="count of groups", got=0):
        group_clients(torch.zeros(3, 2), 0)
    with raises(UsageError, "out-of-range", setting="n_init", got=0):
        group_clients(torch.zeros(3, 2), 2, n_init=0)
    with raises(UsageError, "unknown-name", kind="method of grouping", got="gm"):
        group_clients(torch.zeros(3, 2), 2, method="gm")
    with raises(UsageError, "unknown-name", kind="covariance", got="tied"):
        group_clients(torch.zeros(3, 2), 2, covariance="tied")
    with raises(DataError, "not-finite"):
        group_clients(torch.tensor([[float("nan")], [0.0]]), 2)
    with raises(UsageError, "data-empty", what="types", got=1, wanted=2):
        cluster_accuracy(torch.tensor([0, 1]), ["a"])


def test_clients_that_are_alike_stand_together() -> None:
    angles = np.array([0.0, 1.5, 0.1, 1.6, 0.2])
    order = like_together(np.cos(angles[:, None] - angles))
    assert order in ([0, 2, 4, 1, 3], [3, 1, 4, 2, 0])  # by angle, from either end
    assert like_together(np.eye(2)) == [0, 1]
    assert like_together(np.ones((1, 1))) == [0]


def test_very_many_clients_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "MOST_ORDERED", 2)
    angles = np.array([0.0, 1.5, 0.1])
    assert like_together(np.cos(angles[:, None] - angles)) == [0, 1, 2]


def test_finch_goes_by_direction_and_not_by_length() -> None:
    """Two directions; the last client of each is a hundred times as long. By inner products all would be nearest to
    a long one, and of the long ones each to the other's: cosines 1 in a pair, 0.6 across."""
    vectors = torch.tensor([[1.0, 0.0], [100.0, 0.0], [0.6, 0.8], [60.0, 80.0]])
    assert group_clients(vectors, 1, method="finch").labels.tolist() == [0, 0, 1, 1]


def test_settings_reach_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed too: a start that finds other groups must be repeatable, and another one to be had."""
    import sklearn.cluster
    import sklearn.mixture

    asked: list[tuple[object, ...]] = []

    class Mixture(sklearn.mixture.GaussianMixture):
        def fit_predict(self, points: np.ndarray, y: object = None) -> np.ndarray:
            asked.append((self.covariance_type, self.n_init, self.random_state))
            return np.asarray(super().fit_predict(points))

    class Means(sklearn.cluster.KMeans):
        def fit_predict(self, points: np.ndarray, y: object = None) -> np.ndarray:
            asked.append((self.n_init, self.random_state))
            return np.asarray(super().fit_predict(points))

    monkeypatch.setattr(sklearn.mixture, "GaussianMixture", Mixture)
    monkeypatch.setattr(sklearn.cluster, "KMeans", Means)
    vectors = domains(width=3)
    for seed in (11, 12):
        group_clients(vectors, 2, method="gmm", covariance="diag", n_init=3, seed=seed)
        group_clients(vectors, 2, method="kmeans", n_init=4, seed=seed)
    assert [words[:-1] for words in asked] == [("diag", 3), (4,)] * 2
    assert asked[0][-1] != asked[2][-1]
