"""Whether tuning helped a client, by folds of its own training part: the test part decides nothing.

Each fifth of the examples is scored with the values that tuning begins from, and with those tuned on the other four
fifths in the same way. d is what an example gains: its accuracy after less its accuracy before; of a task whose main
metric is no mean over examples, its loss before less its loss after. The gain is

    mean d ± 1.96 sqrt((1/n + r/n) var d)          r = 5/4, as folds share what they train on

(Nadeau and Bengio 2003: 1/k + 1/4 in place of 1/k of the variance between k = 5 folds.) The tuned model is kept unless
the gain is below 0: also within chance the sign is right more often than not. With fewer examples than folds the run's
model is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedatlas.adapting.tuning import Tuning
from fedatlas.client.data import ResidentData
from fedatlas.client.runner import ClientRunner
from fedatlas.parts.metric import MeanMetric, Metric, Z
from fedatlas.parts.types import Tensors
from fedatlas.runs.schema import SHARES
from fedatlas.seeds import numpy_generator, repeatable

FOLDS = 5
FEW = 10
"""With fewer training examples it cannot be told whether a gain is chance."""


class Verdict(NamedTuple):
    """Which of both models a client keeps, and why."""

    kept: Literal["before", "after"] = "after"
    why: str = ""
    gain: tuple[float, float] | None = None
    """Of an example, and half of its interval of 95 %."""


def folds_of(data: ResidentData, seed: int) -> list[ResidentData]:
    """Return a client's training part in folds: each trains on the rest, and has the fold as its test part."""
    train = data.client.train
    if len(train) < FOLDS:
        return []
    order = torch.from_numpy(numpy_generator(seed, "adapting folds", data.name).permutation(len(train)))
    found = []
    for held in order.to(train.device).tensor_split(FOLDS):
        rest = torch.ones(len(train), dtype=torch.bool, device=train.device)
        rest[held] = False
        fold = ResidentData(data.federation, data.id, channels_last=data.channels_last, train=train[rest])
        fold.client = replace(fold.client, test=train[~rest])
        found.append(fold)
    return found


class Folds:
    """The folds of clients that are tuned together; they are tuned beside them, round by round."""

    def __init__(
        self,
        clients: Sequence[ResidentData],
        first: Sequence[Tensors],
        seed: int,
        tuning: Callable[[Sequence[ResidentData]], Tuning],
    ) -> None:
        """Take the clients, what each begins from, and what makes the tuning of some data."""
        self.clients, self.first = clients, first
        self.folds = [(i, fold) for i, own in enumerate(clients) for fold in folds_of(own, seed)]
        self.tuning = tuning([fold for _, fold in self.folds]) if self.folds else None
        self.personal = [first[i] for i, _ in self.folds]

    @property
    def seconds(self) -> float:
        """Of all folds together."""
        return 0.0 if self.tuning is None else self.tuning.seconds

    def round(self, number: int) -> None:
        """Tune each fold's values for another round."""
        if self.tuning is not None:
            self.personal = self.tuning.round(number, self.personal)

    def verdicts(self, runner: ClientRunner, buffers: Tensors, *, stopped: bool = False) -> list[Verdict]:
        """Return for each client which model it keeps; what was ``stopped`` before the end is kept as it is."""
        if stopped:
            return [Verdict(why="stopped before it was compared")] * len(self.clients)
        gained: list[list[Tensor]] = [[] for _ in self.clients]
        for (i, fold), tuned in zip(self.folds, self.personal, strict=True):
            with repeatable(fold.labels.device):
                rows = [runner.score_rows(fold, {}, buffers, own) for own in (self.first[i], tuned)]
            gained[i].append(gains(runner.metrics, *rows))
        return [
            judge_gain(runner.metrics[0], torch.cat(own).cpu() if own else None, data.num_examples)
            for own, data in zip(gained, self.clients, strict=True)
        ]


def gains(metrics: Sequence[Metric], before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    """Return float64 (examples,): what each example gains, given its rows of the main metric and the loss."""
    main, _ = metrics[:2]
    chosen = 0 if isinstance(main, MeanMetric) else 1
    gained = after[chosen].double() - before[chosen].double()
    return gained if metrics[chosen].higher_is_better else -gained


def judge_gain(main: Metric, gained: Tensor | None, num_examples: int) -> Verdict:
    """Return which model is kept, given the gains of the examples of all folds."""
    few = f"cannot be told from {num_examples} training example{'s'[: num_examples != 1]}"
    if gained is None:
        return Verdict("before", f"{few}; the run's model is kept")
    mean = float(gained.mean())
    half = Z * math.sqrt((1 + FOLDS / (FOLDS - 1)) * float(gained.var()) / len(gained))
    if main.name in SHARES and isinstance(main, MeanMetric):
        said = f"{100 * mean:+.1f} points of {main.name} ({100 * (mean - half):+.1f} to {100 * (mean + half):+.1f})"
    else:
        low, high = abs(mean) - half, abs(mean) + half
        said = f"loss {'lower' if mean > 0 else 'higher'} by {abs(mean):.3g} ({low:.3g} to {high:.3g})"
    kept: Literal["before", "after"] = "after" if mean >= 0 else "before"
    if num_examples < FEW:
        told = f"{few}: {said} in folds"
    else:
        title = "chance" if abs(mean) <= half else "better" if mean > 0 else "worse"
        told = f"{title}: {said} in folds of its {num_examples} training examples"
    model = "the tuned model" if kept == "after" else "the run's model"
    return Verdict(kept, f"{told}; {model} is kept", (mean, half))
