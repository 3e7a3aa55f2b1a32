"""The graph engine: a client's step is captured once and replayed; on a GPU for several clients at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from fedatlas.client.runner import ClientRunner
from fedatlas.client.training import ClientTraining
from fedatlas.engines.capture import Recorder
from fedatlas.engines.captured_step import Lane
from fedatlas.engines.cpu_replay import TapeRecorder
from fedatlas.engines.cuda_graph import CudaRecorder
from fedatlas.engines.engine import Engine, Result, Work, with_own_scores
from fedatlas.engines.loop import LoopEngine
from fedatlas.engines.registry import engine
from fedatlas.engines.workers import TaskRunner

MOST_LANES = 5
"""More streams gained nothing on an H200."""


@engine("graph", same_bits=True)
class GraphEngine(Engine):
    """A client's step is captured once and replayed: as a CUDA graph, or on a CPU as a list of operations."""

    def __init__(self, tasks: TaskRunner) -> None:
        runner, device = tasks.runner, tasks.device
        self._trains: Lanes | LoopEngine
        if device.type == "cpu":
            runner.driver = Lane(runner.bench, TapeRecorder())
            self._trains = LoopEngine(tasks)
        else:
            self._trains = Lanes(runner, lambda: CudaRecorder(device))

    @classmethod
    def why_not(cls, tasks: TaskRunner) -> str | None:
        """Return why a CPU cannot record the steps of a model."""
        reason = None
        if tasks.device.type == "cpu" and tasks.runner.work.compile:
            reason = "its network is compiled"
        elif tasks.device.type == "cpu" and tasks.runner.bench.is_frozen_in_part:
            reason = "what is frozen in its model is computed once and kept"
        return reason and f"cannot record steps on a CPU, as {reason}; use 'auto'."

    @classmethod
    def preference(cls, tasks: TaskRunner) -> int:
        """Return 3 if it can train."""
        return 0 if cls.why_not(tasks) else 3

    def train(self, work: Sequence[Work]) -> Iterator[tuple[int, Result]]:
        """Start the clients, and return an iterator over their positions and results, as they come."""
        return self._trains.train(work)

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Why steps were not captured, and how often that was tried."""
        return self._trains.fallbacks


class Lanes:
    """Trains a cohort on lanes. A client's result does not depend on its lane, nor on how many there are."""

    def __init__(self, runner: ClientRunner, recorder: Callable[[], Recorder], most_lanes: int = MOST_LANES) -> None:
        self._runner, self._recorder = runner, recorder
        self.fallbacks: dict[str, int] = {}
        """Why steps were not captured, if they were not, and how often that was tried."""
        self._lanes = [Lane(runner.bench, recorder(), self.fallbacks)]
        self._most_lanes = most_lanes

    def __len__(self) -> int:
        """Return how many clients train at a time."""
        return len(self._lanes)

    def train(self, work: Sequence[Work]) -> Iterator[tuple[int, Result]]:
        """Start clients, those with most to do first, and return an iterator over positions and results."""
        flying: deque[tuple[int, Lane, ClientTraining]] = deque()
        landed: list[tuple[int, Result]] = []
        idle = list(self._lanes)
        for lane in idle:
            lane.recorder.begin()
        for i in sorted(range(len(work)), key=lambda i: -work[i].cost):
            if not idle:
                position, lane, training = flying.popleft()
                landed.append((position, _land(lane, training)))
                idle.append(lane)
            lane = idle.pop()
            flying.append((i, lane, self._start(lane, work[i])))
            if not idle and len(self._lanes) < min(self._most_lanes, len(work)) and lane.recorder.room():
                idle.append(Lane(self._lanes[0].bench.twin(), self._recorder(), self.fallbacks))
                idle[-1].recorder.begin()
                self._lanes.append(idle[-1])
        return with_own_scores(self._runner, work, self._results(landed, flying))

    def _results(
        self, landed: list[tuple[int, Result]], flying: deque[tuple[int, Lane, ClientTraining]]
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results, those that have flown longest first."""
        landed += [(position, _land(lane, training)) for position, lane, training in flying]
        # The server waits for the lanes' work only after all uploads are in.
        for lane in self._lanes:
            lane.recorder.end()
        yield from landed

    def _start(self, lane: Lane, work: Work) -> ClientTraining:
        with lane.recorder.stream():
            training = self._runner.begin(lane.bench, work.assignment, work.memory)
            with training.randomness(), torch.no_grad():
                if lane.run(training):
                    # A GPU's generator is one for all streams: clients in flight would draw from each other's seeds.
                    self._most_lanes = 1
        return training


def _land(lane: Lane, training: ClientTraining) -> Result:
    """Finish a client's training on its lane."""
    with lane.recorder.stream():
        return training.finish()
