"""Groups that leave the common model only where a trial shows that they gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedatlas.errors import UsageError
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.sharing import COMMON, ByGroup, Plan, Regrouped
from fedatlas.parts.types import ClientLosses, Cohort, Roster, Tensors

LEFT, BEGUN, SCORE = "left", "begun", "score"
"""In the memory: which groups have left, which clients have begun with their group's model, the last trial's t."""
MOST_CERTAIN = 1e6
"""Stands for an infinite t: all examples gain, or lose, the same."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ByTrial(ByGroup):
    """All clients share one model; a group leaves it when a trial shows that its clients gain.

    In a trial, odd rounds train the common model and even rounds a model for each group, which begins from the common
    one. Clients hold a fifth of their training examples back. Then d is the loss of a held-back example under the
    common model minus that under its group's, and a group leaves if

        t = mean d / (sd d / sqrt(N)) > threshold          over the N held-back examples of the group's clients

    There is one trial at the end of the run, and a short one after a quarter of the rounds, if there are enough. After
    the short one either all groups leave, if each of them gains twice as clearly, or none does: as long as one group
    needs the common model, all clients train it, because a small group would lose their help.
    """

    name: ClassVar[str] = "by_trial"
    keeps_common: ClassVar[bool] = True
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure("num_examples", "how many examples the client holds back", "losses", (), torch.int64),
        Disclosure("means", "their mean loss under the common and the group's model", "losses", (2,), torch.float64),
        Disclosure("squares", "the mean square of the difference of both", "losses", (2,), torch.float64),
    )
    pilot: int = 5
    """Rounds of each kind in the last trial, at most an eighth of all; the short one has half as many."""
    threshold: float = 3.0
    """How large t must be for a group to leave; after the short trial, twice that for all groups."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pilot < 1:
            raise UsageError(
                f"ByTrial(pilot) must be at least 1, got {self.pilot}.",
                code="out-of-range",
                setting="ByTrial(pilot)",
                got=self.pilot,
            )

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return that no group has left."""
        count = len(set(self.groups.values()))
        return {
            LEFT: torch.zeros(count, dtype=torch.bool),
            BEGUN: torch.zeros(len(roster), dtype=torch.bool),
            SCORE: torch.zeros(count, dtype=torch.float64),
        }

    def trials(self, rounds: int) -> list[range]:
        """Return the rounds of each trial.

        >>> ByTrial(groups={"a": 0, "b": 1}).trials(100)
        [range(26, 30), range(91, 101)]
        """
        pilot = min(self.pilot, max(1, rounds // 8))
        late = range(max(1, rounds - 2 * pilot + 1), rounds + 1)
        first = rounds // 4 + 1
        short = range(first, first + 2 * max(1, pilot // 2))
        return [short, late] if short.start > 2 and short.stop < late.start else [late]

    def plan(self, memory: Tensors, roster: Roster, round: int, rounds: int) -> Plan:
        """Return the turn of the common model or of the groups."""
        place, begun = self.place(roster), memory[BEGUN]
        if memory[LEFT].any():
            return Plan(group_of=place, branch=True, restarts=_others(begun))
        trial = next((trial for trial in self.trials(rounds) if round in trial), None)
        if trial is None or (round - trial.start) % 2 == 0:
            return Plan(common=True, branch=True, holds_back=trial is not None)
        return Plan(
            group_of=place,
            branch=True,
            begins=range(len(memory[LEFT])) if round == trial.start + 1 else (),
            restarts=_others(begun),
            holds_back=True,
            compares=round == trial[-1],
        )

    def observe(self, memory: Tensors, group_of: Tensor, cohorts: Mapping[int, Cohort]) -> Regrouped:
        """Remember who has trained a group's model."""
        begun = memory[BEGUN].clone()
        for cohort in cohorts.values():
            begun[[upload.client for upload in cohort.uploads]] = True
        return Regrouped(group_of, {**memory, BEGUN: begun})

    def decide(
        self,
        memory: Tensors,
        roster: Roster,
        losses: Mapping[int, Mapping[int, ClientLosses]],
        round: int,
        rounds: int,
    ) -> tuple[Tensor, Tensors]:
        """Let the groups leave whose t is above the threshold; after the short trial, all or none."""
        scores = torch.tensor(
            [gain_score(losses.get(group, {})) for group in range(len(memory[LEFT]))], dtype=torch.float64
        )
        if round in self.trials(rounds)[-1]:
            left = scores > self.threshold
        else:
            left = (scores > 2 * self.threshold).all().expand(len(scores)).clone()
        place = self.place(roster)
        serving = torch.where(torch.isin(place, left.nonzero()[:, 0]), place, COMMON)
        # If none leaves, all begin again in the next trial.
        return serving, {LEFT: left, BEGUN: memory[BEGUN] & left.any(), SCORE: scores}

    def remarks(self, memory: Tensors) -> dict[str, Any]:
        """Return which groups have left, and each group's t in the last trial."""
        return {"left": memory[LEFT].nonzero()[:, 0].tolist(), "t": [round(t, 3) for t in memory[SCORE].tolist()]}


def _others(begun: Tensor) -> list[int]:
    """Return the clients that have not begun with their group's model."""
    return (~begun).nonzero()[:, 0].tolist()


def gain_score(losses: Mapping[int, ClientLosses]) -> float:
    """Return t of the gain by a group's model: mean d / (sd d / sqrt(N)), d the common model's loss minus the group's.

    Three examples lose 1, 3, 2 under the common model and 0, 1, 2 under the group's: d = 1, 2, 0, mean 1, sd 1.

    >>> pair = ClientLosses(3, torch.tensor([2.0, 1.0]), torch.tensor([0.0, 5 / 3]))
    >>> round(gain_score({0: pair}), 4), round(3**0.5, 4)
    (1.7321, 1.7321)
    """
    count = sum(found.num_examples for found in losses.values())
    if count < 2:
        return 0.0
    mean = sum(found.num_examples * float(found.means[0] - found.means[1]) for found in losses.values()) / count
    square = sum(found.num_examples * float(found.squares[1]) for found in losses.values()) / count
    variance = max(square - mean**2, 0.0) * count / (count - 1)
    if variance == 0:
        return math.copysign(MOST_CERTAIN, mean) if mean else 0.0
    return max(-MOST_CERTAIN, min(mean / math.sqrt(variance / count), MOST_CERTAIN))
