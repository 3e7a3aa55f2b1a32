"""The vmap engine: all clients of a round step together, as one computation over stacked parameters.

For small models, where one client's step is too little work for the machine. Clients of unequal sizes are padded: an
example that is not there weighs nothing, and a client that has finished keeps its values. On a GPU the step is captured
as a graph. Products over stacked parameters add in another order than a client's own, so results agree with the plain
loop to rounding only. Clients that cannot be stacked go to another engine, and the record shows why.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatlas.client.context import LocalContext, batch_seed, build_local
from fedatlas.client.data import ResidentData
from fedatlas.client.model import OPTIMIZER, Workbench
from fedatlas.client.runner import ClientRunner
from fedatlas.client.training import draw_order, training_error
from fedatlas.client.work import LocalWork
from fedatlas.engines.capture import Recorder, UncapturableError, enqueued, reason_of
from fedatlas.engines.captured_step import structure
from fedatlas.engines.cuda_graph import CudaRecorder
from fedatlas.engines.engine import Engine, Result, Work, with_own_scores
from fedatlas.engines.graph import GraphEngine
from fedatlas.engines.loop import LoopEngine
from fedatlas.engines.registry import engine
from fedatlas.engines.stacked_step import Stack, StackedStep, stacked_values, steps_of_each
from fedatlas.engines.workers import TaskRunner
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import Term
from fedatlas.parts.optimizer import LocalOptimizer
from fedatlas.parts.tensor_math import copies
from fedatlas.parts.types import Memory, Tensors, Upload
from fedatlas.seeds import derive, generator, seeded

MOST_PARAMETERS, MOST_EXAMPLES, MOST_PADDING = 3_000_000, 32, 1.5
"""Up to what size of a model and of a minibatch, and of steps with padding over steps without, stacking pays."""


@engine("vmap", same_bits=False)
class VmapEngine(Engine):
    """All clients of a round step together over stacked parameters; those that cannot are left to another engine."""

    def __init__(self, tasks: TaskRunner) -> None:
        self._runner = tasks.runner
        on_cpu = tasks.device.type == "cpu"
        self.stacked = StackedTraining(tasks.runner, None if on_cpu else CudaRecorder(tasks.device))
        self._rest: Engine = LoopEngine(tasks) if on_cpu else GraphEngine(tasks)

    @classmethod
    def why_not(cls, tasks: TaskRunner) -> str | None:
        """Return that a compiled network cannot be stacked, if there is one."""
        if not tasks.runner.work.compile:
            return None
        return "stacks clients and cannot use a compiled network; set training.compile to false."

    @classmethod
    def preference(cls, tasks: TaskRunner) -> int:
        """Return 4 where a GPU gains from it."""
        gains = tasks.device.type != "cpu" and cls.why_not(tasks) is None and gains_from_stacking(tasks.runner)
        return 4 if gains else 0

    def train(self, work: Sequence[Work]) -> Iterator[tuple[int, Result]]:
        """Start the clients, and return an iterator over their positions and results, as they come."""
        stacked, left = self.stacked.train(work)
        rest = self._rest.train([work[i] for i in left]) if left else iter(())
        placed = ((left[i], result) for i, result in rest)
        together = with_own_scores(self._runner, work, stacked)
        if any(one.assignment.test_own for one in work):
            return chain(placed, together)  # a test of the stacked clients needs the model on which the rest train
        return chain(together, placed)

    def prepare(self, round: int, clients: Sequence[int]) -> None:
        """Make the next round's minibatches ready, where they will be one group."""
        self.stacked.prepare(round, clients)

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Why clients were not stacked, or their steps not captured, and how often."""
        return {**self.stacked.refused, **self._rest.fallbacks}


def why_not_stacked(algorithm: Algorithm, bench: Workbench) -> str | None:
    """Return why an algorithm's clients cannot be stacked, or None if nothing is known to forbid it."""
    if bench.personal:
        return "clients keep their own values in the model"
    for term in algorithm.objective:
        if type(term).prepare is not Term.prepare:
            return f"{type(term).__name__} prepares every batch"
    return None


