"""The context of a training client: the view that the parts of an algorithm have of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.client.data import ResidentData
from fedatlas.client.model import PERSONAL, Network, Workbench
from fedatlas.client.work import LocalWork, Precision
from fedatlas.data.task import CLASSIFICATION, Task
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.tensor_math import copies
from fedatlas.parts.types import Assignment, Batch, Memory, Output, Tensors
from fedatlas.seeds import derive, generator


@dataclass(kw_only=True, eq=False)
class LocalContext:
    """The view that a term has while one client trains."""

    model: nn.Module
    data: ResidentData
    parameters: Tensors
    """All trainable parameters, as they are now."""
    buffers: Tensors
    start: Tensors
    """The parameters as they were received."""
    notes: Memory
    """The server rules' messages to this client, by name."""
    memory: Memory
    """The client's memory, by name; a term writes under its own name only."""
    work: LocalWork
    round: int
    lr: float
    seed: int
    """The seed of this client's batches in this round."""
    steps: int = 0
    scratch: Memory = field(default_factory=dict)
    """Values for this round only, by term."""
    eager: Network | None = None
    """The function to call for a training step; None: the model itself."""
    compiled: Network | None = None
    """The compiled model; None if it is not compiled."""
    relative_rates: Mapping[str, float] = field(default_factory=dict)
    """Factors of ``lr`` by parameter, where a factor is not 1."""
    task: Task = CLASSIFICATION
    """What is to be predicted."""

    def forward(self, parameters: Tensors, inputs: Tensor) -> Output:
        """Return the model's output with other parameters; running statistics stay as they are."""
        buffers = {name: buffer.detach().clone() for name, buffer in self.buffers.items()}
        with autocast(self.work.precision, inputs.device):
            output = functional_call(self.model, {**self.parameters, **parameters, **buffers}, (inputs,))
        return widen(output)

    def compute(self, inputs: Tensor) -> Output:
        """Return the model's output; in training mode running statistics move."""
        # Every other size of minibatch would be compiled again, which takes longer than it is worth.
        network: Network = self.eager or self.model
        if self.compiled is not None and len(inputs) == self.work.batch_size:
            network = self.compiled
        with autocast(self.work.precision, inputs.device):
            output = network(inputs)
        return widen(output)

    @torch.no_grad()
    def received_loss(self) -> Tensor:
        """Return the mean loss of the model as it is on the client's training data, in evaluation mode."""
        mode = self.model.training
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.data.labels.device)
        for batch in self.passes():
            outputs = self.model(batch.inputs)[1]
            if self.task.has_classes:
                total += F.cross_entropy(outputs, batch.labels, reduction="sum").double()
            else:
                total += self.task.losses(outputs, batch.labels).sum().double()
        self.model.train(mode)
        return (total / self.data.num_examples).float()

    def passes(self) -> Iterator[Batch]:
        """Yield the client's training data once, in order and unaugmented, in batches."""
        rng = generator(self.seed, "survey", device=self.data.labels.device)
        for indices in self.data.client.train.split(max(self.work.batch_size, 256)):
            batch = self.data.batch(indices, rng)
            self.data.show(batch.inputs, indices)
            yield batch


def open_local(
    algorithm: Algorithm,
    work: LocalWork,
    assignment: Assignment,
    bench: Workbench,
    memory: Memory,
    data: ResidentData,
    seed: int,
) -> LocalContext:
    """Load the received model with the client's personal values, and return the context for its terms."""
    place = data.place if bench.personal else None
    bench.load(assignment.shared, assignment.buffers, memory.get(PERSONAL, {}), place)
    own = copies({k: w for k, w in bench.parameters.items() if k not in assignment.shared})
    # The received tensors are never written to, so they need not be copied.
    start = {k: own[k] if k in own else assignment.shared[k] for k in bench.parameters}
    return build_local(
        algorithm, work, assignment, bench, memory, data, batch_seed(seed, assignment.round, data), start
    )


def build_local(
    algorithm: Algorithm,
    work: LocalWork,
    assignment: Assignment,
    bench: Workbench,
    memory: Memory,
    data: ResidentData,
    seed: int,
    start: Tensors,
) -> LocalContext:
    """Return the context for a client's terms on a workbench that already holds the ``start``.

    ``seed`` is that of the client's batches; see ``batch_seed``.
    """
    return LocalContext(
        model=bench.model,
        data=data,
        parameters=bench.parameters,
        buffers=bench.buffers,
        start=start,
        notes=assignment.notes,
        memory=dict(memory),
        work=work,
        round=assignment.round,
        lr=algorithm.optimizer.lr_at(assignment.round, assignment.rounds),
        seed=seed,
        eager=bench.eager,
        compiled=bench.compiled,
        relative_rates=bench.relative_rates,
        task=data.task,
    )


def batch_seed(seed: int, round: int, data: ResidentData) -> int:
    """Return the seed of a client's batches in a round."""
    return derive(seed, "batches", round, data.name)


def introduce_client(algorithm: Algorithm, data: ResidentData) -> Memory:
    """Return the tensors that the algorithm's parts need from a client before the first round."""
    answers = ((part.name, part.introduce(data)) for part in algorithm.parts())
    return {name: answer for name, answer in answers if answer}


def survey_client(algorithm: Algorithm, local: LocalContext) -> Memory:
    """Return the surveying terms' messages to the server before this round's training."""
    local.model.eval()
    return {term.name: term.survey(local) for term in algorithm.objective if term.surveys}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which a network computes with the given precision."""
    if precision == "float32":
        return nullcontext()
    # Without the cache of cast weights, which a captured graph must not share with the next step.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


def widen(output: tuple[Tensor, Tensor]) -> Output:
    """Return float32 outputs if the network computed in bfloat16, so that terms see only float32."""
    return Output(*(value.float() if value.dtype == torch.bfloat16 else value for value in output))
