"""What captures a step and replays it: on a GPU as a CUDA graph, here; on a CPU as a tape, in tapes.py."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Protocol

import torch
from torch import Tensor

from fedatlas.errors import FedatlasError


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

    def worth(self, steps: int, seconds: float) -> bool:
        """Tell whether a step is to be captured of a kind that was taken so often, in so long a time."""
        ...

    def reads(self, place: Tensor) -> bool:
        """Tell whether a captured function may read a tensor that it found at its place."""
        ...

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return how to replay the function; each replay returns a result of its own."""
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

    def worth(self, steps: int, seconds: float) -> bool:
        """Tell that a step is worth it at second sight; at first sight it warms the libraries up."""
        return steps > 0

    def reads(self, place: Tensor) -> bool:
        """Tell that any place may be read: a graph does not say."""
        return True

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Capture without ``torch.cuda.graph``, which would stop all lanes and empty the cache each time."""
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # an old graph that is collected meanwhile would be freed into the capture
        try:
            result = self._record(graph, function)
        finally:
            if collecting:
                gc.enable()

        def replay() -> Tensor:
            graph.replay()
            return result.clone()

        return replay

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


class Replayed:
    """A function of tensors that is captured when it meets the same shapes again, and replayed from then on.

    At first sight it runs as it is, which also warms the libraries up; where it cannot be captured, or without a
    recorder, it always does.
    """

    def __init__(self, function: Callable[..., Tensor], recorder: Recorder | None, device: torch.device) -> None:
        self._function, self._recorder, self._device = function, recorder, device
        self._capturable = recorder is not None
        self._captured: dict[Hashable, tuple[list[Tensor], Callable[[], Tensor]]] = {}
        self._seen: set[Hashable] = set()

    def stream(self) -> AbstractContextManager[object]:
        """Return the context in which it is called: a capture needs a stream of its own."""
        if self._recorder is None:
            return nullcontext()
        self._recorder.begin()
        return self._recorder.stream()

    def end(self) -> None:
        """Let what follows wait for the calls."""
        if self._recorder is not None:
            self._recorder.end()

    def __call__(self, *given: Tensor) -> Tensor:
        """Return what the function does for these tensors."""
        key = tuple(tensor.shape for tensor in given)
        if key not in self._captured and not (key in self._seen and self._capture(key, given)):
            self._seen.add(key)
            return self._function(*(tensor.to(self._device) for tensor in given))
        places, replay = self._captured[key]
        for place, tensor in zip(places, given, strict=True):
            place.copy_(tensor)
        return replay()

    def _capture(self, key: Hashable, given: tuple[Tensor, ...]) -> bool:
        if self._recorder is None or not self._capturable:
            return False
        places = [tensor.to(self._device, copy=True) for tensor in given]
        try:
            replay = self._recorder.capture(lambda: self._function(*places))
        except RuntimeError:
            self._capturable = False  # nor would it work for other shapes
            return False
        self._captured[key] = places, replay
        return True
