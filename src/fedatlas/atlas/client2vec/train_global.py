"""The GLOBAL training of the index network: passes over the clients' uploads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedatlas.atlas.client2vec.network import DSAIGN, decomposition_losses
from fedatlas.atlas.client2vec.settings import IndexSettings
from fedatlas.data.federation import Federation
from fedatlas.engines.capture import Captured, Recorder, enqueued
from fedatlas.engines.cuda_graph import CudaRecorder
from fedatlas.errors import TrainingError
from fedatlas.parts.optimizer import Adam
from fedatlas.parts.types import Tensors
from fedatlas.seeds import derive, generator
from fedatlas.training.progress import Progress


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
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), progress, enqueued(recorder):
        torch.manual_seed(derive(seed, "dropout"))
        for epoch in range(1, epochs + 1):
            losses = [steps.take(batch) for batch in _batches(uploads, settings, generator(seed, "order", epoch))]
            mean = float(torch.stack(losses).double().mean())
            if not math.isfinite(mean):
                message = f"the index's loss is {mean} (lr={settings.lr:g}). Lower the learning rate."
                raise TrainingError(message, client="(server)", round=epoch, stage="index", code="not-finite")
            progress.advance(epoch, {})
    return mean


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
        self._captured = Captured(recorder, inputs.device, refused={})

    def take(self, own: Tensor) -> Tensor:
        """Take a step on the examples at the given positions and return the loss before it."""
        return self._captured(own.shape, (own,), self._step)

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
    """Yield one shuffled pass over the clients' uploads, in batches of examples; a short last batch is kept."""
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
