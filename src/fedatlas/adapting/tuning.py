"""Tune what is a client's own while everything shared rests: for one client, or for many at once.

Many clients share all but a few parameters, so that one pass of the network serves their batches together:
``torch.func.vmap`` over the personal parameters folds the clients into the batch, and each client still sees its own
batches in its own order. Only the rounding of sums differs from tuning them one after another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedatlas.client.context import LocalContext, open_local
from fedatlas.client.data import ResidentData
from fedatlas.client.model import PERSONAL, Workbench, compiled_network
from fedatlas.client.training import Look, minibatches
from fedatlas.client.work import LocalWork
from fedatlas.engines.cuda_graph import CudaRecorder, Recorder, Replayed
from fedatlas.errors import TrainingError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.optimizer import LocalOptimizer, Rate, Wrapper
from fedatlas.parts.types import Assignment, Batch, Tensors
from fedatlas.seeds import repeatable

Gradients = Callable[[Tensors, Tensor, Tensor, Tensor], tuple[Tensors, Tensor]]


class Tuning:
    """The rounds of clients that tune on their own. The optimizer's state lasts from the first to the last."""

    def __init__(
        self,
        bench: Workbench,
        buffers: Tensors,
        algorithm: Algorithm,
        clients: Sequence[ResidentData],
        *,
        work: LocalWork,
        rounds: int,
        seed: int,
        recorder: Recorder | None = None,
    ) -> None:
        self.bench, self.buffers, self.algorithm, self.clients = bench, buffers, algorithm, list(clients)
        self.work, self.rounds, self.seed = work, rounds, seed
        # A client of one example may have no batch at all, and so no step to take with the others.
        enough = min(client.num_examples for client in self.clients) > 1 or not bench.skips_single_examples
        device = self.clients[0].labels.device
        # Steps of all clients can be captured, which a GPU gains by even where there is one client.
        gains = len(self.clients) > 1 or device.type == "cuda"
        self.together = gains and enough and can_tune_together(bench, algorithm.optimizer)
        self.look = gradients_of_all(bench.model, compile=work.compile) if self.together else None
        self.compiled = compiled_network(bench.model, algorithm) if work.compile and not self.together else None
        # Compiled code is made for one size of batch.
        most = max(client.num_examples for client in self.clients)
        self.at_least = min(work.batch_size, most) if work.compile else 0
        self.names = list(bench.parameters)
        count = len(self.clients)
        self.optimizer = algorithm.optimizer.fitted(bench.model, self.names)
        own = {name: parameter.detach() for name, parameter in bench.parameters.items()}
        self.stacked = {name: torch.stack([value] * count) for name, value in own.items()} if self.together else {}
        """Where clients' own parameters lie while they are tuned together."""
        # One state for the stacked parameters, or one for each client.
        self.states = [self.optimizer.init(self.stacked or own) for _ in range(1 if self.together else count)]
        rates = self.optimizer.rates_at(1, rounds)
        # On a GPU a tensor, whose place a captured step knows.
        self.rates: Rate = rates if device.type == "cpu" else torch.tensor(rates, device=device)
        if recorder is None and device.type == "cuda" and self.together:
            recorder = CudaRecorder(device)
        self.step = Replayed(self._step, recorder, device)
        """Takes a step of all clients on their batches, and returns the losses before it."""
        self.losses: list[list[float]] = [[] for _ in self.clients]
        """Of each client, the mean training loss of each round."""
        self.num_steps = [0] * count
        self.seconds = 0.0
        """Of all clients together."""

    def round(self, number: int, personal: Sequence[Tensors]) -> list[Tensors]:
        """Return the clients' own values after another round."""
        began = time.perf_counter()
        device = self.clients[0].labels.device
        with (
            repeatable(device),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            torch.no_grad(),
        ):
            if self.together:
                found = self._round_together(number, personal)
            else:
                found = [self._round_alone(i, number, own) for i, own in enumerate(personal)]
        for client, losses in zip(self.clients, self.losses, strict=True):
            if not torch.isfinite(torch.tensor(losses[-1])):
                raise TrainingError(
                    f"loss is {losses[-1]}. Lower the learning rate.",
                    client=client.name,
                    round=number,
                    stage="adapting",
                )
        self.seconds += time.perf_counter() - began
        return found

    def _open(self, client: ResidentData, number: int, personal: Tensors) -> LocalContext:
        assignment = Assignment(round=number, rounds=self.rounds, client=client.id, shared={}, buffers=self.buffers)
        memory = {PERSONAL: personal}
        local = open_local(self.algorithm, self.work, assignment, self.bench, memory, client, self.seed)
        local.compiled = self.compiled
        return local

    def _round_alone(self, position: int, number: int, personal: Tensors) -> Tensors:
        bench = self.bench
        local = self._open(self.clients[position], number, personal)
        slots = self.optimizer.slots(self.states[position], self.names)
        rates = self.optimizer.rates_at(number, self.rounds)
        train_what_is_own(bench)
        torch.manual_seed(local.seed)
        losses = []
        for batch in minibatches(local, bench):
            if self.names:
                look = Look(self.algorithm, local, batch)
                self.optimizer.step(list(bench.parameters.values()), slots, look, rates)
                losses.append(look.losses[0])
            else:  # only running statistics are the client's own
                bench.model(batch.inputs)
            self.num_steps[position] += 1
        self.losses[position].append(float(torch.stack(losses).double().mean()) if losses else 0.0)
        everything = {**bench.parameters, **bench.buffers}
        return {name: everything[name].detach().clone() for name in sorted(bench.personal)}

    def _round_together(self, number: int, personal: Sequence[Tensors]) -> list[Tensors]:
        opened = [self._open(client, number, own) for client, own in zip(self.clients, personal, strict=True)]
        for name, stacked in self.stacked.items():
            torch.stack([own[name] for own in personal], out=stacked)
        rates = self.optimizer.rates_at(number, self.rounds)
        self.rates = self.rates.copy_(torch.tensor(rates)) if isinstance(self.rates, Tensor) else rates
        train_what_is_own(self.bench)
        with self.step.stream():
            streams = [minibatches(local, self.bench) for local in opened]
            losses = [self.step(*_stacked(batches, self.at_least)) for batches in zip(*streams, strict=True)]
        self.step.end()
        self.num_steps = [steps + len(losses) for steps in self.num_steps]
        for own, mean in zip(self.losses, torch.stack(losses).double().mean(0).tolist(), strict=True):
            own.append(mean)
        return [{name: self.stacked[name][i].clone() for name in sorted(self.stacked)} for i in range(len(personal))]

    def _step(self, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        assert self.look is not None
        gradients, losses = self.look(self.stacked, inputs, labels, weights)
        slots = self.optimizer.slots(self.states[0], self.names)
        found = [gradients[name] for name in self.names]
        self.optimizer.step(list(self.stacked.values()), slots, lambda: found, self.rates)
        return losses


def gradients_of_all(model: nn.Module, *, compile: bool) -> Gradients:
    """Return what makes, of clients' own parameters and batches, each client's gradient and loss in one pass."""

    def loss(own: Tensors, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        _, logits = functional_call(model, own, (inputs,))
        return (F.cross_entropy(logits, labels, reduction="none") * weights).sum()

    look: Gradients = vmap(grad_and_value(loss))
    return torch.compile(look, dynamic=False) if compile else look


def can_tune_together(bench: Workbench, optimizer: LocalOptimizer) -> bool:
    """Tell whether clients can be tuned in one pass without one's batch or step touching another's.

    Not with running statistics, nor with dropout, whose draws would differ; nor with an optimizer that looks at the
    length of all its parameters.
    """
    wrapped = isinstance(optimizer, Wrapper) and not optimizer.elementwise
    random = any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p for module in bench.model.modules())
    statistics = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in bench.model.modules())
    return bool(bench.parameters) and not (bench.buffers or wrapped or random or statistics)


def train_what_is_own(bench: Workbench) -> None:
    """Set training mode, except where it would move shared running statistics."""
    bench.model.train()
    for path, module in bench.model.named_modules():
        names = {name for name, _ in module.named_buffers(prefix=path, recurse=False)} & bench.buffers.keys()
        if names - bench.personal:
            module.training = False


def _stacked(batches: Sequence[Batch], at_least: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return batches as one tensor each of inputs, labels and weights; short ones are filled up at weight 0."""
    longest = max(at_least, *(len(batch.labels) for batch in batches))

    def filled(tensor: Tensor) -> Tensor:
        rest = longest - len(tensor)
        return torch.cat([tensor, tensor.new_zeros(rest, *tensor.shape[1:])]) if rest else tensor

    weights = [torch.full_like(batch.labels, 1, dtype=torch.float32) / len(batch.labels) for batch in batches]
    inputs, labels = ([filled(getattr(batch, name)) for batch in batches] for name in ("inputs", "labels"))
    return torch.stack(inputs), torch.stack(labels), torch.stack([filled(weight) for weight in weights])
