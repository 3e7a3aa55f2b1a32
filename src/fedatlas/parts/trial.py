"""Groups that leave the common model only where a trial shows that they gain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedatlas.errors import UsageError
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.sharing import COMMON, ByGroup, Plan, Regrouped
from fedatlas.parts.types import GROUP, RIVAL, ClientLosses, Cohort, Roster, Tensors

LEFT, BEGUN, RIVALS, SCORE, SEEN, TIMES = "left", "begun", "rivals", "score", "seen", "times"
"""In the memory: which groups have left, which clients have begun with their group's model and with the rival, the
median t of each group in the last trial, and t by comparison and group, with their number, while a trial goes on."""
MOST_CERTAIN = 1e6
"""Stands for an infinite t: all examples gain, or lose, the same."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ByTrial(ByGroup):
    """All clients share one model; a group leaves it when a trial shows that its clients gain.

    The common model is trained as if there were no groups, to the last bit, as long as one group uses it. A round of a
    trial has two turns more, for which clients hold a fifth of their training examples back. In one they train a rival,
    in the other a model for each group; both begin as the common model. Then d is the loss of a held-back example under
    the rival minus that under its group's model, and a group leaves if

        t = mean d / (sd d / sqrt(N)) > threshold          over the N held-back examples of the group's clients

    So both have seen the same examples. t is taken after each round of the trial's second half, and the median counts:
    a small group's model may be good after one round and bad after the next. A group that has left goes on with its
    model, in a further turn of each round, on all its examples.

    There is one trial that ends after three quarters of the rounds, and a short one that begins after a twentieth of
    them, in round 3 at the earliest, if there are enough. After the short one either all groups leave, if each of them
    gains twice as clearly, or none does. Once all have left, clients train nothing but their group's model.

    Groups that are ``apart`` have their model from the beginning, and never train the common one: they name classes
    otherwise, so that one model cannot be right for them and for the rest. The trial is one of the other groups.
    """

    name: ClassVar[str] = "by_trial"
    keeps_common: ClassVar[bool] = True
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure("num_examples", "how many examples the client holds back", "losses", (), torch.int64),
        Disclosure("means", "their mean loss under the rival and the group's model", "losses", (2,), torch.float64),
        Disclosure("squares", "the mean square of the difference of both", "losses", (2,), torch.float64),
    )
    pilot: int = 8
    """Rounds of the late trial, at most a fifth of all; the early one has a quarter as many."""
    threshold: float = 1.3
    """How large t must be for a group to leave; after the early trial, twice that for all groups."""
    apart: tuple[int, ...] = ()
    """Groups that never share the common model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pilot < 1:
            raise UsageError(
                f"ByTrial(pilot) must be at least 1, got {self.pilot}.",
                code="out-of-range",
                setting="ByTrial(pilot)",
                got=self.pilot,
            )
        count = len(set(self.groups.values()))
        if not set(self.apart) < set(range(count)):
            raise UsageError(
                f"ByTrial(apart) must name some of the groups 0 to {count - 1}, got {self.apart}.",
                code="wrong-value",
                setting="ByTrial(apart)",
                got=self.apart,
            )

    def serving(self, roster: Roster) -> Tensor | None:
        """Return the groups that are apart; the common model serves the others."""
        return _served(self.place(roster), self._apart()) if self.apart else None

    def _apart(self) -> Tensor:
        """Return which groups are apart."""
        return torch.tensor([group in self.apart for group in range(len(set(self.groups.values())))])

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return that no group has left but those that are apart."""
        count = len(set(self.groups.values()))
        return {
            LEFT: self._apart(),
            BEGUN: torch.zeros(len(roster), dtype=torch.bool),
            RIVALS: torch.zeros(len(roster), dtype=torch.bool),
            SCORE: torch.zeros(count, dtype=torch.float64),
            SEEN: torch.zeros(self.pilot, count, dtype=torch.float64),
            TIMES: torch.zeros((), dtype=torch.int64),
        }

    def trials(self, rounds: int) -> list[range]:
        """Return the rounds of each trial.

        >>> ByTrial(groups={"a": 0, "b": 1}).trials(100)
        [range(6, 8), range(68, 76)]
        """
        pilot = min(self.pilot, max(1, rounds // 5))
        first, end = max(2, rounds // 20) + 1, max(3 * rounds // 4, pilot)
        early, late = range(first, first + max(1, pilot // 4)), range(end - pilot + 1, end + 1)
        return [early, late] if early.stop < late.start else [late]

    def plan(self, memory: Tensors, roster: Roster, round: int, rounds: int) -> Sequence[Plan]:
        """Return the turns of the common model, of the rival and of the groups."""
        place, left = self.place(roster), memory[LEFT]
        own = Plan(group_of=place, branch=GROUP, restarts=_others(memory[BEGUN]))
        if left.all():
            return (own._replace(forgets=True),)
        trial = next((trial for trial in self.trials(rounds) if round in trial), None)
        if (left & ~self._apart()).any():
            trial = None  # it was decided, for fewer rounds than there are now
        served = _served(place, left)
        common = Plan(common=True, group_of=self.serving(roster), forgets=trial is None)
        gone = own._replace(group_of=served, beside=True, forgets=trial is None)
        turns = (common, gone) if left.any() else (common,)
        if trial is None:
            return turns
        count, begins = len(left), round == trial.start
        tried = torch.where(served == COMMON, place, COMMON)
        everyone = torch.where(tried == COMMON, COMMON, count)
        rival = Plan(group_of=everyone, branch=RIVAL, restarts=_others(memory[RIVALS]), beside=True, holds_back=True)
        own = own._replace(group_of=tried, beside=True, holds_back=True, compares=round in trial[len(trial) // 2 :])
        if begins:
            rival, own = rival._replace(begins=(count,)), own._replace(begins=_others(left))
        return *turns, rival, own

    def observe(self, memory: Tensors, group_of: Tensor, cohorts: Mapping[int, Cohort]) -> Regrouped:
        """Remember who has trained the rival, or a group's model."""
        begun = {BEGUN: memory[BEGUN].clone(), RIVALS: memory[RIVALS].clone()}
        for group, cohort in cohorts.items():
            begun[RIVALS if group == len(memory[LEFT]) else BEGUN][[upload.client for upload in cohort.uploads]] = True
        return Regrouped(group_of, {**memory, **begun})

    def decide(
        self,
        memory: Tensors,
        roster: Roster,
        losses: Mapping[int, Mapping[int, ClientLosses]],
        round: int,
        rounds: int,
    ) -> tuple[Tensor | None, Tensors]:
        """Let the groups leave whose median t is above the threshold; after the early trial, all or none."""
        found = [gain_score(losses.get(group, {})) for group in range(len(memory[LEFT]))]
        seen, times = memory[SEEN].clone(), memory[TIMES] + 1
        seen[times - 1] = torch.tensor(found, dtype=torch.float64)
        trials = self.trials(rounds)
        if round not in (trial[-1] for trial in trials):
            return None, {**memory, SEEN: seen, TIMES: times}
        scores = seen[:times].quantile(0.5, dim=0)
        apart = self._apart()
        if round in trials[-1]:
            left = apart | (scores > self.threshold)
        else:
            left = apart | (apart | (scores > 2 * self.threshold)).all()
        serving = _served(self.place(roster), left)
        # Who stays begins again in the next trial.
        begun = memory[BEGUN] & (serving != COMMON)
        again = {RIVALS: torch.zeros_like(begun), SEEN: torch.zeros_like(seen), TIMES: torch.zeros_like(times)}
        return serving, {LEFT: left, BEGUN: begun, SCORE: scores, **again}

    def remarks(self, memory: Tensors) -> dict[str, Any]:
        """Return which groups have left, and each group's t in the last trial."""
        return {"left": memory[LEFT].nonzero()[:, 0].tolist(), "t": [round(t, 3) for t in memory[SCORE].tolist()]}


def _served(place: Tensor, left: Tensor) -> Tensor:
    """Return the group whose model each client uses, given which groups have left the common one."""
    return torch.where(torch.isin(place, left.nonzero()[:, 0]), place, COMMON)


def _others(begun: Tensor) -> list[int]:
    """Return the clients that have not begun."""
    return (~begun).nonzero()[:, 0].tolist()


def gain_score(losses: Mapping[int, ClientLosses]) -> float:
    """Return t of the gain by a group's model: mean d / (sd d / sqrt(N)), d the rival's loss minus the group's.

    Three examples lose 1, 3, 2 under the rival and 0, 1, 2 under the group's: d = 1, 2, 0, mean 1, sd 1.

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
