import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedatlas.algorithms import fedavg, fedprox
from fedatlas.algorithms.clustered import (
    Bin,
    ClusteredBySimilarity,
    ClusteredBySize,
    Measure,
    bins_by_similarity,
    bins_by_size,
    clustered,
    compare,
    draw,
    measured,
)
from fedatlas.algorithms.fedbn import fedbn
from fedatlas.errors import UsageError
from fedatlas.parts import ByExamples, ClientInfo, Cohort, Equal, ServerRule, Tensors, Upload, Weighting
from raising import raises
from tiny import Norms, blob_federation, line_federation, play, same_bits

ANGLE = math.pi / 2


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _upload(client: int, *change: float) -> Upload:
    tensor = torch.tensor(change)
    return Upload(client=client, num_examples=1, num_steps=1, change={"w": tensor}, buffers={})


def _observe(sampler: ClusteredBySimilarity, memory: Tensors, *uploads: Upload, num_clients: int = 4) -> Tensors:
    roster = [ClientInfo(id=i, name=str(i), num_examples=1) for i in range(num_clients)]
    draws = {upload.client: 1 for upload in uploads}
    return sampler.observe(
        memory, Cohort(round=1, rounds=2, roster=roster, uploads=uploads, draws=draws, shared={}, lr=0.1)
    )


def _check_sums(bins: Sequence[Bin], sizes: Mapping[int, int], count: int) -> None:
    """Rows sum to 1 and columns to m p_k, in whole numbers: sum n and m n_k."""
    assert len(bins) == count
    assert all(sum(content.values()) == sum(sizes.values()) for content in bins)
    assert all(mass > 0 for content in bins for mass in content.values())
    for client, size in sizes.items():
        assert sum(content.get(client, 0) for content in bins) == count * size


def test_sizes_are_poured_largest_first_and_spill_into_the_next_bin() -> None:
    """Sizes 1, 3, 3, 3 and m = 2: a bin holds 10, the masses m n_k are 2, 6, 6, 6. Client 1 puts 6 and client 2 its
    first 4 into the first bin; client 2's other 2, client 3's 6 and client 0's 2 fill the second."""
    assert bins_by_size({0: 1, 1: 3, 2: 3, 3: 3}, 2) == [{1: 6, 2: 4}, {2: 2, 3: 6, 0: 2}]


def test_similar_clients_share_a_bin() -> None:
    """Four clients of one size and m = 2: a bin holds 4, each client weighs 2. Clients 0 and 2 move one way, 1 and 3
    at a right angle to it: the two pairs weigh 4 each and fill a bin; both pairs together would weigh 8 > 4."""
    rows = np.array([[0, ANGLE, 0, ANGLE], [ANGLE, 0, ANGLE, 0], [0, ANGLE, 0, ANGLE], [ANGLE, 0, ANGLE, 0]])
    bins = bins_by_similarity({0: 1, 1: 1, 2: 1, 3: 1}, 2, rows, _rng())
    assert sorted(sorted(content.items()) for content in bins) == [[(0, 2), (2, 2)], [(1, 2), (3, 2)]]


def test_a_group_too_heavy_for_a_bin_is_cut_and_the_lightest_groups_are_poured() -> None:
    """Five clients of one size and m = 2: a bin holds 5, each weighs 2. All of 0, 1, 2 are alike and 3, 4 are alike.
    Three together would weigh 6 > 5, so one of them is left over: the pairs begin the bins with 4 each, and the one
    that is left fills the room of 1 in both."""
    rows = np.zeros((5, 5))
    rows[:3, 3:] = rows[3:, :3] = ANGLE
    bins = bins_by_similarity(dict.fromkeys(range(5), 1), 2, rows, _rng())
    (left,) = bins[0].keys() & bins[1].keys()
    assert left in (0, 1, 2)
    assert {frozenset(content.keys() - {left}) for content in bins} == {
        frozenset({0, 1, 2} - {left}),
        frozenset({3, 4}),
    }
    assert bins[0][left] == bins[1][left] == 1


