import numpy as np
import pytest
import torch

from fedatlas.config import Config
from fedatlas.data import ColorShift, Dataset, Federation, GaussianNoise, federate
from fedatlas.data.partitions.degradations import Degraded, imbalance_alphas, paper_degradations
from fedatlas.errors import UsageError
from fedatlas.seeds import generator, numpy_generator
from raising import raises


def pictures(count: int = 1200, channels: int = 3, num_classes: int = 10) -> Dataset:
    rng = generator(0, "pictures")
    inputs = torch.randint(256, (count, channels, 4, 4), dtype=torch.uint8, generator=rng)
    labels = torch.arange(count) % num_classes
    return Dataset(name="pictures", inputs=inputs, labels=labels, classes=tuple(map(str, range(num_classes))))


def degrade(data: Dataset, num_clients: int = 30, held_out: int = 6, seed: int = 0) -> Federation:
    return federate(data, Degraded(num_clients=num_clients), test_fraction=0.2, held_out=held_out, seed=seed)


def changes(num_clients: int = 30, seed: int = 0) -> list[object]:
    return list(paper_degradations(num_clients, numpy_generator(seed)))


def test_variances_are_equally_spaced() -> None:
    """Ten clients from 0.005 to 1: steps of 0.995 / 9."""
    variances = [change.variance for change in changes()[:10] if isinstance(change, GaussianNoise)]
    assert variances == pytest.approx([0.005 + i * 0.995 / 9 for i in range(10)])


def test_colour_factors_are_equally_spaced_and_each_dealt_by_its_own_permutation() -> None:
    shifts = [change for change in changes(seed=3) if isinstance(change, ColorShift)]
    assert len(shifts) == 10
    steps = np.linspace(0, 1, 10)
    dealt = {name: [getattr(s, name) for s in shifts] for name in ("brightness", "contrast", "saturation", "hue")}
    for name, values in dealt.items():
        assert sorted(values) == pytest.approx((-0.5 if name == "hue" else 0.5) + steps)
    assert len({tuple(np.argsort(values)) for values in dealt.values()}) == 4
    assert changes(seed=3) == changes(seed=3)
    assert changes(seed=3)[10:20] != changes(seed=4)[10:20]


def test_alphas_are_spaced_by_equal_factors_and_shared_by_pairs() -> None:
    """Five values from 0.1 to 10: factors of 10^(1/2)."""
    alphas = imbalance_alphas(30)
    assert alphas[::2] == alphas[1::2]
    assert alphas[::2] == pytest.approx([0.1 * 10 ** (i / 2) for i in range(5)])


def test_three_kinds_of_clients_divide_the_data() -> None:
    data = pictures()
    federation = degrade(data, num_clients=30, held_out=6, seed=1)
    assert federation.domains == ("noise", "jitter", "imbalance")
    assert [c.domain for c in federation] == ["noise"] * 10 + ["jitter"] * 10 + ["imbalance"] * 10
    assert [c.name for c in federation][9:11] == ["noise-09", "jitter-00"]
    held = torch.cat([part for c in federation for part in (c.train, c.test)])
    assert held.sort().values.tolist() == list(range(1200))
    assert {(len(c.train), len(c.test)) for c in federation.clients[:20]} == {(32, 8)}
    for kind in federation.domains:
        assert sum(c.held_out for c in federation if c.domain == kind) == 2
    assert all(len(c.train) + len(c.test) >= 10 for c in federation)
    assert sorted(repr(c.transform) for c in federation.clients[:10]) == sorted(map(repr, changes()[:10]))
    assert all(isinstance(c.transform, ColorShift) for c in federation.clients[10:20])
    assert all(c.transform is None for c in federation.clients[20:])


