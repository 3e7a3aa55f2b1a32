import numpy as np
import pytest
import torch

from fedatlas.data.dataset import Dataset
from fedatlas.data.partitions.domain_imbalance import PRESETS, DomainImbalance
from fedatlas.errors import DataError, UsageError
from raising import raises

# The sizes of the paper's own runs, client by client, from its logs.
PUBLISHED = {
    ("digit-five", 1): [[371, 1115]] * 5,
    ("digit-five", 5): [[225, 338, 507, 761, 1142], [417, 626, 939], [528, 792], [352, 528], [587]],
    ("digit-five", 10): [
        [6, 12, 21, 38, 70, 126, 227, 409, 736, 1325],
        [40, 72, 129, 233, 420, 756],
        [151, 273, 491],
        [181, 327],
        [282],
    ],
    ("domainnet", 1): [[157, 472]] * 6,
    ("domainnet", 5): [
        [115, 161, 225, 316, 442],
        [126, 177, 248, 348],
        [147, 206, 289],
        [191, 267],
        [327],
        [234],
    ],
    ("domainnet", 10): [
        [6, 11, 17, 28, 45, 72, 116, 186, 298, 477],
        [18, 29, 46, 74, 119, 191, 306],
        [53, 85, 136, 217],
        [59, 95, 152],
        [73, 118],
        [120],
    ],
    ("pacs", 1): [[150, 450]] * 4,
    ("pacs", 5): [[45, 68, 102, 153, 229], [42, 95, 213], [34, 172], [121]],
    ("pacs", 10): [[14, 18, 24, 31, 40, 52, 68, 88, 113, 146], [12, 22, 40, 72, 128], [11, 115], [58]],
}


def domains_of(sizes: dict[str, int]) -> Dataset:
    counts = torch.tensor(list(sizes.values()))
    total = int(counts.sum())
    return Dataset(
        name="toy",
        inputs=torch.zeros(total, 1),
        labels=torch.zeros(total, dtype=torch.int64),
        classes=("only",),
        domains=tuple(sizes),
        domain=torch.arange(len(sizes)).repeat_interleave(counts),
    )


def assign(partition: DomainImbalance, data: Dataset):
    return partition.assign(data, np.random.default_rng(0))


@pytest.mark.parametrize(("preset", "factor"), PUBLISHED)
def test_a_preset_gives_the_published_sizes(preset, factor):
    wanted = PUBLISHED[preset, factor]
    assert DomainImbalance(factor=factor, preset=preset).sizes(len(wanted)) == wanted


@pytest.mark.parametrize(("preset", "factor"), PUBLISHED)
@pytest.mark.parametrize("order", [None, "other"])
def test_a_preset_deals_the_published_sizes_to_the_domains_in_order(preset, factor, order):
    paper = PRESETS[preset]
    data = domains_of(dict.fromkeys(sorted(paper.order), 4000))
    shares = assign(DomainImbalance(factor=factor, preset=preset, order=order), data)
    names = paper.order if order is None else paper.other_order
    by_domain = [[len(share.indices) for share in shares if share.domain == name] for name in names]
    assert by_domain == PUBLISHED[preset, factor]


def test_shares_are_disjoint_named_and_of_their_own_domain():
    data = domains_of({"a": 900, "b": 700, "c": 800})
    shares = assign(DomainImbalance(factor=4), data)
    assert [share.name for share in shares] == ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1", "c-0"]
    everything = np.concatenate([share.indices for share in shares])
    assert len(np.unique(everything)) == len(everything)
    for share in shares:
        assert {data.domains[i] for i in data.domain[share.indices]} == {share.domain}


def test_the_defaults_are_the_smallest_domain_as_quota_and_four_fifths_of_it():
    """Three domains at factor 4: ratio 2, so 4, 2, 1 clients; quotas 700, 350, 175, dealt out 560, 280, 140."""
    sizes = DomainImbalance(factor=4).sizes(3, quota=700)
    assert sizes == [[37, 74, 149, 298], [93, 186], [140]]
    shares = assign(DomainImbalance(factor=4), domains_of({"a": 900, "b": 700, "c": 800}))
    assert [len(share.indices) for share in shares] == [size for domain in sizes for size in domain]


def test_ratio_quota_fraction_and_order_can_be_set():
    partition = DomainImbalance(factor=2, ratio=2.0, quota=90, fraction=1.0, order=["b", "a"])
    shares = assign(partition, domains_of({"a": 99, "b": 99}))
    assert [(share.name, len(share.indices)) for share in shares] == [("b-0", 30), ("b-1", 60), ("a-0", 45)]


def test_one_domain_is_one_client():
    assert [len(share.indices) for share in assign(DomainImbalance(factor=10), domains_of({"a": 100}))] == [80]


def test_a_client_with_next_to_nothing_is_refused():
    with raises(DataError, "too-few-examples", client="a-0", got=0):
        assign(DomainImbalance(factor=10), domains_of({"a": 50, "b": 50, "c": 50, "d": 50, "e": 50}))


def test_a_domain_that_is_too_small_for_the_quota_is_refused():
    with raises(DataError, "too-few-examples", domain="a", got=400, wanted=597):
        assign(DomainImbalance(factor=5, quota=750), domains_of({"a": 400, "b": 900, "c": 900, "d": 900}))


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"factor": 0.5}, "out-of-range", {"setting": "factor", "got": 0.5}),
        ({"preset": "digits-five"}, "unknown-name", {"kind": "preset", "got": "digits-five"}),
        ({"order": "other"}, "missing-option", {"option": "preset"}),
        ({"order": "photo"}, "wrong-type", {"setting": "order", "got": "photo"}),
        ({"ratio": 0.5}, "out-of-range", {"setting": "ratio", "got": 0.5}),
        ({"fraction": 1.5}, "out-of-range", {"setting": "fraction", "got": 1.5}),
        ({"quota": 0}, "out-of-range", {"setting": "quota", "got": 0}),
    ],
)
def test_wrong_settings_are_refused(settings, code, fields):
    with raises(UsageError, code, **fields):
        DomainImbalance(**settings)


def test_an_order_must_name_every_domain_once():
    with raises(UsageError, "names-unfit", got=("a", "c"), known=("a", "b")):
        assign(DomainImbalance(factor=2, order=["a", "c"]), domains_of({"a": 100, "b": 100}))
    with raises(UsageError, "names-unfit", setting="order", known=("a", "b")) as caught:
        assign(DomainImbalance(preset="digit-five"), domains_of({"a": 100, "b": 100}))
    assert "mnist" in caught.value.fields["got"]


def test_which_examples_of_a_domain_are_used_is_drawn():
    """Of 50 examples 40 are dealt out; were the first ones taken, nobody would ever have the others."""
    data = domains_of({"a": 50, "b": 50})
    drawn = [DomainImbalance(factor=1).assign(data, np.random.default_rng(seed))[0].indices for seed in (0, 1)]
    assert sorted(drawn[0]) != sorted(drawn[1])


def test_a_client_of_a_single_example_is_refused():
    """Quota 5, four fifths of which are dealt as 1 : 3."""
    with raises(DataError, "too-few-examples", got=1):
        DomainImbalance(factor=1, quota=5).assign(domains_of({"a": 9}), np.random.default_rng(0))
