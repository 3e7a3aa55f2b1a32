import inspect
from collections import Counter

import numpy as np
import pytest
import torch

from fedatlas.config import Config
from fedatlas.data import PARTITIONS, DomainImbalance, federate, from_arrays
from fedatlas.data.partitions.basic import ByDomain, Dirichlet, Iid, NaturalId, Share
from fedatlas.errors import DataError, UsageError
from raising import raises


def toy(domain_sizes=(200, 100, 100), test_every: int | None = 5):
    count = sum(domain_sizes)
    return from_arrays(
        np.arange(count, dtype=np.float32)[:, None],
        np.arange(count) % 4,
        name="toy",
        domain=np.repeat([f"d{i}" for i in range(len(domain_sizes))], domain_sizes),
        owner=np.arange(count) // 40,
        is_test=None if test_every is None else np.arange(count) % test_every == 0,
    )


def together(client) -> set[int]:
    return set(client.train.tolist()) | set(client.test.tolist())


def test_the_registry_describes_every_partition_in_a_line():
    assert {
        "iid",
        "dirichlet",
        "pathological",
        "shard",
        "quantity",
        "by-domain",
        "domain-imbalance",
        "natural-id",
    } <= set(PARTITIONS)
    for partition in PARTITIONS.values():
        assert inspect.getdoc(partition).split("\n")[0].endswith(".")


def test_clients_are_tested_on_their_own_examples_from_the_merged_split():
    data = toy()
    federation = federate(data, Iid(num_clients=4))
    assert set().union(*(together(client) for client in federation)) == set(range(400))
    for client in federation:
        assert (len(client.train), len(client.test)) == (75, 25)
        assert not set(client.train.tolist()) & set(client.test.tolist())
    assert any(data.is_test[client.train].any() for client in federation)


def test_clients_are_tested_on_their_domain():
    data = toy()
    federation = federate(data, ByDomain(clients_per_domain=2), test="domain")
    assert [client.domain for client in federation] == ["d0", "d0", "d1", "d1", "d2", "d2"]
    for client in federation:
        own = data.domain == data.domains.index(client.domain)
        assert client.test.tolist() == (own & data.is_test).nonzero().flatten().tolist()
        assert not data.is_test[client.train].any()
        assert own[client.train].all()
    assert sum(len(client.train) for client in federation) == 320


def test_clients_are_tested_on_everything():
    data = toy()
    federation = federate(data, Dirichlet(num_clients=5, alpha=1.0), test="all")
    for client in federation:
        assert client.test.tolist() == data.is_test.nonzero().flatten().tolist()
        assert not data.is_test[client.train].any()
    assert len(torch.cat([client.train for client in federation]).unique()) == 320


def test_a_data_set_without_a_split_is_split_inside_each_class_of_each_domain():
    data = toy(test_every=None)
    federation = federate(data, ByDomain(), test="domain", test_fraction=0.2, seed=3)
    for client, size in zip(federation, (200, 100, 100), strict=True):
        assert data.labels[client.test].bincount().tolist() == [size // 20] * 4
        assert len(client.train) == size * 4 // 5
        assert not set(client.train.tolist()) & set(client.test.tolist())
    again = federate(data, ByDomain(), test="domain", test_fraction=0.2, seed=3)
    assert all(torch.equal(a.test, b.test) for a, b in zip(federation, again, strict=True))


def test_the_seed_decides_the_partition_and_the_test_part():
    data = toy()
    first, same, other = (federate(data, Iid(num_clients=4), seed=seed, held_out=1) for seed in (0, 0, 1))
    assert all(torch.equal(a.train, b.train) and a.held_out == b.held_out for a, b in zip(first, same, strict=True))
    assert not any(torch.equal(a.test, b.test) for a, b in zip(first, other, strict=True))


def test_natural_clients_keep_their_names_and_get_the_domain_they_are_in():
    with pytest.warns(
        UserWarning, match=r"toy: 1 of 10 owners have examples of several domains .* leave them out: 7\."
    ):
        federation = federate(toy(), NaturalId())
    assert [client.name for client in federation] == [str(i) for i in range(10)]
    # Owner 7 holds 280 to 319, across the border of d1 and d2 at 300.
    assert [client.domain for client in federation] == ["d0"] * 5 + ["d1"] * 2 + [None] + ["d2"] * 2


def test_a_partition_may_set_its_own_test_examples():
    class Own:
        def assign(self, data, rng):
            return [Share(name="mine", indices=np.array([5, 3]), test=np.array([9, 8]))]

    client = federate(toy(), Own()).clients[0]
    assert (client.train.tolist(), client.test.tolist()) == ([3, 5], [8, 9])


def test_a_client_with_one_example_trains_on_it():
    data = from_arrays(np.zeros((5, 1)), [0, 1, 0, 1, 0])
    assert [(len(c.train), len(c.test)) for c in federate(data, Iid(num_clients=4))] == [(1, 1), (1, 0), (1, 0), (1, 0)]


@pytest.mark.parametrize("held_out", [6, 0.25])
def test_held_out_clients_are_spread_over_the_domains(held_out):
    federation = federate(toy(), ByDomain(clients_per_domain=8), held_out=held_out)
    out = [client for client in federation if client.held_out]
    assert Counter(client.domain for client in out) == {"d0": 2, "d1": 2, "d2": 2}
    assert all(len(client.train) and len(client.test) for client in out)


def test_clients_and_whole_domains_are_held_out_by_name():
    one = ByDomain(clients_per_domain=1)
    for held_out, expected in ((["d1"], {"d1-0"}), ("d2-0", {"d2-0"}), (["d0", "d2-0"], {"d0-0", "d2-0"})):
        federation = federate(toy(), one, held_out=held_out)
        assert {client.name for client in federation if client.held_out} == expected
    with raises(UsageError, "unknown-name", kind="client, domain or type in held_out", got="d9"):
        federate(toy(), one, held_out=["d9"])
    assert Config.load(data={"source": "digits", "held_out": ["photo"]}).values["data"]["held_out"] == ["photo"]


def test_every_domain_keeps_a_client_that_trains():
    federation = federate(toy(), ByDomain(clients_per_domain=2), held_out=3)
    assert Counter(client.domain for client in federation if not client.held_out) == {"d0": 1, "d1": 1, "d2": 1}
    with raises(UsageError, "held-out", got=4, most=3):
        federate(toy(), ByDomain(clients_per_domain=2), held_out=4)


def test_clients_without_domains_are_held_out_at_random():
    data = from_arrays(np.zeros((100, 1)), [0, 1] * 50)
    chosen = [
        tuple(client.name for client in federate(data, Iid(num_clients=10), held_out=3, seed=seed) if client.held_out)
        for seed in range(4)
    ]
    assert all(len(names) == 3 for names in chosen)
    assert len(set(chosen)) > 1


def test_the_line_says_how_the_clients_came_about():
    federation = federate(toy(), Dirichlet(num_clients=4, alpha=0.5), held_out=1, seed=7)
    assert federation.partition == (
        "Dirichlet(num_clients=4, alpha=0.5, min_samples=10), 0.25 of each client's examples for test, "
        "1 held out, seed 7"
    )
    federation = federate(toy(), DomainImbalance(factor=1), test="domain")
    assert federation.partition == "DomainImbalance(factor=1), test on domain, 0 held out, seed 0"


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"test": "clients"}, "unknown-name", {"kind": "test", "got": "clients"}),
        ({"test_fraction": 0.0}, "out-of-range", {"setting": "test_fraction", "got": 0.0}),
        ({"held_out": -1}, "held-out", {"got": -1}),
        ({"held_out": 1.0}, "held-out", {"got": 1.0}),
        ({"test": "domain"}, "partition-unfit", {"client": "client-00"}),
    ],
)
def test_wrong_settings_are_refused(settings, code, fields):
    with raises(UsageError, code, **fields):
        federate(toy(), Iid(num_clients=4), **settings)