def can_pad(algorithm: Algorithm, model: nn.Module) -> bool:
    """Return whether examples of weight zero leave no trace: not in a loss, nor in a norm over the batch."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return False
    return all(type(term).loss is Term.loss or term.weighs_examples for term in algorithm.objective)


def gains_from_stacking(runner: ClientRunner) -> bool:
    """Return whether a GPU is expected to be quicker with stacked clients: small models, clients of like sizes."""
    bench, work = runner.bench, runner.work
    sizes = [len(runner.federation.clients[i].train) for i in runner.federation.training_ids]
    steps = [work.steps or work.epochs * _num_batches(size, work) for size in sizes]
    return (
        why_not_stacked(runner.algorithm, bench) is None
        and can_pad(runner.algorithm, bench.model)
        and sum(w.numel() for w in bench.parameters.values()) <= MOST_PARAMETERS
        and work.batch_size <= MOST_EXAMPLES
        and max(steps) * len(steps) <= MOST_PADDING * sum(steps)
    )


def _num_batches(size: int, work: LocalWork) -> int:
    """Return how many minibatches a pass over so many examples has."""
    whole, rest = divmod(size, work.batch_size)
    return whole + (rest >= work.least_batch)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Passes:
    """A client's minibatches of a round: their sizes, and the examples one after another."""

    data: ResidentData
    seed: int
    sizes: list[int]
    order: Tensor


@dataclass(kw_only=True, eq=False)
class _Client:
    """One client of a cohort before its first step."""

    position: int
    work: Work
    local: LocalContext
    state: Tensors
    passes: _Passes


