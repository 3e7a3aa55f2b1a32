import numpy as np
import pytest
import torch

from fedatlas.data.dataset import Dataset
from fedatlas.data.partitions.basic import (
    ByDomain,
    Dirichlet,
    Exponential,
    Iid,
    Linear,
    NaturalId,
    Pathological,
    Quantity,
    Shard,
    Square,
)
from fedatlas.errors import DataError, UsageError
from raising import raises


def toy(count: int = 1000, num_classes: int = 10, **extra) -> Dataset:
    return Dataset(
        name="toy",
        inputs=torch.zeros(count, 1),
        labels=torch.arange(count) % num_classes,
        classes=tuple(str(i) for i in range(num_classes)),
        **extra,
    )


def with_domains(*sizes: int) -> Dataset:
    names = tuple("abc"[: len(sizes)])
    domain = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return toy(sum(sizes), domains=names, domain=domain)


def assign(partition, data, seed: int = 0):
    return partition.assign(data, np.random.default_rng(seed))


def sizes(shares) -> list[int]:
    return [len(share.indices) for share in shares]


def class_counts(data, shares) -> np.ndarray:
    labels = data.labels.numpy()
    return np.stack([np.bincount(labels[share.indices], minlength=len(data.classes)) for share in shares])


WHOLE = [
    Iid(num_clients=7),
    Dirichlet(num_clients=7, alpha=0.5),
    Pathological(num_clients=7, classes_per_client=3),
    Shard(num_clients=7),
    Quantity(num_clients=7),
    Linear(num_clients=7),
    Square(num_clients=7),
    Exponential(num_clients=5),
    ByDomain(clients_per_domain=3),
]


@pytest.mark.parametrize("partition", WHOLE, ids=lambda p: type(p).__name__)
def test_every_example_goes_to_exactly_one_client_and_the_seed_decides(partition):
    data = with_domains(600, 400)
    shares = assign(partition, data)
    assert np.array_equal(np.sort(np.concatenate([share.indices for share in shares])), np.arange(1000))
    assert len({share.name for share in shares}) == len(shares)
    again, other = assign(partition, data), assign(partition, data, seed=1)
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(shares, again, strict=True))
    assert not all(np.array_equal(a.indices, b.indices) for a, b in zip(shares, other, strict=True))


def test_iid_clients_have_equal_sizes_and_padded_names():
    shares = assign(Iid(num_clients=3), toy(10))
    assert sizes(shares) == [4, 3, 3]
    assert [share.name for share in shares] == ["client-00", "client-01", "client-02"]
    assert assign(Iid(num_clients=101), toy())[7].name == "client-007"


def test_dirichlet_gives_every_client_the_least_samples():
    for seed in range(5):
        shares = assign(Dirichlet(num_clients=20, alpha=0.1, min_samples=25), toy(2000), seed)
        assert min(sizes(shares)) >= 25


def test_dirichlet_gives_nothing_of_later_classes_to_a_client_with_its_fair_share():
    """With 10 clients of 100 fair examples each, whoever passes 100 in class k has nothing of classes above k."""
    data = toy(1000)
    for seed in range(5):
        counts = class_counts(data, assign(Dirichlet(num_clients=10, alpha=0.3, min_samples=1), data, seed))
        before = counts.cumsum(1) - counts
        assert (counts[before >= 100] == 0).all()


def test_a_smaller_alpha_concentrates_the_classes():
    data = toy(5000)
    held = [
        (class_counts(data, assign(Dirichlet(num_clients=10, alpha=alpha), data)) > 25).sum(1).mean()
        for alpha in (0.05, 1.0, 100.0)
    ]
    assert held[0] < held[1] < held[2] == 10


def test_dirichlet_says_when_the_least_samples_cannot_be_had(monkeypatch):
    monkeypatch.setattr("fedatlas.data.partitions.basic.MAX_TRIES", 50)
    with raises(DataError, "too-few-examples", wanted=90):
        assign(Dirichlet(num_clients=10, alpha=0.05, min_samples=90), toy(1000))


def test_pathological_clients_have_their_number_of_classes_divided_equally():
    data = toy(1000)
    counts = class_counts(data, assign(Pathological(num_clients=20, classes_per_client=2), data))
    assert ((counts > 0).sum(1) == 2).all()
    for column in counts.T:
        held = column[column > 0]
        assert held.sum() == 100
        assert held.max() - held.min() <= 1


def test_pathological_leaves_no_class_without_a_client_when_there_are_enough():
    data = toy(1000)
    for seed in range(30):
        counts = class_counts(data, assign(Pathological(num_clients=5, classes_per_client=2), data, seed))
        assert (counts.sum(0) == 100).all()
        assert ((counts > 0).sum(1) == 2).all()


def test_pathological_leaves_classes_over_when_there_are_too_few_clients():
    data = toy(1000)
    counts = class_counts(data, assign(Pathological(num_clients=2, classes_per_client=3), data))
    assert sorted(counts.sum(0).tolist()) == [0] * 4 + [100] * 6


def test_shards_are_runs_of_the_sorted_classes():
    data = toy(1000)
    counts = class_counts(data, assign(Shard(num_clients=10, shards_per_client=2), data))
    assert (counts.sum(1) == 100).all()
    assert ((counts > 0).sum(1) <= 2).all()


def test_quantity_gives_unequal_sizes_with_the_same_mix():
    data = toy(20_000)
    shares = assign(Quantity(num_clients=10, alpha=0.5, min_samples=200), data)
    assert min(sizes(shares)) >= 200
    assert max(sizes(shares)) > 3 * min(sizes(shares))
    mix = class_counts(data, shares) / np.array(sizes(shares))[:, None]
    assert np.abs(mix - 0.1).max() < 0.08


