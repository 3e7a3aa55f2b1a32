"""What captures a step and replays it: on a GPU as a CUDA graph, here; on a CPU as a tape, in tapes.py."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
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
