"""What a client has and sees: its data, a model to work on, what its terms may read. Training is in local_training.py.

One model object is reused for every client; its parameters are overwritten in place and nothing is copied that need
not be. What a client remembers comes in as an argument and goes out as a result, so that the same code runs in a
loop, in worker processes, or on another machine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.client.precision import halving
from fedatlas.data.federation import Federation, Transform
from fedatlas.errors import UsageError, expect_numbers
from fedatlas.models.frozen_outputs import KeptPasses
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import Batch, Output
from fedatlas.parts.optimizer import relative_rates
from fedatlas.parts.split import floating_buffers
from fedatlas.parts.types import Assignment, Memory, Tensors
from fedatlas.seeds import derive, generator

PERSONAL, OPTIMIZER = "personal", "optimizer"
"""The names in a client's memory under which its own parameters and its optimizer's state lie."""
Precision = Literal["float32", "bfloat16"]
Network = Callable[[Tensor], tuple[Tensor, Tensor]]
"""What makes features and logits of inputs."""


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """How much a client trains in a round."""

    epochs: int = 1
    steps: int | None = None
    """A fixed number of minibatches in place of epochs; a new shuffled pass begins when one ends."""
    batch_size: int = 32
    augment: Transform | None = None
    """A random change of training images, before the client's own transform."""
    precision: Precision = "float32"
    """What the network computes with while it trains; parameters, losses and steps stay float32."""
    compile: bool = False
    """Let ``torch.compile`` fuse the network's operations, for minibatches of full size."""

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise UsageError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}.")
        if not isinstance(self.compile, bool):
            raise UsageError(f"compile must be true or false, got {self.compile!r}.")
        expect_numbers(self, ("epochs", "steps", "batch_size"), whole=True)
        for title in ("epochs", "steps", "batch_size"):
            value = getattr(self, title)
            if value is not None and value < 1:
                raise UsageError(f"{title} must be at least 1, got {value}.")


class ClientData:
    """One client's view of the resident examples."""

    def __init__(self, federation: Federation, client: int, *, channels_last: bool = False) -> None:
        self.federation, self.id, self.channels_last = federation, client, channels_last
        self.client = federation.clients[client]
        self.inputs, self.labels = federation.data.inputs, federation.data.labels

    @property
    def name(self) -> str:
        """The client's name."""
        return self.client.name

    @cached_property
    def num_examples(self) -> int:
        """How many training examples the client has."""
        return len(self.client.train)

    @cached_property
    def train_on_host(self) -> Tensor:
        """Which examples the client trains on, in the host's memory."""
        return self.client.train.cpu()

    @cached_property
    def place(self) -> int:
        """The client's position among those that train, or among the held-out ones if it is held out."""
        return sum(other.held_out == self.client.held_out for other in self.federation.clients[: self.id])

    @cached_property
    def label_counts(self) -> Tensor:
        """How many training examples of each class the client has, float32."""
        return self.federation.label_counts(self.id).to(self.labels.device)

    def batch(self, indices: Tensor, rng: torch.Generator | None, augment: Transform | None = None) -> Batch:
        """Return examples ready for the model: images scaled, changed by the client's transform and normalised."""
        # On a CPU this copies whole examples, where an index would go through their numbers; a GPU has one way.
        inputs = self.inputs[indices] if self.inputs.is_cuda else self.inputs.index_select(0, indices)
        if inputs.dtype == torch.uint8:
            inputs = inputs.float().div_(255)
            if augment is not None and rng is not None:
                inputs = augment(inputs, rng)
            if self.client.transform is not None and rng is not None:
                inputs = self.client.transform(inputs, rng)
            if self.federation.data.mean:
                mean, std = self._statistics
                # What comes of a transform may be somebody else's; what was made here is changed where it is.
                own = augment is None and self.client.transform is None
                inputs = (inputs.sub_(mean) if own else inputs.sub(mean)).div_(std)
        if self.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return Batch(inputs, self.labels[indices])

    def show(self, inputs: Tensor, indices: Tensor) -> None:
        """Note which training examples a batch shows, if it shows them as they are: frozen networks pass them once."""
        if self.client.transform is None:
            self._kept.show(inputs, indices)

    @cached_property
    def _kept(self) -> KeptPasses:
        return KeptPasses(self.client.train, lambda indices: self.batch(indices, None).inputs)

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        data = self.federation.data
        mean, std = (torch.tensor(v, device=self.inputs.device).view(1, -1, 1, 1) for v in (data.mean, data.std))
        return mean, std


def copies(tensors: Tensors) -> Tensors:
    """Return detached copies of tensors, in one call for all."""
    if not tensors:
        return {}
    return dict(zip(tensors, torch._foreach_mul([tensor.detach() for tensor in tensors.values()], 1.0), strict=True))


class Workbench:
    """One model, reused for every client, with its state sorted into shared and personal."""

    def __init__(self, model: nn.Module, algorithm: Algorithm, *, compile: bool = False, halve: bool = False) -> None:
        self.model, self._algorithm = model, algorithm
        self.eager: Network = halving(model) if halve else model
        """The model, as it is called while it trains; with ``halve`` its weights are cast together."""
        self.compiled: Network | None = compiled_network(model, algorithm) if compile else None
        self.outbox: Tensors | None = None
        """Where a client's change goes, in a worker process: the main process finds it there."""
        self.parameters: Tensors = {k: w for k, w in model.named_parameters() if w.requires_grad}
        self.buffers: Tensors = {k: b for k, b in model.named_buffers() if k in floating_buffers(model)}
        self.optimizer = algorithm.optimizer.fitted(model, list(self.parameters))
        self.relative_rates = relative_rates(model)
        self._split = split = algorithm.split
        self.personal = (split.personal_parameters(model) | split.personal_buffers(model)) & (
            self.parameters.keys() | self.buffers.keys()
        )
        everything = {**self.parameters, **self.buffers}
        self.initial: Tensors = {k: everything[k].detach().clone() for k in everything}
        self.is_frozen_in_part = any(not w.requires_grad for w in model.parameters())
        # A counter restarts with every client: it neither travels nor is averaged.
        self._counters = [(b, b.clone()) for k, b in model.named_buffers() if k not in self.buffers]
        self.skips_single_examples = skips_single_examples(model)

    def twin(self) -> Workbench:
        """Return a copy with a model of its own; the copied table of its parameters is that model's."""
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