class StackedTraining:
    """Trains clients together where they can be stacked."""

    def __init__(self, runner: ClientRunner, recorder: Recorder | None) -> None:
        self.algorithm, self.bench, self.work, self.seed = runner.algorithm, runner.bench, runner.work, runner.seed
        self._data, self._recorder = runner.data, recorder
        self._pads = can_pad(self.algorithm, self.bench.model)
        self._steps: dict[Hashable, StackedStep] = {}
        self._coming: tuple[int, tuple[int, ...]] | None = None
        """The next round and its clients, until their minibatches are made ready."""
        self._ahead: tuple[tuple[int, tuple[int, ...]], _Batches] | None = None
        """A round and its clients, and their minibatches, which were made ready in the round before."""
        self.refused: dict[str, int] = {}
        """Why clients were not stacked, and how many groups of them."""
        if reason := why_not_stacked(self.algorithm, self.bench):
            self.refused[reason] = 1

    @torch.no_grad()
    def train(self, work: Sequence[Work]) -> tuple[Iterator[tuple[int, Result]], list[int]]:
        """Start clients together; return an iterator over positions and results, and the positions that are left."""
        if self.refused or not work:
            return iter(()), list(range(len(work)))
        with enqueued(self._recorder):
            groups = self._train(work)
        stacked = {client.position for group in groups for client in group.clients}
        return self._results(groups), [i for i in range(len(work)) if i not in stacked]

    def prepare(self, number: int, clients: Sequence[int]) -> None:
        """Note the next round's clients, where they will be one group; its minibatches are made ready in this one."""
        if self._pads or len({self._data(client).num_examples for client in clients}) == 1:
            self._coming = number, tuple(clients)

    def _results(self, groups: Sequence[_Trained]) -> Iterator[tuple[int, Result]]:
        """Yield positions and results; then make the next round ready, wait for the device and fill in the losses.

        In this order the caller has enqueued the sum of the changes before anything waits for the device, and the
        device has work while the minibatches are drawn.
        """
        metrics: list[list[dict[str, float]]] = [[{} for _ in group.clients] for group in groups]
        for group, own in zip(groups, metrics, strict=True):
            yield from _uploads(group, own)
        self._look_ahead()
        for group, own in zip(groups, metrics, strict=True):
            means, broken = group.checks.tolist()
            for i, client in enumerate(group.clients):
                if broken[i] or not math.isfinite(means[i]):
                    raise training_error(f"loss is {means[i]} or a parameter is not finite", client.local)
                own[i]["loss"] = means[i]

    def _look_ahead(self) -> None:
        coming, self._coming = self._coming, None
        if coming is None or self.refused:
            return
        number, clients = coming
        with nullcontext() if self._recorder is None else self._recorder.stream():
            self._ahead = coming, _Batches([self._passes(number, client) for client in clients], self.work)

    def _train(self, work: Sequence[Work]) -> list[_Trained]:
        coming = (work[0].assignment.round, tuple(one.assignment.client for one in work))
        ready, self._ahead = self._ahead, None
        batches = ready[1] if ready is not None and ready[0] == coming else None
        passes = batches.passes if batches else [self._passes(coming[0], client) for client in coming[1]]
        optimizer, clients = self._begin(work, passes)
        groups: dict[Hashable, list[_Client]] = {}
        for client in clients:
            local = client.local
            brings = local.notes or local.memory or local.scratch or client.state
            kind = structure(local, client.state) if brings else None
            key: Hashable = (kind, None if self._pads else tuple(client.passes.sizes))
            groups.setdefault(key, []).append(client)
        trained: list[_Trained] = []
        for key, group in groups.items():
            if len(group) < 2 or not max(len(client.passes.sizes) for client in group):
                continue
            try:
                whole = batches if len(group) == len(work) else None
                trained.append(self._train_group(group, optimizer, key, whole))
            except (RuntimeError, UncapturableError) as error:  # torch's word for what cannot be stacked, and ours
                reason = reason_of(error)
                self.refused[reason] = self.refused.get(reason, 0) + 1
        return trained

    def _passes(self, number: int, client: int) -> _Passes:
        """Draw a client's minibatches of a round."""
        data = self._data(client)
        seed = batch_seed(self.seed, number, data)
        sizes, order = draw_order(self.work, data.num_examples, seed, self.bench.skips_single_examples)
        return _Passes(data=data, seed=seed, sizes=sizes, order=order)

    def _begin(self, work: Sequence[Work], passes: Sequence[_Passes]) -> tuple[LocalOptimizer, list[_Client]]:
        """Load each received model once, and let the terms of its clients begin."""
        bench, optimizer = self.bench, self.bench.optimizer
        if not bench.model.training:
            bench.model.train()
        clients = []
        for positions in _by_model(work):
            first = work[positions[0]].assignment
            bench.load(first.shared, first.buffers, {})
            start, buffers = copies(bench.parameters), bench.buffers
            if len(positions) < len(work):  # another group's buffers will be loaded
                buffers = copies(buffers)
            fresh = optimizer.init(bench.parameters)
            for position in positions:
                (assignment, memory, _), own = work[position], passes[position]
                local = build_local(self.algorithm, self.work, assignment, bench, memory, own.data, own.seed, start)
                local.buffers = buffers
                for term in self.algorithm.objective:
                    term.begin(local)
                state = memory.get(OPTIMIZER) or fresh
                clients.append(_Client(position=position, work=work[position], local=local, state=state, passes=own))
        return optimizer, sorted(clients, key=lambda client: client.position)

    def _train_group(
        self, group: list[_Client], optimizer: LocalOptimizer, key: Hashable, batches: _Batches | None
    ) -> _Trained:
        if batches is None:
            batches = _Batches([client.passes for client in group], self.work)
        locals = [client.local for client in group]
        stack = Stack.of(locals, [client.state for client in group], [local.buffers for local in locals])
        whole = (key, len(group), stack.pattern(), batches.width, batches.uneven, optimizer)
        step = self._steps.get(whole)
        first = group[0].work.assignment
        rates = optimizer.rates_at(first.round, first.rounds)
        if step is None:
            take = steps_of_each(self.algorithm, optimizer, group[0].local)
            step = StackedStep(stack, take, rates, self._recorder)
        else:
            step.stack.take(stack)
            step.set_rates(rates)
        # What went wrong above may have left a step half made: it is kept only now.
        self._steps[whole] = step
        seed = derive(self.seed, "cohort", group[0].local.round, *(c.local.data.name for c in group))
        with seeded(seed, step.device):
            losses = torch.stack([step(*batches.at(number)) for number in range(batches.steps)])
        return self._finish(group, optimizer, step.stack, losses, batches.active)

    def _finish(
        self, group: list[_Client], optimizer: LocalOptimizer, stack: Stack, losses: Tensor, active: Tensor
    ) -> _Trained:
        """Let terms finish, and enqueue the uploads' tensors; nothing waits for the device."""
        names = list(stack.parameters)
        ends = [stack.parameters[name] for name in names]
        received = stacked_values([client.local.start for client in group])
        starts = [received[name] for name in names]
        mean = (losses.double() * active).sum(0) / active.sum(0).clamp(min=1)
        # A sum is not finite if one of its numbers is not, and it reads them once.
        burst = ~torch.stack([end.flatten(1).sum(1) for end in ends]).isfinite().all(0)
        changes = [change.unbind() for change in torch._foreach_sub(ends, starts)]
        values = [end.unbind() for end in ends]
        buffers = {name: buffer.clone().unbind() for name, buffer in stack.buffers.items()}
        notes: list[Memory] = []
        own = [{name: change[i] for name, change in zip(names, changes, strict=True)} for i in range(len(group))]
        for i, client in enumerate(group):
            local = client.local
            local.steps = len(client.passes.sizes)
            local.parameters = {name: value[i] for name, value in zip(names, values, strict=True)}
            local.buffers = {name: buffer[i] for name, buffer in buffers.items()}
            notes.append({term.name: note for term in self.algorithm.objective if (note := term.finish(local))})
            if optimizer.keep_state and stack.state:
                local.memory[OPTIMIZER] = {name: value[i].clone() for name, value in stack.state.items()}
        return _Trained(group, own, notes, torch.stack([mean, burst.double()]))


