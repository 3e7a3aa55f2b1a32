import math

import pytest
import torch

from fedatlas.algorithms import krum, median, multi_krum
from fedatlas.algorithms.krum import Krum, scores
from fedatlas.algorithms.multi_krum import MultiKrum
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Gathered
from raising import raises
from tiny import Line, change_cohort, combined, line_federation, play


def test_the_change_that_is_closest_to_most_others_is_kept() -> None:
    """Five changes, f = 1, so the two nearest count. 0: 1 + 4 = 5. 1: 1 + 1 = 2. 2: 1 + 4 = 5. 4: 4 + 9 = 13.
    1e20: far. The least score is that of 1."""
    change, found = combined(Krum(attackers=0.2), change_cohort(0, 1, 2, 4, 1e20))
    assert change == 1
    assert found.weights.tolist() == [0, 1, 0, 0, 0]
    assert found.remarks["krum"] == {"kept": [1]}


def test_several_keeps_all_but_the_attackers() -> None:
    """As above: the four with the least scores are 1, 0, 2 and 4; their mean is 7 / 4."""
    change, found = combined(MultiKrum(attackers=0.2), change_cohort(0, 1, 2, 4, 1e20))
    assert change == 1.75
    assert found.remarks["multi_krum"] == {"kept": [0, 1, 2, 3]}


def test_large_changes_that_are_near_each_other_are_told_apart() -> None:
    """Around 1e8 products cancel in float32 and differences do not: 1e8 + 8 is in the middle of the three."""
    assert combined(Krum(attackers=0.0), change_cohort(1e8, 1e8 + 8, 1e8 + 16, 0))[1].remarks["krum"] == {"kept": [1]}


@pytest.mark.parametrize("count", [1, 2])
def test_of_one_or_two_changes_the_mean_is_taken(count: int) -> None:
    change, _ = combined(Krum(attackers=0.4), change_cohort(*range(1, count + 1)))
    assert change == sum(range(1, count + 1)) / count


def test_no_more_attackers_are_assumed_than_the_paper_allows() -> None:
    """0.49 of 5 clients are 2, but 2f + 2 < 5 allows one: two neighbours count, as in the first test."""
    assert combined(Krum(attackers=0.49), change_cohort(0, 1, 2, 4, 1e20))[0] == 1


def test_the_record_says_who_counted() -> None:
    """Changes 0.1, 0.2, 0.3, -50 (x / 2 times lr 0.1): the nearest two of 0.2 are closest."""
    federation = line_federation(([2], [0]), ([4], [0]), ([6], [0]), ([-1000], [0]))
    state, records, _ = play(krum(attackers=0.0).with_optimizer(SGD(lr=0.1)), Line(), federation)
    assert state.shared["head.weight"].item() == pytest.approx(0.2)
    assert records[0].weights == {0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0}
    assert records[0].combination == {"krum": {"kept": [1]}}


def _with_moves(link: Krum, changes: list[float], moves: list[dict[str, list[float]]]) -> Gathered:
    cohort = change_cohort(*changes)
    gathered = Gathered(
        changes=[upload.change for upload in cohort.uploads],
        moves=[{name: torch.tensor(values) for name, values in own.items()} for own in moves],
        weights=torch.full((len(changes),), 1 / len(changes), dtype=torch.float64),
    )
    return link.combine(gathered, {}, cohort)[0]


def test_running_statistics_count_as_much_as_changes() -> None:
    """Five clients, f = 1, so the two nearest count. Changes 1, 2, 3, 4, 5 (median 3), moves 10, 20, 30, 40, 20
    (median 20). One step of both is 1/9 + 1/4 = 13/36. Of 2 and 3 the two nearest are at 13/36; of 1 at 13/36 and
    4/9 + 1 = 52/36; of 4 at 13/36 and (to 5) 1/9 + 1 = 40/36; of 5 at (to 3) 4/9 + 1/4 = 25/36 and (to 2) 1. The
    sums are 65, 26, 26, 53 and 61 parts of 36: all but the first are kept."""
    moves = [{"norm.running_mean": [value]} for value in (10.0, 20.0, 30.0, 40.0, 20.0)]
    found = _with_moves(MultiKrum(attackers=0.2), [1, 2, 3, 4, 5], moves)
    assert found.remarks["multi_krum"] == {"kept": [1, 2, 3, 4]}
    assert found.weights.tolist() == [0, 0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize("kind", [Krum, MultiKrum])
@pytest.mark.parametrize("name", ["a.running_mean", "a.running_var", "still"])
@pytest.mark.parametrize("lie", [1e6, -30.0, 1e38, math.nan])
def test_an_honest_change_with_false_running_statistics_is_not_kept(kind: type[Krum], name: str, lie: float) -> None:
    """Its change is the one in the middle; means are a thousandth of the variances, and one buffer nobody moves."""
    moves = [
        {"a.running_mean": [0.001 * x, 0.001], "a.running_var": [x, 1.0], "still": [0.0]}
        for x in (1.0, 1.1, 0.9, 1.05, 0.95)
    ]
    honest = _with_moves(kind(attackers=0.2), [1.0, 0.9, 1.1, 0.95, 1.05], moves)
    moves[0] |= {name: [lie for _ in moves[0][name]]}
    found = _with_moves(kind(attackers=0.2), [1.0, 0.9, 1.1, 0.95, 1.05], moves)
    assert 0 in honest.remarks[kind.name]["kept"]
    assert 0 not in found.remarks[kind.name]["kept"]


def test_without_running_statistics_the_scores_are_those_of_the_changes() -> None:
    changes = [{"w": torch.tensor([x])} for x in (0.0, 1.0, 2.0, 4.0)]
    assert scores(changes, 1, [{}] * 4).tolist() == scores(changes, 1).tolist() == [1.0, 1.0, 1.0, 4.0]


def test_a_median_of_those_that_krum_keeps() -> None:
    federation = line_federation(([2], [0]), ([4], [0]), ([12], [0]), ([12], [0]), ([-1000], [0]))
    state, _, _ = play(median(multi_krum()).with_optimizer(SGD(lr=0.1)), Line(), federation)
    assert state.shared["head.weight"].item() == pytest.approx(0.4)  # of 0.1, 0.2, 0.6 and 0.6


def test_a_share_of_half_or_more_is_refused() -> None:
    with raises(UsageError, "out-of-range", setting="MultiKrum(attackers)"):
        multi_krum(attackers=0.5)
