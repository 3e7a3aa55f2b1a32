import math
from dataclasses import replace

import pytest
import torch

from fedatlas.atlas import merge as merging
from fedatlas.atlas.floor import noise_floor
from fedatlas.atlas.merge import Cells, Evidence, class_distance, find_groups, merge, scores, weigh_evidence
from fedatlas.atlas.sources import class_prototypes
from fedatlas.atlas.summary import Summary
from summaries import gaussian, one_dimension

EVIDENCE = Evidence(trust=4.0, slab=18.0)


def line(means: list[float], counts: list[int]) -> Cells:
    """Return groups of one class in one direction, each with a mean of variance 1."""
    width = len(means)
    return Cells(
        torch.tensor(means).double().view(1, width, 1),
        torch.ones(1, width).double(),
        torch.tensor([counts]),
        torch.ones(1, width).double(),
    )


def score(q: float) -> float:
    """S for a squared distance q: a = 2, b = 18, nu = 4, so lbf = 2 (log 10 - q / 2 x 0.9), with q at most a + b."""
    factor = 2 * (math.log(10) - min(q, 20) / 2 * 0.9)
    return -math.log(0.7 + 0.3 * math.exp(-factor))


def test_three_clients_make_two_groups() -> None:
    """Means 0, 1 and 10: S is 0.35 for the near pair and -12 for the far ones, so two groups are left.

    Merged, the near pair has mean 0.5 and variance 1 / 2.
    """
    cells = line([0.0, 1.0, 10.0], [3, 3, 3])
    found = scores(cells, cells, EVIDENCE)
    assert found[0].tolist() == pytest.approx([score(0), score(1), score(100)])
    assert found[1, 2].item() == pytest.approx(score(81))
    labels = merge(cells, EVIDENCE)
    assert labels.tolist() == [0, 0, 2]
    pooled = cells.pool(torch.tensor([0, 0, 1]), 2)
    assert pooled.means.flatten().tolist() == [0.5, 10.0]
    assert pooled.precisions.flatten().tolist() == [2.0, 1.0]
    assert pooled.counts.flatten().tolist() == [6, 3]


def test_agreement_counts_at_most_036_a_class() -> None:
    cells = line([0.0, 0.0], [3, 3])
    assert float(scores(cells, cells, Evidence(trust=1e6, slab=18.0))[0, 1]) == pytest.approx(-math.log(0.7))


def test_groups_without_a_common_class_are_merged_last() -> None:
    """The third has two examples only: S = -3 with both, which is not below -3; the first two are far apart."""
    cells = line([0.0, 30.0, 0.0], [3, 3, 2])
    assert scores(cells, cells, EVIDENCE)[2].tolist() == [-3, -3, -3]
    assert merge(cells, EVIDENCE).tolist() == [0, 1, 0]


def test_the_slab_is_the_distance_between_classes_without_noise() -> None:
    """Two classes 4 apart, v = 2 / 4 each: B = 16 - 1, b = 2 B."""
    summary = one_dimension([[4, 4]], [[0.0, 4.0]], [[6.0, 6.0]], [[4.0, 4.0]])
    floor = noise_floor(summary)
    assert class_distance(summary, floor) == pytest.approx(15)
    assert weigh_evidence(summary, floor).slab == pytest.approx(30)


def test_halves_that_are_farther_apart_than_the_floor_says_weaken_the_evidence() -> None:
    found = class_prototypes(*gaussian(["plain"] * 12)).summary
    assert found is not None
    wild = replace(found, halves=4 * found.halves)
    usual, weaker = (weigh_evidence(own, noise_floor(own)).trust for own in (found, wild))
    assert 0.35 < usual <= merging.CAUTION
    assert weaker < 0.1 * usual


def clustered(count: int = 48) -> tuple[Summary, tuple[str, ...], list[int]]:
    kinds = ["plain", "shifted", "swapped", "few"]
    summary = class_prototypes(*gaussian([kinds[i % 4] for i in range(count)])).summary
    assert summary is not None
    # A client with three classes only is one of the plain ones.
    return summary, tuple(f"client-{i}" for i in range(count)), [[0, 1, 2, 0][i % 4] for i in range(count)]


def test_groups_are_found_and_their_number_with_them() -> None:
    summary, names, truth = clustered()
    assert find_groups(summary, names).tolist() == truth


def test_the_order_of_clients_changes_only_the_numbers() -> None:
    summary, names, _ = clustered(20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(3))
    turned = find_groups(summary.take(order), [names[i] for i in order])
    assert torch.equal(turned, merging.numbered(find_groups(summary, names)[order]))


@pytest.mark.parametrize("most", [6, 12])
def test_a_sample_and_a_place_for_the_others_give_the_groups_of_all(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 6 at a time some groups are not in the first sample; their clients fit no group and make new ones."""
    summary, names, truth = clustered()
    monkeypatch.setattr(merging, "MOST_MERGED", most)
    assert find_groups(summary, names).tolist() == truth
    assert torch.equal(find_groups(summary, names, seed=5), find_groups(summary, names, seed=5))


def test_threads_do_not_change_the_groups() -> None:
    summary, names, _ = clustered(20)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = find_groups(summary, names)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.equal(two, find_groups(summary, names))