def _by_model(work: Sequence[Work]) -> list[list[int]]:
    """Return the positions of the clients that received the same model, for each model."""
    found: dict[int, list[int]] = {}
    for position, one in enumerate(work):
        found.setdefault(id(one.assignment.shared), []).append(position)
    return list(found.values())


class _Trained(NamedTuple):
    """A group whose steps are enqueued."""

    clients: list[_Client]
    changes: list[Tensors]
    notes: list[Memory]
    checks: Tensor
    """Each client's mean loss, and whether a parameter of it is not finite."""


def _uploads(group: _Trained, metrics: Sequence[dict[str, float]]) -> Iterator[tuple[int, Result]]:
    """Yield a group's positions and results, with metrics that are filled in later."""
    for client, change, notes, own in zip(group.clients, group.changes, group.notes, metrics, strict=True):
        local = client.local
        upload = Upload(
            client=client.work.assignment.client,
            num_examples=local.data.num_examples,
            num_steps=local.steps,
            change=change,
            buffers=local.buffers,
            notes=notes,
            metrics=own,
        )
        yield client.position, (upload, local.memory)


class _Batches:
    """The minibatches of a group, one step of all clients at a time, padded where sizes differ."""

    def __init__(self, passes: Sequence[_Passes], work: LocalWork) -> None:
        self.passes, self._work = passes, work
        self.steps = max(len(one.sizes) for one in passes)
        self.width = max(max(one.sizes, default=0) for one in passes)
        padded = [one.sizes + [0] * (self.steps - len(one.sizes)) for one in passes]
        sizes = torch.tensor(padded).T
        self._sizes = sizes.amax(1).tolist()
        self.uneven = bool((sizes != sizes[:, :1]).any())
        """Whether the clients differ in size at any step, so that some are padded."""
        device = passes[0].data.labels.device
        there = torch.arange(self.width) < sizes[:, :, None]
        trains = [one.data.train_on_host for one in passes]
        if self.uneven:
            indices = torch.zeros(self.steps, len(passes), self.width, dtype=torch.int64)
            for i, (one, train) in enumerate(zip(passes, trains, strict=True)):
                indices[:, i] = train[0]
                indices[:, i][there[:, i]] = train[one.order]
        else:
            orders = torch.stack([one.order for one in passes])
            alike = len({len(train) for train in trains}) == 1
            drawn = torch.stack(trains).gather(1, orders) if alike else _each(trains, orders)
            indices = torch.zeros(len(passes), self.steps, self.width, dtype=torch.int64)
            indices[:, there[:, 0]] = drawn
            indices = indices.transpose(0, 1)
        self._indices = indices.to(device)
        self._weights = there.float().to(device) if self.uneven else None
        self.active = (sizes > 0).double().to(device)
        self._random = work.augment is not None or any(one.data.client.transform is not None for one in passes)
        self._rngs = [generator(one.seed, "images", device=device) for one in passes] if self._random else []

    def at(self, step: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return a step's inputs and labels, what each example weighs, and which clients have not ended."""
        indices = self._indices[step, :, : self._sizes[step]]
        if self._random:
            made = [
                one.data.batch(own, rng, self._work.augment)
                for one, own, rng in zip(self.passes, indices, self._rngs, strict=True)
            ]
            inputs, labels = (torch.stack(column) for column in ([b.inputs for b in made], [b.labels for b in made]))
        else:
            inputs, labels, _ = self.passes[0].data.batch(indices.flatten(), None)
            # One after another again: a convolution with a filter for each client is slow on channels last.
            inputs, labels = inputs.contiguous().unflatten(0, indices.shape), labels.unflatten(0, indices.shape)
        if self._weights is None:
            return inputs, labels, None, None
        return inputs, labels, self._weights[step, :, : self._sizes[step]], self.active[step].bool()


def _each(tables: Sequence[Tensor], places: Tensor) -> Tensor:
    return torch.stack([table[own] for table, own in zip(tables, places, strict=True)])
