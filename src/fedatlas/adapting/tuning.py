"""Tune the clients' own values while everything shared stays fixed: for one client, or for many at once.

Many clients share all but a few parameters, so that one pass of the network serves their batches together:
``torch.func.vmap`` over the personal parameters folds the clients into the batch, and each client still sees its own
batches in its own order. Only the rounding of sums differs from tuning them one after another.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedatlas.client.context import LocalContext, open_local
from fedatlas.client.data import ResidentData
from fedatlas.client.model import PERSONAL, Workbench, compiled_network
from fedatlas.client.training import Look, minibatches
from fedatlas.client.work import LocalWork
from fedatlas.data.dataset import first_few
from fedatlas.engines.capture import Recorder, enqueued
from fedatlas.engines.cuda_graph import CudaRecorder
from fedatlas.engines.stacked_step import Gradients, Stack, StackedStep, stacked_values, step_of_all
from fedatlas.errors import TrainingError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.optimizer import LocalOptimizer, Wrapper
from fedatlas.parts.types import Assignment, Batch, Tensors
from fedatlas.seeds import repeatable


class Tuning:
    """The rounds of clients that tune without a server. The optimizer's state lasts from the first to the last."""

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
        # A client of few examples may have no batch at all, and so no step to take with the others.
        least = max(work.least_batch, 2 if bench.skips_single_examples else 1)
        enough = min(client.num_examples for client in self.clients) >= least
        self.device = self.clients[0].labels.device
        # Steps of all clients can be captured, which makes a GPU faster even for one client.
        gains = len(self.clients) > 1 or self.device.type == "cuda"
        classes = self.clients[0].task.has_classes
        together = gains and enough and classes and can_tune_together(bench, algorithm.optimizer)
        self.compiled = compiled_network(bench.model, algorithm) if work.compile and not together else None
        self.names = list(bench.parameters)
        self.optimizer = algorithm.optimizer.fitted(bench.model, self.names)
        own = {name: parameter.detach() for name, parameter in bench.parameters.items()}
        # One state for all clients together is the step's.
        self.states = [] if together else [self.optimizer.init(own) for _ in self.clients]
        if recorder is None and self.device.type == "cuda" and together:
            recorder = CudaRecorder(self.device)
        self.recorder = recorder
        self.step = self._stacked_step(own) if together else None
        """Takes a step of all clients on their batches, where they are tuned together."""
        self.losses: list[list[float]] = [[] for _ in self.clients]
        """Of each client, the mean training loss of each round."""
        self.num_steps = [0] * len(self.clients)
        self.seconds = 0.0
        """Of all clients together."""

    def round(self, number: int, personal: Sequence[Tensors]) -> list[Tensors]:
        """Return the clients' personal values after another round; one that Ctrl-C ends counts for nothing."""
        began, earlier = time.perf_counter(), ([list(own) for own in self.losses], list(self.num_steps))
        try:
            found = self._round(number, personal)
        except KeyboardInterrupt:
            self.losses, self.num_steps = earlier
            raise
        self.seconds += time.perf_counter() - began
        return found

    def _round(self, number: int, personal: Sequence[Tensors]) -> list[Tensors]:
        with (
            repeatable(self.device),
            torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
            torch.no_grad(),
        ):
            if self.step is not None:
                found = self._round_together(self.step, number, personal)
            else:
                found = [self._round_alone(i, number, own) for i, own in enumerate(personal)]
        for client, losses in zip(self.clients, self.losses, strict=True):
            if not torch.isfinite(torch.tensor(losses[-1])):
                raise TrainingError(
                    f"loss is {losses[-1]}. Lower the learning rate.",
                    client=client.name,
                    round=number,
                    stage="adapting",
                    code="not-finite",
                    got=losses[-1],
                )
        return found

    def _stacked_step(self, own: Tensors) -> StackedStep:
        parameters = stacked_values([own] * len(self.clients))
        return StackedStep(
            Stack(parameters=parameters, buffers={}, state=self.optimizer.init(parameters)),
            step_of_all(gradients_of_all(self.bench.model, compile=self.work.compile), self.optimizer, self.names),
            self.optimizer.rates_at(1, self.rounds),
            self.recorder,
            # A CPU is quicker with plain numbers; on a GPU a captured step must find its rates at a fixed place.
            rates_on_device=self.device.type != "cpu",
            refused={},
        )

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

    def _round_together(self, step: StackedStep, number: int, personal: Sequence[Tensors]) -> list[Tensors]:
        opened = [self._open(client, number, own) for client, own in zip(self.clients, personal, strict=True)]
        stacked = step.stack.parameters
        for name, place in stacked.items():
            torch.stack([own[name] for own in personal], out=place)
        step.set_rates(self.optimizer.rates_at(number, self.rounds))
        train_what_is_own(self.bench)
        # Compiled code is made for one size of batch.
        most = max(client.num_examples for client in self.clients)
        at_least = min(self.work.batch_size, most) if self.work.compile else 0
        with enqueued(self.recorder):
            streams = [minibatches(local, self.bench) for local in opened]
            losses = [step(*_stacked(batches, at_least)) for batches in zip(*streams, strict=True)]
        self.num_steps = [steps + len(losses) for steps in self.num_steps]
        for own, mean in zip(self.losses, torch.stack(losses).double().mean(0).tolist(), strict=True):
            own.append(mean)
        return [{name: stacked[name][i].clone() for name in sorted(stacked)} for i in range(len(personal))]


def gradients_of_all(model: nn.Module, *, compile: bool) -> Gradients:
    """Return what computes each client's gradient and loss in one pass, of their personal parameters and batches."""

    def loss(own: Tensors, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        _, logits = functional_call(model, own, (inputs,))
        return (F.cross_entropy(logits, labels, reduction="none") * weights).sum()

    gradients: Gradients = vmap(grad_and_value(loss))
    return torch.compile(gradients, dynamic=False) if compile else gradients


def can_tune_together(bench: Workbench, optimizer: LocalOptimizer) -> bool:
    """Return whether clients can be tuned in one pass without one's batch or step touching another's.

    Not with running statistics, nor with dropout, whose draws would differ; nor with an optimizer that looks at the
    length of all its parameters. Nor, as it saves nothing, where they share no parameter.
    """
    wrapped = isinstance(optimizer, Wrapper) and not optimizer.elementwise
    random = any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p for module in bench.model.modules())
    statistics = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in bench.model.modules())
    some = bool(bench.parameters) and bench.is_frozen_in_part
    return some and not (bench.buffers or wrapped or random or statistics)


def warn_of_idle(tuning: Tuning) -> None:
    """Name the clients that took no step."""
    idle = [own.name for own, count in zip(tuning.clients, tuning.num_steps, strict=True) if not count]
    if idle:
        warnings.warn(
            f"nothing was tuned for {first_few(idle)}: with one training example there is no batch that the norms "
            "of the network can take. Bring at least two.",
            stacklevel=3,
        )


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
