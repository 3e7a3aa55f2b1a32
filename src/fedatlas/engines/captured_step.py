"""A client's step that is captured once and replayed.

A lane has its own model and its own stream. The tensors that a step reads and writes are at fixed places (a stage); a
client's values are copied there, so that one capture serves all clients and rounds. A size of minibatch is captured
when its recorder finds that worth it; until then, and where it cannot be captured, a step runs as it is, and the lane
notes why.

The kernels are those of the plain loop, in its order, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fedatlas.client.context import LocalContext
from fedatlas.client.data import ResidentData
from fedatlas.client.model import Workbench
from fedatlas.client.training import ClientTraining, Look
from fedatlas.engines.capture import Captured, Graph, Recorder, UncapturableError, Values
from fedatlas.models.frozen_outputs import follow
from fedatlas.parts.optimizer import Rate
from fedatlas.parts.types import Batch, Memory, Tensors, Upload

KINDS = ("start", "notes", "memory", "scratch")
"""The tensors of a client that a term may read, beside the parameters and the batch."""


class Unknown:
    """Stands in a capture for a number that differs between clients; a step that reads it cannot be captured."""

    def __init__(self, title: str) -> None:
        object.__setattr__(self, "_title", title)

    def _refuse(self, *_: object) -> Any:
        title = object.__getattribute__(self, "_title")
        raise UncapturableError(f"a term reads local.{title} in its step", code="uncapturable", got=title)

    __getattr__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __mod__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Stage:
    """Fixed places for the values that one kind of client brings to a step, and the captured steps that read them."""

    def __init__(self, training: ClientTraining, recorder: Recorder, refused: dict[str, int]) -> None:
        local = training.local
        device = training.data.labels.device
        places: dict[str, Memory] = {}
        self._pairs: list[tuple[str, str, str]] = []
        for kind in KINDS:
            parts = parts_of(local, kind)
            places[kind] = {
                part: {k: torch.empty_like(t, device=device) for k, t in named.items()} for part, named in parts.items()
            }
            self._pairs += [(kind, part, name) for part, named in parts.items() for name in named]
        self._places, self._read = places, self._pairs
        self._copied: dict[tuple[str, str, str], Tensor] = {}
        self.state: Tensors = {k: v.to(device, copy=True) for k, v in training.state.items()}
        self.slots = training.optimizer.slots(self.state, list(training.bench.parameters))
        self.lr: Rate = training.lr.clone() if isinstance(training.lr, Tensor) else training.lr
        self.local = replace(
            local,
            start=places["start"][""],
            notes=places["notes"],
            memory=places["memory"],
            scratch=places["scratch"],
            data=cast(ResidentData, Unknown("data")),
            round=cast(int, Unknown("round")),
            seed=cast(int, Unknown("seed")),
            steps=cast(int, Unknown("steps")),
            lr=cast(float, Unknown("lr")),
        )
        self.captured = Captured(recorder, device, refused)

    def enter(self, training: ClientTraining) -> None:
        """Copy a client's values to their places; its optimizer steps here from now on."""
        _copy(self.state, training.state)
        if isinstance(self.lr, Tensor) and isinstance(training.lr, Tensor):
            self.lr.copy_(training.lr)
            training.lr = self.lr
        training.slots = self.slots
        self._copied = {}

    def refresh(self, local: LocalContext) -> None:
        """Copy the values that changed since the last step: all at first, then those that terms prepare for a batch."""
        targets, sources = [], []
        for kind, part, name in self._read:
            source = parts_of(local, kind)[part][name]
            if self._copied.get((kind, part, name)) is not source:
                self._copied[kind, part, name] = source
                targets.append(self._places[kind][part][name])
                sources.append(source)
        if targets:
            torch._foreach_copy_(targets, sources)

    def narrow(self, reads: Callable[[Tensor], bool]) -> None:
        """Leave out of ``refresh`` the values that no captured step reads."""
        self._read = [(kind, part, name) for kind, part, name in self._pairs if reads(self._places[kind][part][name])]
        self._copied = {}

    def leave(self, training: ClientTraining) -> None:
        """Give the client its optimizer's state back."""
        _copy(training.state, self.state)
        self._copied = {}