def test_the_heaviest_groups_begin_the_bins_whatever_their_names() -> None:
    """Sizes 3, 3, 1, 1 and m = 2: a bin holds 8, the masses are 6, 6, 2, 2. Clients 0 and 1 are unlike all others, 2
    and 3 are alike: the pair weighs 4, so 0 and 1 begin the bins with 6 each, and 2 and 3 fill the room of 2 in each.
    In the order of their ids, the pair would begin one and client 0 be poured."""
    rows = ANGLE * (1 - np.eye(4))
    rows[2, 3] = rows[3, 2] = 0
    bins = bins_by_similarity({0: 3, 1: 3, 2: 1, 3: 1}, 2, rows, _rng())
    assert [content[first] for content, first in zip(bins, (0, 1), strict=True)] == [6, 6]
    assert sorted(client for content in bins for client in content) == [0, 1, 2, 3]


def test_a_client_larger_than_a_bin_fills_some_alone() -> None:
    """Sizes 8, 1, 1 and m = 3: a bin holds 10, the masses are 24, 3, 3: two bins of client 0 alone, then 4 + 3 + 3."""
    expected = [{0: 10}, {0: 10}, {0: 4, 1: 3, 2: 3}]
    assert bins_by_size({0: 8, 1: 1, 2: 1}, 3) == expected
    assert bins_by_similarity({0: 8, 1: 1, 2: 1}, 3, np.zeros((3, 3)), _rng()) == expected


@pytest.mark.parametrize("trial", range(5))
def test_rows_sum_to_one_and_columns_to_m_times_p(trial: int) -> None:
    rng = np.random.default_rng(trial)
    num_clients = 12
    sizes = {3 * i: int(n) for i, n in enumerate(rng.integers(1, 40, num_clients) ** rng.integers(1, 4))}
    rows = rng.random((num_clients, num_clients))
    for count in range(1, num_clients + 1):
        _check_sums(bins_by_size(sizes, count), sizes, count)
        _check_sums(bins_by_similarity(sizes, count, rows, rng), sizes, count)


def test_draws_follow_the_distribution() -> None:
    """A bin of masses 1 and 3 gives its second client three draws in four: 6000 +- 5 * sqrt(8000 / 4 * 3 / 4)."""
    rng = _rng()
    second = sum(draw([{7: 1, 9: 3}], rng) == [9] for _ in range(8000))
    assert abs(second - 6000) < 5 * math.sqrt(1500)


def test_the_angle_between_changes_is_remembered_from_each_clients_last_round() -> None:
    """Clients 0 and 1 at a right angle, then client 2 opposite to client 0: angles pi/2, pi and pi/2. Client 3 never
    took part: its change is 0 and its measures are 0."""
    sampler = ClusteredBySimilarity()
    memory = _observe(sampler, {}, _upload(0, 2.0, 0.0), _upload(1, 0.0, 3.0))
    memory = _observe(sampler, memory, _upload(2, -0.5, 0.0))
    expected = [[0, ANGLE, math.pi, 0], [ANGLE, 0, ANGLE, 0], [math.pi, ANGLE, 0, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(measured(memory["pairs"], "arccos"), torch.tensor(expected, dtype=torch.float64))
    assert sorted(memory) == ["change/0", "change/1", "change/2", "pairs"]


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ("L1", [[0, 7, 3, 3], [7, 0, 4, 4], [3, 4, 0, 0], [3, 4, 0, 0]]),
        ("L2", [[0, 5, 3, 3], [5, 0, 4, 4], [3, 4, 0, 0], [3, 4, 0, 0]]),
    ],
)
def test_other_measures_are_norms_of_differences(measure: Measure, expected: list[list[float]]) -> None:
    """Changes (3, 0) and (0, 4), zero for the others: |3| + |4| = 7 and sqrt(9 + 16) = 5 apart."""
    memory = _observe(ClusteredBySimilarity(measure=measure), {}, _upload(0, 3.0, 0.0), _upload(1, 0.0, 4.0))
    torch.testing.assert_close(measured(memory["pairs"], measure), torch.tensor(expected, dtype=torch.float64))


def test_angles_and_distances_of_changes_that_are_neither_at_right_angles_nor_opposite() -> None:
    """Changes (3, 0) and (2, 2): the cosine is 6 / (3 * sqrt(8)) = 1 / sqrt(2), 45 degrees; the difference (1, -2) has
    the length sqrt(5)."""
    uploads = (_upload(0, 3.0, 0.0), _upload(1, 2.0, 2.0))
    for measure, expected in (("arccos", math.pi / 4), ("L2", math.sqrt(5))):
        memory = _observe(ClusteredBySimilarity(measure=measure), {}, *uploads, num_clients=2)
        assert measured(memory["pairs"], measure)[0, 1].item() == pytest.approx(expected)


