"""Captures a step on a GPU as a CUDA graph."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress

import torch
from torch import Tensor


class CudaRecorder:
    """Captures on its own stream; its graphs share their memory, as they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def stream(self) -> AbstractContextManager[object]:
        """Return the context of the stream."""
        return torch.cuda.stream(self._stream)

    def begin(self) -> None:
        """Wait for the work that the server has enqueued."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def end(self) -> None:
        """Let the server wait for the work that was enqueued here."""
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def room(self) -> bool:
        """Return whether as much memory as this process holds is free; one more recorder takes less than that."""
        free, _ = torch.cuda.mem_get_info(self._stream.device)
        return free > 1.5 * torch.cuda.memory_reserved(self._stream.device)

    def worth(self, steps: int, seconds: float) -> bool:
        """Return whether a step was seen before: the first one warms the libraries up."""
        return steps > 0

    def reads(self, place: Tensor) -> bool:
        """Return true: a graph does not show which memory it reads."""
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
        with ExitStack() as on_error:
            on_error.callback(_abandon, graph)
            result = function()
            on_error.pop_all()
        graph.capture_end()
        return result


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    with suppress(RuntimeError):  # a broken capture raises again when it ends; the first error is the one to show
        graph.capture_end()