class Lane:
    """One client at a time, on its own model and stream."""

    def __init__(self, bench: Workbench, recorder: Recorder, refused: dict[str, int] | None = None) -> None:
        self.bench, self.recorder = bench, recorder
        self._stages: dict[Hashable, Stage] = {}
        self._rules: dict[Hashable, int] = {}
        """The optimizers and fixed rates that were met, numbered: a number is quicker to look up."""
        self.refused = {} if refused is None else refused
        """Why steps were not captured, if they were not, and how often that was tried."""

    def train(self, training: ClientTraining) -> tuple[Upload, Memory]:
        """Train a client to the end and return its upload and memory; no other is in flight."""
        with self.recorder.stream(), training.randomness(), torch.no_grad():
            self.run(training)
        return training.finish()

    def run(self, training: ClientTraining) -> bool:
        """Enqueue all of a client's steps; return whether the model drew random numbers."""
        stage: Stage | None = None
        device = training.data.labels.device
        rule = (training.optimizer, None if isinstance(training.lr, Tensor) else training.lr)
        number = self._rules.setdefault(rule, len(self._rules))
        before = _offset(device)
        for batch in training.batches():
            if stage is None:
                stage = self._stage(training)
                stage.enter(training)
            self._step(stage, training, batch, number)
        drew = _offset(device) != before
        if stage is not None:
            stage.leave(training)
        return drew

    def _stage(self, training: ClientTraining) -> Stage:
        key = structure(training.local, training.state)
        if key not in self._stages:
            self._stages[key] = Stage(training, self.recorder, self.refused)
        return self._stages[key]

    def _step(self, stage: Stage, training: ClientTraining, batch: Batch, rule: int) -> None:
        kind = (batch.inputs.shape, batch.inputs.dtype, batch.labels.shape, rule)
        graph = stage.captured.find(kind)
        if graph is None and stage.captured.is_worth(kind):
            graph = self._capture(stage, training, batch, kind)
        if graph is None:
            stage.captured.run(kind, lambda: training.step(batch))
            return
        stage.refresh(training.local)
        graph.load((batch.inputs, batch.labels))
        if self.bench.is_frozen_in_part:
            self._follow(graph.places, batch)
        training.count_step(graph.replay())

    def _capture(self, stage: Stage, training: ClientTraining, batch: Batch, kind: Hashable) -> Graph | None:
        lr = training.lr  # on a GPU the stage's own tensor

        def step(inputs: Tensor, labels: Tensor) -> Tensor:
            look = Look(training.algorithm, stage.local, Batch(inputs, labels))
            training.optimizer.step(training.parameters, stage.slots, look, lr)
            return look.losses[0]

        places = stage.captured.places((batch.inputs, batch.labels))
        self._follow(places, batch)
        graph = stage.captured.capture(kind, places, step)
        if graph is not None:
            stage.narrow(self.recorder.reads)
        return graph

    def _follow(self, places: Values, batch: Batch) -> None:
        assert places[0] is not None
        follow(places[0], batch.inputs, self.bench.model)


def structure(local: LocalContext, state: Tensors) -> Hashable:
    """Return names, shapes and types of the tensors that a step reads; clients of one structure share captures."""
    read = [
        (kind, part, name, tensor.shape, tensor.dtype)
        for kind in KINDS
        for part, named in parts_of(local, kind).items()
        for name, tensor in named.items()
    ]
    return (*read, *((name, tensor.shape) for name, tensor in state.items()))


def parts_of(local: LocalContext, kind: str) -> Memory:
    """Return the tensors of one kind that terms may read, by part and name."""
    return {"": local.start} if kind == "start" else cast(Memory, getattr(local, kind))


def _copy(targets: Tensors, sources: Tensors) -> None:
    if targets:
        torch._foreach_copy_([targets[name] for name in sources], list(sources.values()))


def _offset(device: torch.device) -> int:
    """Return how many random numbers were drawn on a GPU so far."""
    if device.type != "cuda":
        return 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(torch.cuda.default_generators[index].get_offset())
