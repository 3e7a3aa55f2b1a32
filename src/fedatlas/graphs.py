"""The graph engine: a client's step is captured once as a CUDA graph and replayed, for several clients at a time.

A lane is a model of its own on a stream of its own. What a step reads and writes lies in the lane's fixed places (a
stage); a client's values are copied there, so that one capture serves all clients, rounds and learning rates. A graph
is captured when a size of minibatch is seen a second time; the first one runs as it is, which also warms the libraries
up. What cannot be captured runs as it is, and the engine says why.

The kernels are those of the plain loop, in its order, so the bits are the same.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from fedatlas.client import ClientData, Local, Workbench
from fedatlas.errors import FedatlasError
from fedatlas.kept import follow
from fedatlas.local_training import ClientTraining, Look
from fedatlas.objectives import Batch
from fedatlas.optimizers import Rate
from fedatlas.types import Assignment, Memory, Tensors, Upload

MOST_LANES = 5
"""More streams gained nothing on an H200."""
MOST_GRAPHS = 128
"""Graphs that a stage keeps; the one that was not used for longest goes first."""
KINDS = ("start", "notes", "memory", "scratch")
"""What a term may read of a client, beside the parameters and the batch."""

Begin = Callable[[Workbench, Assignment, Memory], ClientTraining]
"""Puts a client's parameters on a workbench and begins its training."""


class Work(NamedTuple):
    """One client's training that is to be done."""

    assignment: Assignment
    memory: Memory
    cost: float


class UncapturableError(FedatlasError):
    """A step reads something that a replay for another client would not see."""


class Recorder(Protocol):
    """Captures what a function enqueues, and replays it."""

    def stream(self) -> AbstractContextManager[object]:
        """Return the context in which all of a lane's work is enqueued."""
        ...

    def begin(self) -> None:
        """Wait for what the server has enqueued."""
        ...

    def end(self) -> None:
        """Let the server wait for what the lane has enqueued."""
        ...

    def room(self) -> bool:
        """Tell whether there is memory for one more lane."""
        ...

    def capture(self, function: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Return how to replay the function, and the tensor in which a replay leaves its result."""
        ...


class CudaRecorder:
    """Captures on a stream of its own; its graphs share their memory, as they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def stream(self) -> AbstractContextManager[object]:
        """Return the context of the stream."""
        return torch.cuda.stream(self._stream)

    def begin(self) -> None:
        """Wait for what the server has enqueued."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def end(self) -> None:
        """Let the server wait for what this lane has enqueued."""
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def room(self) -> bool:
        """Tell whether what this process holds would fit once more; one lane takes less than that."""
        free, _ = torch.cuda.mem_get_info(self._stream.device)
        return free > 1.5 * torch.cuda.memory_reserved(self._stream.device)

    def capture(self, function: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Capture without ``torch.cuda.graph``, which would stop all lanes and empty the cache each time."""
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # an old graph that is collected meanwhile would be freed into the capture
        try:
            return graph.replay, self._record(graph, function)
        finally:
            if collecting:
                gc.enable()

    def _record(self, graph: torch.cuda.CUDAGraph, function: Callable[[], Tensor]) -> Tensor:
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            result = function()
        except BaseException:
            with suppress(RuntimeError):  # a broken capture says so once more; the first reason is the one to tell
                graph.capture_end()
            raise
        graph.capture_end()
        return result


class Unknown:
    """Stands in a capture for what differs between clients and is no tensor; whoever looks at it is not capturable."""

    def __init__(self, title: str) -> None:
        object.__setattr__(self, "_title", title)

    def _refuse(self, *_: object) -> Any:
        raise UncapturableError(f"a term reads local.{object.__getattribute__(self, '_title')} in its step")

    __getattr__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __mod__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Stage:
    """Fixed places for what one kind of client brings to a step, and the graphs that read them."""

    def __init__(self, training: ClientTraining) -> None:
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
        self._places = places
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
            data=cast(ClientData, Unknown("data")),
            round=cast(int, Unknown("round")),
            seed=cast(int, Unknown("seed")),
            steps=cast(int, Unknown("steps")),
            lr=cast(float, Unknown("lr")),
        )
        self.graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self.seen: set[Hashable] = set()

    def enter(self, training: ClientTraining) -> None:
        """Copy a client's values to their places; its optimizer steps here from now on."""
        _copy(self.state, training.state)
        if isinstance(self.lr, Tensor) and isinstance(training.lr, Tensor):
            self.lr.copy_(training.lr)
            training.lr = self.lr
        training.slots = self.slots
        self._copied = {}

    def refresh(self, local: Local) -> None:
        """Copy what has changed since the last step: all at first, then what a term prepares for every batch."""
        targets, sources = [], []
        for kind, part, name in self._pairs:
            source = parts_of(local, kind)[part][name]
            if self._copied.get((kind, part, name)) is not source:
                self._copied[kind, part, name] = source
                targets.append(self._places[kind][part][name])
                sources.append(source)
        if targets:
            torch._foreach_copy_(targets, sources)

    def leave(self, training: ClientTraining) -> None:
        """Give the client its optimizer's state back."""
        _copy(training.state, self.state)
        self._copied = {}


class _Graph:
    def __init__(self, inputs: Tensor, labels: Tensor, replay: Callable[[], object], loss: Tensor) -> None:
        self.inputs, self.labels, self.replay, self.loss = inputs, labels, replay, loss


