"""Functions that are captured once and replayed: what every engine that captures steps has in common.

A recorder captures: on a GPU as a CUDA graph (cuda_graph.py), on a CPU as a list of operations (cpu_replay.py).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedatlas.errors import FedatlasError

MOST_GRAPHS = 128
"""Captures that are kept of one function; the one that was not used for longest goes first."""

Values = Sequence[Tensor | None]
Result = TypeVar("Result")


class UncapturableError(FedatlasError):
    """A step reads something that a replay for another client would not see."""


class Recorder(Protocol):
    """Captures the work that a function enqueues, and replays it."""

    def stream(self) -> AbstractContextManager[object]:
        """Return the context in which all work of this recorder is enqueued."""
        ...

    def begin(self) -> None:
        """Wait for the work that the server has enqueued."""
        ...

    def end(self) -> None:
        """Let the server wait for the work that was enqueued here."""
        ...

    def room(self) -> bool:
        """Return whether there is memory for one more recorder."""
        ...

    def worth(self, steps: int, seconds: float) -> bool:
        """Return whether to capture a step of a kind that was taken ``steps`` times in ``seconds`` so far."""
        ...

    def reads(self, place: Tensor) -> bool:
        """Return whether a captured function may read a tensor that it found at its place."""
        ...

    def capture(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return how to replay the function; each replay returns a new tensor."""
        ...


@contextmanager
def enqueued(recorder: Recorder | None) -> Iterator[None]:
    """Enqueue the work inside with a recorder, after the server's work so far and before what follows."""
    if recorder is None:
        yield
        return
    recorder.begin()
    with recorder.stream():
        yield
    recorder.end()


class Graph(NamedTuple):
    """A captured function, and the fixed places where it finds its arguments."""

    places: Values
    replay: Callable[[], Tensor]

    def load(self, given: Values) -> None:
        """Copy arguments to their places."""
        for place, value in zip(self.places, given, strict=True):
            if place is not None and value is not None:
                place.copy_(value)


class Captured:
    """A function of tensors, captured for each kind of call when its recorder finds that worth it, then replayed.

    Until then, and where a kind cannot be captured, a call runs as it is; so it does without a recorder. ``refused``
    counts the reasons why captures failed: after the first, no other is tried. Without it, the error is raised.
    """

    def __init__(self, recorder: Recorder | None, device: torch.device, refused: dict[str, int] | None = None) -> None:
        self._recorder, self._device, self._refused = recorder, device, refused
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()
        self._taken: dict[Hashable, tuple[int, float]] = {}
        """How many calls of a kind ran as they are, and for how many seconds."""

    def __call__(self, kind: Hashable, given: Values, function: Callable[..., Tensor]) -> Tensor:
        """Return the function's result for these arguments; calls of one kind have arguments of the same shapes."""
        graph = self.find(kind)
        if graph is None and self.is_worth(kind):
            graph = self.capture(kind, self.places(given), function)
        if graph is None:
            return self.run(kind, lambda: function(*(v if v is None else v.to(self._device) for v in given)))
        graph.load(given)
        return graph.replay()

    def find(self, kind: Hashable) -> Graph | None:
        """Return the capture of a kind of call, if there is one."""
        graph = self._graphs.get(kind)
        if graph is not None:
            self._graphs.move_to_end(kind)
        return graph

    def is_worth(self, kind: Hashable) -> bool:
        """Return whether a kind of call is to be captured now."""
        if self._recorder is None or self._refused:
            return False
        return self._recorder.worth(*self._taken.get(kind, (0, 0.0)))

    def places(self, given: Values) -> Values:
        """Return fixed places for arguments, which hold these values first."""
        return [
            None if v is None else v.detach().to(self._device, copy=True).requires_grad_(v.requires_grad) for v in given
        ]

    def capture(self, kind: Hashable, places: Values, function: Callable[..., Tensor]) -> Graph | None:
        """Capture the function of the places for a kind of call; return None and count the reason if that fails."""
        assert self._recorder is not None
        try:
            graph = Graph(places, self._recorder.capture(lambda: function(*places)))
        except (UncapturableError, RuntimeError) as error:  # torch raises a RuntimeError
            if self._refused is None:
                raise
            reason = reason_of(error)
            self._refused[reason] = self._refused.get(reason, 0) + 1
            return None
        self._graphs[kind] = graph
        if len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return graph

    def run(self, kind: Hashable, function: Callable[[], Result]) -> Result:
        """Run a call as it is, and count it and its time."""
        began = time.perf_counter()
        result = function()
        calls, seconds = self._taken.get(kind, (0, 0.0))
        self._taken[kind] = (calls + 1, seconds + time.perf_counter() - began)
        return result


def reason_of(error: Exception) -> str:
    """Return the first line of an error, for a record."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
