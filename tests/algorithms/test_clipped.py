import pytest
import torch

from fedatlas.algorithms import capped, clipped, fedavg, feddisco
from fedatlas.algorithms.capped import Cap
from fedatlas.algorithms.clipped import Clipped
from fedatlas.errors import UsageError
from fedatlas.parts import Gathered
from raising import raises
from tiny import Norms, blob_federation, change_cohort, combined, play, same_bits


def test_a_change_is_clipped_to_a_multiple_of_the_median_norm() -> None:
    """Norms 1, 2, 3, 1e30: their median is 2.5, times 2 is 5. The mean of 1, 2, -3 and 5 is 5 / 4."""
    change, found = combined(Clipped(times=2.0), change_cohort(1, 2, -3, 1e30))
    assert change == pytest.approx(1.25)
    assert found.remarks["clipped"] == {"bound": 5.0, "clipped": [3]}


def test_a_change_is_clipped_to_a_fixed_norm_over_all_parameters() -> None:
    """(3, 4) over two tensors has norm 5; clipped to 1 it is (0.6, 0.8). (0.3, 0.4) stays, to the bit."""
    small = {"a": torch.tensor([0.3]), "b": torch.tensor([0.4])}
    changes = [{"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}, small]
    given = Gathered(changes=changes, moves=[{}, {}], weights=torch.full((2,), 0.5, dtype=torch.float64))
    found, _ = Clipped(norm=1.0).combine(given, {}, change_cohort(0, 0))
    assert [found.changes[0][name].item() for name in "ab"] == pytest.approx([0.6, 0.8])
    assert found.changes[1] is small


def test_buffers_are_clipped_by_their_own_median() -> None:
    moves = [{"mean": torch.tensor([step])} for step in (1.0, 2.0, 1e30)]
    given = Gathered(changes=[{"w": torch.zeros(1)}] * 3, moves=moves, weights=torch.full((3,), 1 / 3).double())
    found, _ = Clipped(norm=1.0).combine(given, {}, change_cohort(0, 0, 0))
    assert [move["mean"].item() for move in found.moves] == pytest.approx([1, 2, 2])


def test_a_bound_that_nobody_reaches_changes_no_bit_of_a_run() -> None:
    plain, _, _ = play(fedavg(), Norms(), blob_federation(), rounds=2)
    bounded, records, _ = play(clipped(times=1e6), Norms(), blob_federation(), rounds=2)
    assert same_bits(plain.shared, bounded.shared)
    assert same_bits(plain.buffers, bounded.buffers)
    assert records[0].combination["clipped"]["clipped"] == []


def test_a_cap_holds_a_client_that_lies_about_its_size() -> None:
    """Weights 1, 2, 3, 1e14: the median is 2.5, the cap 5. Normalised: 1/11, 2/11, 3/11, 5/11."""
    weights, _ = Cap(times=2.0).weigh(torch.tensor([1, 2, 3, 1e14], dtype=torch.float64), change_cohort(), {})
    assert (weights / weights.sum()).tolist() == pytest.approx([1 / 11, 2 / 11, 3 / 11, 5 / 11])


def test_a_cap_over_other_weights() -> None:
    assert [type(link).__name__ for link in capped(feddisco()).weighting] == ["ByExamples", "Discrepancy", "Cap"]


@pytest.mark.parametrize(("options", "setting"), [({"times": 0.0}, "times"), ({"norm": -1.0}, "norm")])
def test_a_bound_that_is_not_positive_is_refused(options: dict[str, float], setting: str) -> None:
    with raises(UsageError, "out-of-range", setting=f"Clipped({setting})"):
        clipped(**options)


def test_a_cap_below_the_median_is_refused() -> None:
    with raises(UsageError, "out-of-range", setting="Cap(times)"):
        capped(times=0.5)