def test_a_pair_shares_its_subset_and_a_small_alpha_divides_its_classes() -> None:
    """400 of 1200 examples in five subsets of 80, each for two clients. How far a pair's mixes are apart (half the sum
    of the differences of their label shares) falls with alpha."""
    apart = np.zeros(5)
    for seed in range(8):
        shares = Degraded(num_clients=30).assign(pictures(), numpy_generator(seed))[20:]
        for pair in range(5):
            one, two = (np.bincount(s.indices % 10, minlength=10) for s in shares[2 * pair : 2 * pair + 2])
            assert one.sum() + two.sum() == 80
            apart[pair] += np.abs(one / one.sum() - two / two.sum()).sum() / 16
    assert apart[0] > 0.7
    assert apart[4] < 0.4
    assert apart[0] > apart[2] > apart[4]


def test_folds_keep_degradations_and_held_out_clients() -> None:
    whole = degrade(pictures(), num_clients=12, held_out=3)
    federation = whole.fold(0, 5)
    assert {len(c.test) for c in federation.clients[:8]} == {20}
    assert [c.transform for c in federation] == [c.transform for c in whole]
    assert [sum(c.held_out for c in federation if c.domain == kind) for kind in federation.domains] == [1, 1, 1]


def test_what_the_paper_cannot_build_is_refused() -> None:
    with raises(UsageError, "out-of-range", got=10, setting="num_clients"):
        degrade(pictures(), num_clients=10)
    with raises(UsageError, "kind-mismatch", data="pictures"):
        degrade(pictures(channels=1))
    with raises(UsageError, "too-few-examples", clients=30):
        degrade(pictures(120))
    with raises(UsageError, "held-out", got=6):
        degrade(pictures(), num_clients=6, held_out=6)


def test_a_config_reaches_the_papers_clients_folds_and_augmentation() -> None:
    config = Config.load(
        data={"partition": {"name": "degraded", "num_clients": 12}, "held_out": 3, "folds": 5, "fold": 1},
        training={"augment": {"padding": 4, "flip": 0.25, "rotate": 0.25, "erase": 0.5}},
    )
    federation = config.federation()
    assert [type(c.transform).__name__ for c in federation.clients[::4]] == ["GaussianNoise", "ColorShift", "NoneType"]
    assert [sum(c.held_out for c in federation if c.domain == kind) for kind in federation.domains] == [1, 1, 1]
    augment = config.work().augment
    assert augment is not None
    images = torch.rand(6, 3, 32, 32, generator=generator(0))
    assert not torch.equal(augment(images, generator(1)), images)
    again = Config.load(data={"partition": {"name": "degraded", "num_clients": 12}, "held_out": 3, "folds": 5})
    assert [c.transform for c in again.federation()] == [c.transform for c in federation]


def test_only_some_domains_of_a_data_set_can_be_taken() -> None:
    config = Config.load(data={"domains": ["photo", "thin"], "partition": {"name": "by-domain"}})
    federation = config.federation()
    assert federation.domains == ("photo", "thin")
    assert len(federation.data) < len(Config.load().dataset())
    whole = Config.load().dataset()
    assert whole.domain is not None
    thin = federation.clients[1]
    own = torch.cat([thin.train, thin.test]).sort().values
    assert torch.equal(federation.data.inputs[own], whole.inputs[whole.domain == whole.domains.index("thin")])
    with raises(UsageError, "unknown-name", kind="domain", got="photos"):
        Config.load(data={"domains": ["photos"]}).dataset()


def test_kinds_have_like_classes_though_the_data_are_in_order() -> None:
    """1200 pictures sorted by class: each third of the clients has about 40 of each of ten classes."""
    data = pictures()
    data = Dataset(name="sorted", inputs=data.inputs, labels=data.labels.sort().values, classes=data.classes)
    shares = Degraded(num_clients=12).assign(data, numpy_generator(0))
    for first in (0, 4, 8):
        own = np.concatenate([share.indices for share in shares[first : first + 4]])
        assert min(np.bincount(data.labels.numpy()[own], minlength=10)) > 20


def test_the_least_number_of_examples_is_that_of_the_settings() -> None:
    """600 pictures: a pair of clients with unequal classes has 100, and at 45 each has nearly half, whatever alpha."""
    for seed in range(3):
        shares = Degraded(num_clients=12, min_samples=45).assign(pictures(600), numpy_generator(seed))
        assert min(len(share.indices) for share in shares) >= 45