def test_sizes_grow_as_their_name_says():
    assert sizes(assign(Linear(num_clients=4), toy(1000))) == [100, 200, 300, 400]
    assert sizes(assign(Square(num_clients=3), toy(1400))) == [100, 400, 900]
    grown = sizes(assign(Exponential(num_clients=3), toy(100_000)))
    assert grown[1] / grown[0] == pytest.approx(np.e, rel=1e-3)


def test_by_domain_gives_each_domain_its_clients():
    shares = assign(ByDomain(clients_per_domain=2), with_domains(11, 20))
    assert [(share.name, share.domain, len(share.indices)) for share in shares] == [
        ("a-0", "a", 6),
        ("a-1", "a", 5),
        ("b-0", "b", 10),
        ("b-1", "b", 10),
    ]
    assert assign(ByDomain(clients_per_domain=11), with_domains(20, 20))[3].name == "a-03"


def test_natural_id_gives_each_owner_its_own_examples():
    data = toy(8, owners=("ann", "bob", "cy"), owner=torch.tensor([1, 0, 1, 2, 1, 0, 0, 0]))
    with pytest.warns(UserWarning, match=r"1 of 3 owners in .* fewer than 2 examples and are left out: cy\."):
        shares = assign(NaturalId(), data)
    assert [(share.name, share.indices.tolist()) for share in shares] == [("ann", [1, 5, 6, 7]), ("bob", [0, 2, 4])]
    assert len(assign(NaturalId(min_samples=1), data)) == 3
    # A least number that was chosen goes without a warning.
    assert len(assign(NaturalId(min_samples=3, num_clients=1), data)) == 1
    assert len(assign(NaturalId(min_samples=4), data)) == 1


@pytest.mark.parametrize(
    ("build", "code", "fields"),
    [
        (lambda: assign(Iid(num_clients=0), toy()), "out-of-range", {"setting": "num_clients", "got": 0}),
        (lambda: assign(Iid(num_clients=11), toy(10)), "too-few-examples", {"got": 10, "clients": 11}),
        (
            lambda: assign(Dirichlet(num_clients=10, alpha=1.0, min_samples=20), toy(100)),
            "too-few-examples",
            {"got": 100, "clients": 10},
        ),
        (lambda: Dirichlet(num_clients=10, alpha=0.0), "out-of-range", {"setting": "alpha", "got": 0.0}),
        (lambda: Quantity(num_clients=10, alpha=-1.0), "out-of-range", {"setting": "alpha", "got": -1.0}),
        (
            lambda: assign(Pathological(num_clients=3, classes_per_client=11), toy()),
            "out-of-range",
            {"setting": "classes_per_client", "most": 10},
        ),
        (
            lambda: assign(Shard(num_clients=3, shards_per_client=0), toy()),
            "out-of-range",
            {"setting": "shards_per_client", "got": 0},
        ),
        (lambda: assign(Exponential(num_clients=20), toy()), "too-few-examples", {"got": 1000, "clients": 20}),
        (lambda: assign(ByDomain(), toy()), "domains-missing", {"data": "toy"}),
        (
            lambda: assign(ByDomain(clients_per_domain=0), toy()),
            "out-of-range",
            {"setting": "clients_per_domain", "got": 0},
        ),
        (
            lambda: assign(ByDomain(clients_per_domain=5), with_domains(9, 3)),
            "too-few-examples",
            {"domain": "b", "got": 3, "clients": 5},
        ),
        (lambda: assign(NaturalId(), toy()), "owners-missing", {"data": "toy"}),
    ],
)
def test_impossible_partitions_are_refused(build, code, fields):
    with raises(UsageError, code, **fields):
        build()


def test_natural_id_says_how_many_owners_there_are():
    data = toy(4, owners=("ann", "bob"), owner=torch.tensor([0, 0, 0, 1]))
    with raises(UsageError, "too-few-examples", got=1, clients=2):
        assign(NaturalId(num_clients=2), data)


def test_shards_are_dealt_at_random():
    """Twenty shards of ten classes, two a client: not all have two of neighbouring classes."""
    counts = class_counts(toy(), assign(Shard(num_clients=10, shards_per_client=2), toy()))
    assert any(np.ptp(np.flatnonzero(own)) > 1 for own in counts)


@pytest.mark.parametrize(
    "partition", [Shard(num_clients=1), Dirichlet(num_clients=2, alpha=1e6)], ids=["shard", "dirichlet"]
)
def test_which_examples_of_a_class_a_client_gets_is_drawn(partition):
    """Else whoever comes first would have the first of the file."""
    orders = [np.concatenate([share.indices for share in assign(partition, toy(), seed)]).tolist() for seed in (0, 1)]
    firsts = [[i for i in order if i % 10 == 0] for order in orders]
    assert firsts[0] != firsts[1]


def test_what_is_left_over_goes_to_the_largest_client():
    """Ten examples as 1 : 2 : 3 are 1, 3 and 5 rounded down; the last has the one that is left."""
    assert sizes(assign(Linear(num_clients=3), toy(10))) == [1, 3, 6]


def test_owners_are_drawn_and_not_the_first_ones_taken():
    data = toy(100, owners=tuple("abcdefghij"), owner=torch.arange(100) // 10)
    drawn = [tuple(share.name for share in assign(NaturalId(num_clients=3), data, seed)) for seed in range(5)]
    assert len(set(drawn)) > 1


def test_a_least_number_that_is_just_met_will_do():
    assert sizes(assign(Dirichlet(num_clients=1, alpha=1.0, min_samples=40), toy(40))) == [40]
    assert sizes(assign(Quantity(num_clients=1, min_samples=40), toy(40))) == [40]
