"""Seconds by stage, on the server and as clients measure them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedatlas.client.context import LocalContext
from fedatlas.client.training import ClientTraining, Look
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.types import Batch, Memory, Upload

PREFIX = "seconds/"
"""Prefix of the stages of a client's training among its metrics."""


class Stopwatch:
    """Seconds by stage: a lap is the time since the last one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Count the time since the last lap to a stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def taken(self) -> dict[str, float]:
        """Return the seconds so far, and start again at zero."""
        seconds, self.seconds = self.seconds, {}
        return seconds


def client_seconds(uploads: Sequence[Upload]) -> dict[str, float]:
    """Return the seconds that clients measured, all clients together, by stage."""
    total: dict[str, float] = {}
    for upload in uploads:
        for name, value in upload.metrics.items():
            if name.startswith(PREFIX):
                stage = name.removeprefix(PREFIX)
                total[stage] = total.get(stage, 0.0) + value
    return total


class TimedLook(Look):
    """A look at a batch's gradient whose time is counted."""

    def __init__(self, algorithm: Algorithm, local: LocalContext, batch: Batch, watch: Stopwatch) -> None:
        super().__init__(algorithm, local, batch)
        self._watch = watch

    def __call__(self) -> list[Tensor]:
        """Return the gradient."""
        self._watch.lap("steps")
        gradients = super().__call__()
        self._watch.lap("gradients")
        return gradients


def train_timed(training: ClientTraining, watch: Stopwatch) -> tuple[Upload, Memory]:
    """Train a client as ``train_client`` does, to the same bits, and add the seconds of each stage to its metrics."""
    with training.randomness(), torch.no_grad():
        watch.lap("rest")
        for batch in training.batches():
            watch.lap("data")
            look = TimedLook(training.algorithm, training.local, batch, watch)
            training.optimizer.step(training.parameters, training.slots, look, training.lr)
            training.count_step(look.losses[0])
            watch.lap("steps")
    upload, memory = training.finish()
    watch.lap("rest")
    seconds = {f"{PREFIX}{stage}": took for stage, took in watch.seconds.items()}
    return replace(upload, metrics={**upload.metrics, **seconds}), memory