@pytest.mark.parametrize("measure", ["arccos", "L1", "L2"])
def test_comparing_in_blocks_changes_nothing(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = list(torch.randn(5, 37, generator=torch.Generator().manual_seed(0)))
    whole = compare(vectors[:2], vectors, measure)
    monkeypatch.setitem(compare.__globals__, "BLOCK", 20)
    torch.testing.assert_close(compare(vectors[:2], vectors, measure), whole)


def test_a_round_leaves_the_memory_of_the_last_one_as_it_was() -> None:
    sampler = ClusteredBySimilarity()
    before = _observe(sampler, {}, _upload(0, 1.0, 0.0), _upload(1, 0.0, 1.0))
    kept = {name: tensor.clone() for name, tensor in before.items()}
    _observe(sampler, before, _upload(0, -1.0, 0.5))
    assert same_bits(before, kept)


def test_a_client_drawn_twice_counts_twice() -> None:
    """Sizes 8, 1, 1 and three draws: client 0 has two bins alone and 4/10 of the third."""
    federation = line_federation(([1] * 8, [0] * 8), ([1], [1]), ([1], [1]))
    _, records, _ = play(clustered(algorithm=1), Plain(), federation, rounds=8, cohort=3)
    cohorts = {record.cohort for record in records}
    assert {(0, 0, 0)} < cohorts <= {(0, 0, 0), (0, 0, 1), (0, 0, 2)}
    for record in records:
        expected = {k: record.cohort.count(k) / 3 for k in set(record.cohort)}
        assert record.weights == pytest.approx(expected)


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(1, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.head(x)


@pytest.mark.parametrize("algorithm", [1, 2])
def test_all_clients_of_one_size_are_fedavg_of_all_bit_for_bit(algorithm: int) -> None:
    """With m = M and one size, every bin is one client, so all take part with weight 1/M."""
    federation = blob_federation(num_clients=9, held_out=1)
    equal = replace(federation, clients=tuple(replace(c, train=c.train[:12]) for c in federation.clients))
    base = replace(fedavg(), weighting=(Equal(),))
    plain, _, _ = play(base, Norms(), equal, rounds=2)
    drawn, records, _ = play(clustered(algorithm=algorithm), Norms(), equal, rounds=2)
    assert records[0].cohort == tuple(range(8))
    assert same_bits(plain.shared, drawn.shared)


def test_groups_are_made_anew_from_the_remembered_changes() -> None:
    federation = blob_federation(num_clients=7, held_out=1)
    state, records, _ = play(clustered(), Norms(), federation, rounds=4, cohort=3)
    memory = state.memory["sampler/clustered_by_similarity"]
    seen = sorted({k for record in records for k in record.cohort})
    assert sorted(memory) == [*(f"change/{k}" for k in seen), "pairs"]
    everyone = [memory.get(f"change/{k}", torch.zeros_like(memory[f"change/{seen[0]}"])) for k in range(7)]
    torch.testing.assert_close(memory["pairs"], compare(everyone, everyone, "arccos"))


def test_only_what_is_shared_is_compared() -> None:
    state, _, simulator = play(clustered(fedbn()), Norms(), blob_federation(), rounds=2, cohort=2)
    shared = sum(tensor.numel() for tensor in state.shared.values())
    changes = [v for k, v in state.memory["sampler/clustered_by_similarity"].items() if k.startswith("change/")]
    assert {len(change) for change in changes} == {shared}
    assert shared < sum(tensor.numel() for tensor in simulator.runner.bench.parameters.values())


def test_a_base_keeps_its_objective_and_gives_its_name() -> None:
    algorithm = clustered(fedprox(mu=0.1), algorithm=1)
    assert algorithm.name == "clustered+fedprox"
    assert algorithm.objective == fedprox(mu=0.1).objective
    assert algorithm.weighting == (Equal(),)
    assert algorithm.sampler == ClusteredBySize()
    assert clustered().name == clustered(fedavg()).name == "clustered"


@dataclass(frozen=True, kw_only=True)
class Tilted(Weighting):
    name: ClassVar[str] = "tilted"


def test_a_base_that_weighs_or_samples_on_its_own_is_refused() -> None:
    with raises(UsageError, "base-unfit", base="tilting", part="Tilted"):
        clustered(replace(fedavg(), name="tilting", weighting=(ByExamples(), Tilted())))
    with raises(UsageError, "base-unfit", base="clustered", part="ClusteredBySimilarity"):
        clustered(clustered())


@dataclass(frozen=True, kw_only=True)
class Median(ServerRule):
    name: ClassVar[str] = "median"
    ignores_weights: ClassVar[bool] = True


def test_a_base_whose_rule_makes_its_own_mean_is_refused() -> None:
    with raises(UsageError, "base-unfit", base="robust", part="Median"):
        clustered(replace(fedavg(), name="robust", server=(Median(),)))


def test_unknown_options_are_refused() -> None:
    with raises(UsageError, "wrong-value", setting="clustered(algorithm)", got=3):
        clustered(algorithm=3)
    with raises(UsageError, "wrong-type", setting="ClusteredBySimilarity(measure)", got="l1"):
        clustered(measure="l1")  # type: ignore[arg-type]


def test_a_thousand_clients_take_no_time_by_size() -> None:
    roster = [ClientInfo(id=i, name=str(i), num_examples=1 + i % 300) for i in range(1000)]
    began = time.perf_counter()
    drawn, _ = ClusteredBySize().sample(range(1000), 1000, roster, {}, _rng())
    assert len(drawn) == 1000
    assert time.perf_counter() - began < 0.5


def test_groups_that_fill_a_bin_exactly_stay_whole() -> None:
    """As above, but with neighbours alike: {0, 1} and {2, 3} weigh 4 of 4. Were they cut, the clients would be poured
    one by one, and 0 and 1 would come into different bins."""
    rows = np.array([[0, 0, ANGLE, ANGLE], [0, 0, ANGLE, ANGLE], [ANGLE, ANGLE, 0, 0], [ANGLE, ANGLE, 0, 0]])
    bins = bins_by_similarity({0: 1, 1: 1, 2: 1, 3: 1}, 2, rows, _rng())
    assert sorted(sorted(content.items()) for content in bins) == [[(0, 2), (1, 2)], [(2, 2), (3, 2)]]


def test_the_tree_is_wards_and_makes_no_chains() -> None:
    """Six clients of one size in a row, m = 2: a bin holds 6, each weighs 2. Ward's linkage pairs {0, 1}, {2, 3} and
    {4, 5}; two pairs would weigh 8 > 6. The last two pairs begin the bins, and 0 and 1 fill one each. Single linkage
    would grow the chain {0, 1, 2}."""
    rows = np.array([[0.0], [1.0], [2.1], [3.3], [4.6], [6.0]])
    bins = bins_by_similarity(dict.fromkeys(range(6), 1), 2, rows, _rng())
    assert {frozenset(content.keys() - {0, 1}) for content in bins} == {frozenset({2, 3}), frozenset({4, 5})}
    assert all(len(content) == 3 for content in bins)


def test_changes_of_one_direction_have_an_angle_that_is_a_number() -> None:
    """Rounding may leave a cosine a hair above 1, of which there is no angle; scipy refuses NaN."""
    pairs = torch.tensor([[1.0, 1.0 + 1e-15], [1.0 + 1e-15, 1.0]], dtype=torch.float64)
    assert measured(pairs, "arccos").tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_measures_are_looked_up_by_client_id_where_some_are_held_out() -> None:
    """Client 0 is held out; of the others 1 and 2 move alike, 3 and 4 at a right angle. Rows of the first four ids
    would put client 1 with nobody."""
    sampler = ClusteredBySimilarity()
    uploads = (_upload(1, 1, 0), _upload(2, 1, 0), _upload(3, 0, 1), _upload(4, 0, 1))
    memory = _observe(sampler, {}, *uploads, num_clients=5)
    roster = [ClientInfo(id=i, name=str(i), num_examples=1, held_out=i == 0) for i in range(5)]
    for seed in range(20):
        drawn, _ = sampler.sample([1, 2, 3, 4], 2, roster, memory, np.random.default_rng(seed))
        assert {drawn[0] in (1, 2), drawn[1] in (1, 2)} == {True, False}
