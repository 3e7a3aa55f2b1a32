"""The slot between weights and server rules: its order, its memory, its groups, its seeds."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedatlas.algorithms import fedavg, fedavgm, krum, median
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import Combination, Gathered, norms
from fedatlas.parts.optimizer import SGD
from fedatlas.parts.sharing import ByGroup
from fedatlas.parts.types import Cohort, Roster, Tensors
from fedatlas.seeds import generator
from tiny import Line, line_federation, play


@dataclass(frozen=True, kw_only=True)
class Counting(Combination):
    """Counts its rounds, and remembers the round's lot."""

    name: ClassVar[str] = "counting"

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        return {"rounds": torch.zeros(()), "lot": torch.zeros(())}

    def combine(self, gathered: Gathered, memory: Tensors, cohort: Cohort) -> tuple[Gathered, Tensors]:
        return gathered, {
            "rounds": memory["rounds"] + 1,
            "lot": torch.rand((), generator=generator(cohort.seed, "lot")),
        }


FOUR = line_federation(([2], [0]), ([4], [0]), ([-6], [0]), ([-8], [0]))
"""One step of lr 0.1 from w = 0 gives the changes 0.1, 0.2, -0.3 and -0.4."""


def halves(algorithm: Algorithm) -> Algorithm:
    groups = {f"client-{i}": i // 2 for i in range(4)}
    return replace(algorithm, sharing=ByGroup(groups=groups)).with_optimizer(SGD(lr=0.1))


def test_each_group_combines_its_own_changes() -> None:
    """Medians of two are means: 0.15 and -0.35."""
    state, _, _ = play(halves(median()), Line(), FOUR)
    ends = [group.shared["head.weight"].item() for group in state.groups]
    assert ends == pytest.approx([0.15, -0.35])


def test_the_record_has_the_remarks_of_each_group() -> None:
    _, records, _ = play(halves(krum()), Line(), FOUR)
    assert records[0].combination == {"groups": {"0": {"krum": {"kept": [0, 1]}}, "1": {"krum": {"kept": [2, 3]}}}}


def test_a_link_remembers_and_each_round_and_group_has_its_own_lot() -> None:
    algorithm = fedavg().with_combination(Counting())
    first, _, _ = play(algorithm, Line(), FOUR, rounds=1)
    second, _, _ = play(algorithm, Line(), FOUR, rounds=2)
    kept = second.memory["combination/counting"]
    assert kept["rounds"].item() == 2
    assert kept["lot"] != first.memory["combination/counting"]["lot"]
    grouped, _, _ = play(halves(algorithm), Line(), FOUR)
    lots = {group.memory["combination/counting"]["lot"].item() for group in grouped.groups}
    assert len(lots) == 2


def test_server_rules_see_the_combined_change() -> None:
    """Changes 0.1, 0.2 and -0.3 in round 1: their median is 0.1, and momentum's velocity with it."""
    federation = line_federation(([2], [0]), ([4], [0]), ([-6], [0]))
    state, _, _ = play(median(fedavgm()).with_optimizer(SGD(lr=0.1)), Line(), federation)
    assert state.memory["server/momentum"]["head.weight"].item() == pytest.approx(0.1)


def test_a_norm_of_large_changes_does_not_overflow() -> None:
    found = norms([{"a": torch.full((4,), 1e30), "b": torch.zeros(2)}, {"a": torch.zeros(4), "b": torch.zeros(2)}])
    assert found.tolist() == pytest.approx([2e30, 0.0])


def test_an_algorithm_without_a_combination_is_described_as_before() -> None:
    assert "combination" not in fedavg().describe()
    assert median().describe()["combination"] == [{"part": "Median"}]
