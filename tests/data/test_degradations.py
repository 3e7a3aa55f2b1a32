import numpy as np
import pytest
import torch

from fedatlas.data import ColorShift, Dataset, Federation, GaussianNoise
from fedatlas.data.degradations import Degraded, degrade, imbalance_alphas, paper_degradations
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import generator, numpy_generator


def pictures(count: int = 1200, channels: int = 3, num_classes: int = 10) -> Dataset:
    rng = generator(0, "pictures")
    inputs = torch.randint(256, (count, channels, 4, 4), dtype=torch.uint8, generator=rng)
    labels = torch.arange(count) % num_classes
    return Dataset(name="pictures", inputs=inputs, labels=labels, classes=tuple(map(str, range(num_classes))))


def test_variances_are_equally_spaced() -> None:
    """Ten clients from 0.005 to 1: steps of 0.995 / 9."""
    changes = paper_degradations(30)[:10]
    variances = [change.variance for change in changes if isinstance(change, GaussianNoise)]
    assert variances == pytest.approx([0.005 + i * 0.995 / 9 for i in range(10)])


def test_colour_factors_are_equally_spaced_and_each_dealt_by_its_own_permutation() -> None:
    shifts = [change for change in paper_degradations(30, seed=3) if isinstance(change, ColorShift)]
    assert len(shifts) == 10
    steps = np.linspace(0, 1, 10)
    dealt = {name: [getattr(s, name) for s in shifts] for name in ("brightness", "contrast", "saturation", "hue")}
    for name, values in dealt.items():
        assert sorted(values) == pytest.approx((-0.5 if name == "hue" else 0.5) + steps)
    assert len({tuple(np.argsort(values)) for values in dealt.values()}) == 4
    assert paper_degradations(30, seed=3) == paper_degradations(30, seed=3)
    assert paper_degradations(30, seed=3)[10:20] != paper_degradations(30, seed=4)[10:20]


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
    assert [c.transform for c in federation] == paper_degradations(30, seed=1)


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
    federation: Federation = degrade(pictures(), num_clients=12, held_out=3).fold(0, 5)
    assert {len(c.test) for c in federation.clients[:8]} == {20}
    assert [c.transform for c in federation] == paper_degradations(12)
    assert [sum(c.held_out for c in federation if c.domain == kind) for kind in federation.domains] == [1, 1, 1]


def test_what_the_paper_cannot_build_is_refused() -> None:
    with pytest.raises(UsageError, match=r"num_clients must be a multiple of 6.*got 10"):
        degrade(pictures(), num_clients=10)
    with pytest.raises(UsageError, match="needs colour images"):
        degrade(pictures(channels=1))
    with pytest.raises(UsageError, match="too few for 30 clients with 10 each"):
        degrade(pictures(120))
    with pytest.raises((UsageError, DataError), match="held_out"):
        degrade(pictures(), num_clients=6, held_out=6)
