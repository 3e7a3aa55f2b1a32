"""One client's training in the pieces that every engine drives: begin, minibatches, step, finish.

``train_client`` drives them one after another; the engines do so for many clients at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from fedatlas.client.context import LocalContext
from fedatlas.client.model import OPTIMIZER, PERSONAL, Workbench
from fedatlas.client.work import LocalWork
from fedatlas.errors import TrainingError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import summands
from fedatlas.parts.optimizer import Rate
from fedatlas.parts.tensor_math import copies
from fedatlas.parts.types import Assignment, Batch, Memory, Tensors, Upload
from fedatlas.seeds import generator, seeded

CHUNK_BYTES = {"cpu": 2**20, "cuda": 2**26}
"""Minibatches are made ready together up to this size: a GPU would else wait for the many small calls, and on a CPU
they cost a small client a tenth of its time. On a CPU it is what fits its nearer caches."""


def train_client(training: ClientTraining) -> tuple[Upload, Memory]:
    """Train one client and return its upload and its memory."""
    with training.randomness(), torch.no_grad():
        for batch in training.batches():
            training.step(batch)
    return training.finish()


class ClientTraining:
    """One client's training in one round; the model holds its parameters from the beginning to ``finish``.

    ``local`` is the client as it was opened on the workbench. Its change is written to ``into``, where that is given.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        assignment: Assignment,
        bench: Workbench,
        local: LocalContext,
        into: Tensors | None = None,
    ) -> None:
        self.algorithm, self.assignment, self.bench, self._into = algorithm, assignment, bench, into
        self.local, self.data = local, local.data
        names = list(bench.parameters)
        self.optimizer = bench.optimizer
        self.state = {k: v.clone() for k, v in local.memory.get(OPTIMIZER, {}).items()} or self.optimizer.init(
            bench.parameters
        )
        self.slots = self.optimizer.slots(self.state, names)
        self.parameters = list(bench.parameters.values())
        # On a GPU a tensor, so that a captured step serves every rate; the arithmetic is then the same in all engines.
        rates, device = self.optimizer.rates_at(assignment.round, assignment.rounds), local.data.labels.device
        self.lr: Rate = rates if device.type == "cpu" else torch.tensor(rates, device=device)
        self.losses: list[Tensor] = []
        if not bench.model.training:
            bench.model.train()
        for term in algorithm.objective:
            term.begin(local)

    def randomness(self) -> AbstractContextManager[None]:
        """Give dropout and other randomness inside the model this client's own seed."""
        return seeded(self.local.seed, self.data.labels.device)

    def batches(self) -> Iterator[Batch]:
        """Yield the round's minibatches, as prepared by the terms."""
        for batch in minibatches(self.local, self.bench):
            for term in self.algorithm.objective:
                batch = term.prepare(self.local, batch)
            yield batch

    def step(self, batch: Batch) -> None:
        """Take one step."""
        look = Look(self.algorithm, self.local, batch)
        self.optimizer.step(self.parameters, self.slots, look, self.lr)
        self.count_step(look.losses[0])

    def count_step(self, loss: Tensor) -> None:
        """Count a step and keep its loss."""
        self.losses.append(loss)
        self.local.steps += 1

    def finish(self) -> tuple[Upload, Memory]:
        """Return the client's upload and its memory."""
        algorithm, bench, local = self.algorithm, self.bench, self.local
        mean_loss = self._checked_mean_loss()
        notes = {term.name: note for term in algorithm.objective if (note := term.finish(local))}
        if bench.personal:
            everything = {**bench.parameters, **bench.buffers}
            local.memory[PERSONAL] = copies({k: everything[k] for k in sorted(bench.personal)})
        if self.optimizer.keep_state and self.state:
            local.memory[OPTIMIZER] = self.state
        upload = Upload(
            client=self.assignment.client,
            num_examples=self.data.num_examples,
            num_steps=local.steps,
            change=self._change(),
            buffers=copies({k: b for k, b in bench.buffers.items() if k not in bench.personal}),
            notes=notes,
            metrics={"loss": mean_loss},
        )
        return upload, local.memory

    def _change(self) -> Tensors:
        """Return the change of the shared parameters."""
        bench, start = self.bench, self.local.start
        names = [name for name in bench.parameters if name not in bench.personal]
        ends, starts = [bench.parameters[name].detach() for name in names], [start[name] for name in names]
        if self._into is None:
            return dict(zip(names, torch._foreach_sub(ends, starts), strict=True)) if names else {}
        with torch.no_grad():
            for name, end, begin in zip(names, ends, starts, strict=True):
                torch.sub(end, begin, out=self._into[name])
        return {name: self._into[name] for name in names}

    def _checked_mean_loss(self) -> float:
        """Return the round's mean loss; raise TrainingError if training broke. Waits for a GPU once."""
        if not self.losses:
            return 0.0
        # A sum is finite only if all its numbers are; norms come from a GPU in one call, sums are quicker on a CPU.
        on_gpu = self.losses[0].is_cuda
        sums = torch._foreach_norm(self.parameters) if on_gpu else [w.detach().sum() for w in self.parameters]
        values = torch.stack([*self.losses, *sums]).tolist()
        losses, sizes = values[: len(self.losses)], values[len(self.losses) :]
        for step, loss in enumerate(losses, 1):
            if not math.isfinite(loss):
                raise training_error(f"loss is {loss} at step {step} of {len(losses)}", self.local)
        if not all(map(math.isfinite, sizes)):
            raise training_error("a parameter is not finite after the last step", self.local)
        return math.fsum(losses) / len(losses)