def test_testing_on_domains_needs_domains():
    with raises(UsageError, "domains-missing", data="arrays"):
        federate(from_arrays(np.zeros((100, 1)), [0, 1] * 50), Iid(num_clients=4), test="domain")


def test_an_official_split_without_test_examples_is_refused():
    with raises(DataError, "split-unfit", missing="test"):
        federate(from_arrays(np.zeros((10, 1)), [0, 1] * 5, is_test=[False] * 10), Iid(num_clients=2), test="all")


def test_a_client_without_examples_is_named():
    class Empty:
        def assign(self, data, rng):
            return [Share(name="poor", indices=np.array([], np.int64))]

    with raises(DataError, "too-few-examples", client="poor"):
        federate(toy(), Empty())


def test_data_and_federations_are_told_in_a_line():
    data = toy()
    assert repr(data) == "Dataset('toy', 400 examples, features of shape (1,), 4 classes, 3 domains, 10 owners)"
    federation = federate(data, ByDomain(clients_per_domain=2), held_out=1)
    shown = repr(federation)
    assert shown.startswith(
        "Federation('toy', 6 clients (1 held out); 264 examples to train on; domains d0, d1, d2; By"
    )
    assert "\n" not in shown
    shown = repr(federation.clients[0])
    assert shown == "Client('d0-0', 75 examples to train on, 25 to test on, domain d0)"
    many = federate(toy(domain_sizes=(40,) * 10), ByDomain(clients_per_domain=1))
    assert "; 10 domains; " in repr(many)


def test_the_seed_decides_who_has_what_and_apart_from_it_what_is_tested():
    """The parts are looked at one by one: another draw of either would hide that the other does not move."""
    data = toy(test_every=None)
    first, other = (federate(data, Iid(num_clients=4), seed=seed) for seed in (0, 1))
    assert not any(together(a) == together(b) for a, b in zip(first, other, strict=True))
    with pytest.warns(UserWarning, match="several domains"):
        first, other = (federate(data, NaturalId(), seed=seed) for seed in (0, 1))
    assert all(together(a) == together(b) for a, b in zip(first, other, strict=True))
    assert not any(torch.equal(a.test, b.test) for a, b in zip(first, other, strict=True))
    places = {tuple(a.test.sub(min(together(a))).tolist()) for a in first}
    assert len(places) == len(first)


def test_the_split_of_a_data_set_without_one_is_drawn_and_the_seed_decides():
    """Data often lie in an order; the first fifth of each class would be no fair test."""
    data = toy(test_every=None)
    first, other = (federate(data, ByDomain(), test="domain", seed=seed) for seed in (0, 1))
    assert not any(torch.equal(a.test, b.test) for a, b in zip(first, other, strict=True))


def test_held_out_fractions_are_rounded():
    """0.35 of ten clients is 3.5, rounded to even: 4."""
    assert sum(client.held_out for client in federate(toy(), Iid(num_clients=10), held_out=0.35)) == 4
