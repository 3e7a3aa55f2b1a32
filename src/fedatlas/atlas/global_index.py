"""The GLOBAL training of the index network: passes over what the clients uploaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.dsa_ign import DSAIGN, IndexSettings, decomposition_losses
from fedatlas.data.federation import Federation
from fedatlas.errors import TrainingError
from fedatlas.optimizers import Adam
from fedatlas.progress import Progress
from fedatlas.recorders import CudaRecorder, Recorder
from fedatlas.seeds import derive, generator
from fedatlas.types import Tensors


def train_globally(
    network: DSAIGN,
    pairs: Federation,
    targets: Tensor,
    *,
    epochs: int,
    seed: int,
    device: torch.device,
    progress: Progress,
    recorder: Recorder | None = None,
) -> float:
    """Train the network in place on the union of the clients' pairs and return the last epoch's mean loss.

    ``pairs`` holds example vectors as inputs. On a GPU a step is captured once for each size of batch and replayed;
    ``recorder`` is what captures, by default a GPU's own.
    """
    settings = network.settings
    if recorder is None and device.type == "cuda":
        recorder = CudaRecorder(device)
    steps = Steps(network, pairs.data.inputs.to(device), pairs.data.labels.to(device), targets.to(device), recorder)
    uploads = [pairs.clients[i].train for i in pairs.training_ids]
    network.train()
    mean = math.nan
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), progress, steps.stream():
        torch.manual_seed(derive(seed, "dropout"))
        for epoch in range(1, epochs + 1):
            losses = [steps(batch) for batch in _batches(uploads, settings, generator(seed, "order", epoch))]
            mean = float(torch.stack(losses).double().mean())
            if not math.isfinite(mean):
                message = f"the index's loss is {mean} (lr={settings.lr:g}). Lower the learning rate."
                raise TrainingError(message, client="(server)", round=epoch, stage="index")
            progress.advance(epoch, {})
    steps.end()
    return mean


class _Captured(NamedTuple):
    batch: Tensor
    replay: Callable[[], Tensor]


class Steps:
    """Adam's steps on batches of examples."""

    def __init__(
        self, network: DSAIGN, inputs: Tensor, labels: Tensor, targets: Tensor, recorder: Recorder | None
    ) -> None:
        self._network, self._inputs, self._labels, self._targets = network, inputs, labels, targets
        named: Tensors = dict(network.named_parameters())
        self._parameters = list(named.values())
        self._adam = Adam(lr=network.settings.lr)
        self._slots = self._adam.slots(self._adam.init(named), list(named))
        self._recorder, self._capturable = recorder, True
        self._captured: dict[int, _Captured] = {}
        self._seen: set[int] = set()

    def stream(self) -> AbstractContextManager[object]:
        """Return the context in which steps are taken: a capture needs a stream of its own."""
        if self._recorder is None:
            return nullcontext()
        self._recorder.begin()
        return self._recorder.stream()

    def end(self) -> None:
        """Let what follows wait for the steps."""
        if self._recorder is not None:
            self._recorder.end()

    def __call__(self, batch: Tensor) -> Tensor:
        """Take a step on the examples at these positions and return the loss before it."""
        size = len(batch)
        captured = self._captured.get(size)
        if captured is None and self._recorder is not None and self._capturable and size in self._seen:
            captured = self._capture(self._recorder, batch)
        if captured is None:
            # The first of a size runs as it is, which also warms the libraries up.
            self._seen.add(size)
            return self._step(batch.to(self._inputs.device))
        captured.batch.copy_(batch)
        return captured.replay()

    def _capture(self, recorder: Recorder, batch: Tensor) -> _Captured | None:
        own = batch.to(self._inputs.device, copy=True)
        try:
            replay = recorder.capture(lambda: self._step(own))
        except RuntimeError:
            self._capturable = False  # nor would it work for another size
            return None
        self._captured[len(batch)] = _Captured(own, replay)
        return self._captured[len(batch)]

    def _step(self, own: Tensor) -> Tensor:
        network, settings = self._network, self._network.settings
        with torch.enable_grad():
            output, restored = network(self._inputs[own])
            terms = decomposition_losses(
                network.halves(output),
                restored,
                self._inputs[own],
                self._targets[self._labels[own]],
                settings.losses,
                settings.orthogonality,
            )
            loss = torch.stack(list(terms.values())).sum()
            gradients = list(torch.autograd.grad(loss, self._parameters, materialize_grads=True))
        with torch.no_grad():
            self._adam.update(self._parameters, gradients, self._slots, settings.lr)
        return loss.detach()


def _batches(uploads: Sequence[Tensor], settings: IndexSettings, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield one shuffled pass over what clients uploaded, in batches of examples; the last short one is kept."""
    if settings.global_batching == "mixed":
        union = torch.cat(list(uploads))
        yield from union[torch.randperm(len(union), generator=rng)].split(settings.batch_size)
        return
    single = [
        batch
        for upload in uploads
        for batch in upload[torch.randperm(len(upload), generator=rng)].split(settings.batch_size)
    ]
    for i in torch.randperm(len(single), generator=rng).tolist():
        yield single[i]