class Lane:
    """One client at a time, on a model and a stream of its own."""

    def __init__(self, bench: Workbench, recorder: Recorder) -> None:
        self.bench, self.recorder = bench, recorder
        self._stages: dict[Hashable, Stage] = {}

    def run(self, training: ClientTraining, refused: dict[str, int]) -> bool:
        """Enqueue all of a client's steps; tell whether the model drew random numbers."""
        stage: Stage | None = None
        device = training.data.labels.device
        before = _offset(device)
        for batch in training.batches():
            if stage is None:
                stage = self._stage(training)
                stage.enter(training)
            self._step(stage, training, batch, refused)
        drew = _offset(device) != before
        if stage is not None:
            stage.leave(training)
        return drew

    def _stage(self, training: ClientTraining) -> Stage:
        key = structure(training.local, training.state)
        if key not in self._stages:
            self._stages[key] = Stage(training)
        return self._stages[key]

    def _step(self, stage: Stage, training: ClientTraining, batch: Batch, refused: dict[str, int]) -> None:
        rate = None if isinstance(training.lr, Tensor) else training.lr
        key = (batch.inputs.shape, batch.inputs.dtype, batch.labels.shape, training.optimizer, rate)
        graph = stage.graphs.get(key)
        if graph is None and key in stage.seen and not refused:
            graph = self._capture(stage, training, batch, refused)
            if graph is not None:
                stage.graphs[key] = graph
                if len(stage.graphs) > MOST_GRAPHS:
                    stage.graphs.popitem(last=False)
        if graph is None:
            stage.seen.add(key)
            training.step(batch)
            return
        stage.graphs.move_to_end(key)
        stage.refresh(training.local)
        graph.inputs.copy_(batch.inputs)
        follow(graph.inputs, batch.inputs, self.bench.model)
        graph.labels.copy_(batch.labels)
        graph.replay()
        training.took(graph.loss.clone())

    def _capture(self, stage: Stage, training: ClientTraining, batch: Batch, refused: dict[str, int]) -> _Graph | None:
        inputs = batch.inputs.detach().clone().requires_grad_(batch.inputs.requires_grad)
        follow(inputs, batch.inputs, self.bench.model)
        labels = batch.labels.clone()
        lr = training.lr  # on a GPU the stage's own tensor

        def step() -> Tensor:
            look = Look(training.algorithm, stage.local, Batch(inputs, labels))
            training.optimizer.step(training.parameters, stage.slots, look, lr)
            return look.losses[0]

        try:
            replay, loss = self.recorder.capture(step)
        except (UncapturableError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            refused[reason] = refused.get(reason, 0) + 1
            return None
        return _Graph(inputs, labels, replay, loss)


class GraphEngine:
    """Trains a cohort on lanes. A client's result does not depend on its lane, nor on how many there are."""

    def __init__(
        self, bench: Workbench, begin: Begin, recorder: Callable[[], Recorder], most_lanes: int = MOST_LANES
    ) -> None:
        self._begin, self._recorder = begin, recorder
        self._lanes = [Lane(bench, recorder())]
        self._most_lanes = most_lanes
        self.refused: dict[str, int] = {}
        """Why steps were not captured, if they were not, and how often that was tried."""

    @property
    def lanes(self) -> int:
        """How many clients train at a time."""
        return len(self._lanes)

    def train(self, work: Sequence[Work]) -> list[tuple[Upload, Memory]]:
        """Train clients, those with most to do first; return what each sends and remembers, in the given order."""
        results: dict[int, tuple[Upload, Memory]] = {}
        flying: list[tuple[int, Lane, ClientTraining]] = []
        idle = list(self._lanes)
        for lane in idle:
            lane.recorder.begin()
        for i in sorted(range(len(work)), key=lambda i: -work[i].cost):
            if not idle:
                idle.append(self._land(flying, results))
            lane = idle.pop()
            flying.append((i, lane, self._start(lane, work[i])))
            if not idle and len(self._lanes) < min(self._most_lanes, len(work)) and lane.recorder.room():
                idle.append(Lane(self._lanes[0].bench.twin(), self._recorder()))
                idle[-1].recorder.begin()
                self._lanes.append(idle[-1])
        while flying:
            self._land(flying, results)
        for lane in self._lanes:
            lane.recorder.end()
        return [results[i] for i in range(len(work))]

    def _start(self, lane: Lane, work: Work) -> ClientTraining:
        with lane.recorder.stream():
            training = self._begin(lane.bench, work.assignment, work.memory)
            with training.randomness(), torch.no_grad():
                if lane.run(training, self.refused):
                    # A GPU's generator is one for all streams: clients in flight would draw from each other's seeds.
                    self._most_lanes = 1
        return training

    def _land(self, flying: list[tuple[int, Lane, ClientTraining]], results: dict[int, tuple[Upload, Memory]]) -> Lane:
        """Finish the client that has flown longest, and return its lane."""
        i, lane, training = flying.pop(0)
        with lane.recorder.stream():
            results[i] = training.finish()
        return lane


def structure(local: Local, state: Tensors) -> Hashable:
    """Return the names, shapes and types of what a step reads of a client; those of one structure share graphs."""
    read = [
        (kind, part, name, tensor.shape, tensor.dtype)
        for kind in KINDS
        for part, named in parts_of(local, kind).items()
        for name, tensor in named.items()
    ]
    return (*read, *((name, tensor.shape) for name, tensor in state.items()))


def parts_of(local: Local, kind: str) -> Memory:
    """Return what terms may read of one kind, by part and name."""
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
