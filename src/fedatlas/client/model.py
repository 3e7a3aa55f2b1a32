"""The model that clients train, and its workbench. Training is in training.py.

One model object is reused for every client: its parameters are overwritten in place, and copies are avoided. A client's
memory comes in as an argument and goes out as a result, so that the same code runs in a loop, in worker processes, or
on another machine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedatlas.client.precision import halving
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.optimizer import relative_rates
from fedatlas.parts.split import floating_buffers
from fedatlas.parts.tensor_math import copies
from fedatlas.parts.types import GROUP, RIVAL, Branch, InitialModel, Memory, Tensors

PERSONAL, OPTIMIZER = "personal", "optimizer"
"""The names in a client's memory of its personal parameters and of its optimizer's state."""
TRIED = f"{RIVAL}/"
BRANCHES = (f"{GROUP}/", TRIED)
"""What names begin with in the parts of a client's memory that belong to its group's model and to a trial."""
Network = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A function from inputs to features and logits."""


class Workbench:
    """One model, reused for every client, with its state sorted into shared and personal."""

    def __init__(self, model: nn.Module, algorithm: Algorithm, *, compile: bool = False, halve: bool = False) -> None:
        self.model, self._algorithm = model, algorithm
        self.eager: Network = halving(model) if halve else model
        """The model, as it is called while it trains; with ``halve`` its weights are cast together."""
        self.compiled: Network | None = compiled_network(model, algorithm) if compile else None
        self.parameters: Tensors = {k: w for k, w in model.named_parameters() if w.requires_grad}
        self.buffers: Tensors = {k: b for k, b in model.named_buffers() if k in floating_buffers(model)}
        self.optimizer = algorithm.optimizer.fitted(model, list(self.parameters))
        self.relative_rates = relative_rates(model)
        self._split = split = algorithm.split
        self.personal = (split.personal_parameters(model) | split.personal_buffers(model)) & (
            self.parameters.keys() | self.buffers.keys()
        )
        for term in algorithm.objective:
            term.check_model(model, self.personal)
        everything = {**self.parameters, **self.buffers}
        trained = self.parameters.keys() - self.personal
        names = algorithm.sharing.grouped_names(model) if trained else set()
        self.grouped = (names & everything.keys()) - self.personal
        """The names of the shared parameters and buffers that each group has for itself; none if all are frozen."""
        self.initial: Tensors = {k: everything[k].detach().clone() for k in everything}
        self.is_frozen_in_part = any(not w.requires_grad for w in model.parameters())
        # A counter restarts with every client: it neither travels nor is averaged.
        self._counters = [(b, b.clone()) for k, b in model.named_buffers() if k not in self.buffers]
        self.skips_single_examples = skips_single_examples(model)

    def twin(self) -> Workbench:
        """Return a copy with its own copy of the model; its parameters are those of that copy."""
        eager, compiled = self.eager, self.compiled
        self.eager, self.compiled = self.model, None
        try:
            twin = copy.deepcopy(self)
        finally:
            self.eager, self.compiled = eager, compiled
        if eager is not self.model:
            twin.eager = halving(twin.model)
        if compiled is not None:
            twin.compiled = compiled_network(twin.model, self._algorithm)
        return twin

    def shared(self) -> tuple[Tensors, Tensors]:
        """Return copies of the shared parameters and shared buffers as they were at the start."""
        parameters = copies({k: self.initial[k] for k in self.parameters if k not in self.personal})
        return parameters, copies({k: self.initial[k] for k in self.buffers if k not in self.personal})

    def first_model(self) -> InitialModel:
        """Return the model before the first round."""
        return InitialModel(*self.shared(), frozenset(self.personal), frozenset(self.grouped))

    def load(self, shared: Tensors, buffers: Tensors, personal: Tensors, place: int | None = None) -> None:
        """Overwrite the model's state; own values that a client does not have yet are those its place starts with."""
        first: Tensors = {}
        if place is not None and not personal.keys() >= self.personal:
            first = self._split.initial_personal(self.model, place)
        own = {k: personal.get(k, first.get(k, self.initial[k])) for k in self.personal}
        values = {**shared, **buffers, **own}
        with torch.no_grad():
            targets = {**self.parameters, **self.buffers}
            if values:
                torch._foreach_copy_([targets[k] for k in values], list(values.values()))
            for counter, initial in self._counters:
                counter.copy_(initial)


def branch_of(memory: Memory, branch: Branch) -> Memory:
    """Return a client's memory for the common model or for another; that for another begins as a copy."""
    start = f"{branch}/"
    own = {key.removeprefix(start): value for key, value in memory.items() if branch and key.startswith(start)}
    if own or not any(key.startswith(BRANCHES) for key in memory):
        return own or memory
    return {key: value for key, value in memory.items() if not key.startswith(BRANCHES)}


def with_branch(memory: Memory, new: Memory, branch: Branch, *, forgets: bool = False) -> Memory:
    """Return a client's whole memory after it trained with one of its memories; ``forgets`` drops that of a trial."""
    start = f"{branch}/" if branch else ""
    before = {
        key: value
        for key, value in memory.items()
        if (not key.startswith(start) if branch else key.startswith(BRANCHES))
        and not (forgets and key.startswith(TRIED))
    }
    return {**before, **{start + key: value for key, value in new.items()}}


def skips_single_examples(model: nn.Module) -> bool:
    """Return whether batches of one example are left out, because a norm over such a batch is undefined."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def compiled_network(model: nn.Module, algorithm: Algorithm) -> Network:
    """Return the model as ``torch.compile`` makes it when it is first called."""
    for term in algorithm.objective:
        if term.differentiates_twice:
            raise UsageError(
                f"{algorithm.name}: {type(term).__name__} needs second derivatives, which compiled networks lack. "
                "Set training.compile to false.",
                code="compile-unfit",
                term=term.name,
            )
    network: Network = torch.compile(model, dynamic=False)
    return network
