"""A client's training with the seconds of each stage."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedatlas.client.context import LocalContext
from fedatlas.client.timing import PREFIX, Stopwatch
from fedatlas.client.training import ClientTraining, Look
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.types import Batch, Memory, Upload


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
    """Train a client as ``train_client`` does, to the same bits, and say with its metrics what took how long."""
    with training.randomness(), torch.no_grad():
        watch.lap("rest")
        for batch in training.batches():
            watch.lap("data")
            look = TimedLook(training.algorithm, training.local, batch, watch)
            training.optimizer.step(training.parameters, training.slots, look, training.lr)
            training.took(look.losses[0])
            watch.lap("steps")
    upload, memory = training.finish()
    watch.lap("rest")
    seconds = {f"{PREFIX}{stage}": took for stage, took in watch.seconds.items()}
    return replace(upload, metrics={**upload.metrics, **seconds}), memory