@dataclass(kw_only=True, eq=False)
class Local:
    """What a term may see while one client trains."""

    model: nn.Module
    data: ClientData
    parameters: Tensors
    """All trainable parameters, as they are now."""
    buffers: Tensors
    start: Tensors
    """The parameters as they were received."""
    notes: Memory
    """What the server's rules told this client, by name."""
    memory: Memory
    """What this client remembers, by name; a term writes under its own name only."""
    work: LocalWork
    round: int
    lr: float
    seed: int
    """The seed of this client's batches in this round."""
    steps: int = 0
    scratch: Memory = field(default_factory=dict)
    """What a term keeps for this round only, by name."""
    eager: Network | None = None
    """The model, as it is to be called while it trains; None: as it is."""
    compiled: Network | None = None
    """The model, compiled; None where it is not to be."""
    relative_rates: Mapping[str, float] = field(default_factory=dict)
    """How many times ``lr`` parameters step at, by name, where that is not once."""

    def forward(self, parameters: Tensors, inputs: Tensor) -> Output:
        """Return what the model would say with other parameters; running statistics stay as they are."""
        buffers = {name: buffer.detach().clone() for name, buffer in self.buffers.items()}
        with autocast(self.work.precision, inputs.device):
            output = functional_call(self.model, {**self.parameters, **parameters, **buffers}, (inputs,))
        return widened(output)

    def compute(self, inputs: Tensor) -> Output:
        """Return what the model says as it is; in training mode running statistics move."""
        # Every other size of minibatch would be compiled anew, which takes longer than it is worth.
        network: Network = self.eager or self.model
        if self.compiled is not None and len(inputs) == self.work.batch_size:
            network = self.compiled
        with autocast(self.work.precision, inputs.device):
            output = network(inputs)
        return widened(output)

    @torch.no_grad()
    def received_loss(self) -> Tensor:
        """Return the mean cross-entropy of the model as it is on the client's training data, in evaluation mode."""
        mode = self.model.training
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.data.labels.device)
        for batch in self.passes():
            total += F.cross_entropy(self.model(batch.inputs)[1], batch.labels, reduction="sum").double()
        self.model.train(mode)
        return (total / self.data.num_examples).float()

    def passes(self) -> Iterator[Batch]:
        """Yield the client's training data once, in order and unaugmented, in batches."""
        rng = generator(self.seed, "survey", device=self.data.labels.device)
        for indices in self.data.client.train.split(max(self.work.batch_size, 256)):
            batch = self.data.batch(indices, rng)
            self.data.show(batch.inputs, indices)
            yield batch


def skips_single_examples(model: nn.Module) -> bool:
    """Tell whether batches of one example are left out, because a norm over the batch would make nothing of them."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def open_local(
    algorithm: Algorithm,
    work: LocalWork,
    assignment: Assignment,
    bench: Workbench,
    memory: Memory,
    data: ClientData,
    seed: int,
) -> Local:
    """Load the received model with the client's own parameters, and return what its terms may see."""
    place = data.place if bench.personal else None
    bench.load(assignment.shared, assignment.buffers, memory.get(PERSONAL, {}), place)
    own = copies({k: w for k, w in bench.parameters.items() if k not in assignment.shared})
    return Local(
        model=bench.model,
        data=data,
        parameters=bench.parameters,
        buffers=bench.buffers,
        # Nobody writes to what was received, so it need not be copied.
        start={k: own[k] if k in own else assignment.shared[k] for k in bench.parameters},
        notes=assignment.notes,
        memory=dict(memory),
        work=work,
        round=assignment.round,
        lr=algorithm.optimizer.lr_at(assignment.round, assignment.rounds),
        seed=derive(seed, "batches", assignment.round, data.name),
        eager=bench.eager,
        compiled=bench.compiled,
        relative_rates=bench.relative_rates,
    )


def introduce_client(algorithm: Algorithm, data: ClientData) -> Memory:
    """Return what the algorithm's parts must know of a client before the first round."""
    answers = ((part.name, part.introduce(data)) for part in algorithm.parts())
    return {name: answer for name, answer in answers if answer}


def survey_client(algorithm: Algorithm, local: Local) -> Memory:
    """Return what the surveying terms must tell the server before this round's training."""
    local.model.eval()
    return {term.name: term.survey(local) for term in algorithm.objective if term.surveys}


def compiled_network(model: nn.Module, algorithm: Algorithm) -> Network:
    """Return the model as ``torch.compile`` makes it when it is first called."""
    for term in algorithm.objective:
        if term.differentiates_twice:
            raise UsageError(
                f"{algorithm.name}: {type(term).__name__} needs second derivatives, which compiled networks lack. "
                "Set training.compile to false."
            )
    network: Network = torch.compile(model, dynamic=False)
    return network


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which a network computes with the given precision."""
    if precision == "float32":
        return nullcontext()
    # Without the cache of cast weights, which a captured graph must not share with the next step.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def widened(output: tuple[Tensor, Tensor]) -> Output:
    """Return float32 where the network computed with less, so that no term has to know."""
    return Output(*(value.float() if value.dtype == torch.bfloat16 else value for value in output))