class Look:
    """The gradient of the objective on one batch, at the parameters' current values, each time it is called."""

    def __init__(self, algorithm: Algorithm, local: LocalContext, batch: Batch) -> None:
        self._algorithm, self._local, self._batch = algorithm, local, batch
        self.losses: list[Tensor] = []

    def __call__(self) -> list[Tensor]:
        """Return the gradient. Only the first look at a batch updates running statistics."""
        local, batch = self._local, self._batch
        kept = {k: b.clone() for k, b in local.buffers.items()} if self.losses else {}
        with torch.enable_grad():
            output = local.compute(batch.inputs)
            first, *others = summands(self._algorithm.objective, local, batch, output) or [output.logits.new_zeros(())]
            loss = sum(others, start=first)
            found = torch.autograd.grad(loss, list(local.parameters.values()), materialize_grads=True)
        gradients = list(found)
        for term in self._algorithm.objective:
            gradients = term.gradient(local, gradients)
        for name, buffer in kept.items():
            local.buffers[name].copy_(buffer)
        self.losses.append(loss.detach())
        return gradients


def minibatches(local: LocalContext, bench: Workbench) -> Iterator[Batch]:
    """Yield a round's minibatches: shuffled passes, the last short batch kept unless it is below ``least_batch``.

    A batch of one example is left out where normalisation over it would be undefined.
    """
    data, augment = local.data, local.work.augment
    device = data.labels.device
    sizes, chosen = draw_order(local.work, data.num_examples, local.seed, bench.skips_single_examples)
    if not sizes:
        return
    changing = augment is not None or data.client.transform is not None
    rng = generator(local.seed, "images", device=device) if changing else None
    indices = data.client.train[chosen.to(device)]
    largest = 4 * data.inputs[0].numel() * max(sizes)
    together = max(1, CHUNK_BYTES[device.type] // largest)
    begin = 0
    for first in range(0, len(sizes), together):
        chunk = sizes[first : first + together]
        chosen = indices[begin : begin + sum(chunk)]
        ready = data.batch(chosen, rng, augment)
        begin += sum(chunk)
        parts = zip(ready.inputs.split(chunk), ready.labels.split(chunk), chosen.split(chunk), strict=True)
        for inputs, labels, own in parts:
            if augment is None and bench.is_frozen_in_part:
                data.show(inputs, own)
            yield Batch(inputs, labels)


def draw_order(work: LocalWork, count: int, seed: int, skip_single: bool) -> tuple[list[int], Tensor]:
    """Return the sizes of a round's minibatches, and which of a client's examples they hold, one after another."""
    rng = generator(seed, "order")
    least = max(work.least_batch, 2 if skip_single else 1)
    sizes: list[int] = []
    passes: list[Tensor] = []
    while len(sizes) < work.steps if work.steps is not None else len(passes) < work.epochs:
        order = torch.randperm(count, generator=rng)
        whole, rest = divmod(count, work.batch_size)
        found = [work.batch_size] * whole + [rest] * (rest >= least)
        if work.batch_size < least:
            found = []
        if work.steps is not None:
            found = found[: work.steps - len(sizes)]
        if not found:
            break  # only batches that are too small: nothing to train on
        sizes += found
        passes.append(order if sum(found) == count else order[: sum(found)])
    if len(passes) == 1:
        return sizes, passes[0]
    return sizes, torch.cat(passes) if passes else torch.empty(0, dtype=torch.int64)


def training_error(what: str, local: LocalContext) -> TrainingError:
    """Return the error for a client whose training broke."""
    return TrainingError(
        f"{what} (lr={local.lr:g}). Lower the learning rate, or look at this client's data.",
        client=local.data.name,
        round=local.round,
        stage="training",
        code="training-diverged",
    )
