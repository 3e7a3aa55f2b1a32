"""Worker processes: forked, so that they share the resident examples; one thread each.

Parameters go out and changes come back through shared memory; only the messages and the memory of parts are pickled.
The memory is anonymous: it needs neither room in /dev/shm, of which a container often has 64 MB, nor open files.
"""

from __future__ import annotations

import mmap
import multiprocessing
import pickle
import selectors
import signal
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedatlas.client.runner import ClientRunner
from fedatlas.errors import FedatlasError
from fedatlas.parts.types import Assignment, Tensors, Upload

_MOST_AHEAD = 2**14
"""Bytes of a message that may be sent to a busy worker: a pipe takes it at once, so neither side waits."""
_MOST_LENT, _LENT_BYTES = 32, 2**25
"""Clients' changes that a worker may have left in shared memory while they are used there, and bytes of all of them."""
_ALIGNMENT = 16
"""Numbers by whose multiples tensors begin in a shared block, so that vector instructions find them aligned."""


@dataclass(frozen=True)
class Task:
    """One call of a client runner."""

    method: str
    arguments: tuple[Any, ...]
    cost: float = 0.0
    """Costly tasks start first, so that none is left alone at the end."""


class TaskRunner:
    """Runs tasks in worker processes, or one after another in this process if there is one worker."""

    def __init__(self, runner: ClientRunner, workers: int) -> None:
        self.runner, self.workers = runner, workers
        self.device = runner.federation.data.labels.device
        self.pool: WorkerPool | None = None

    def fork(self) -> None:
        """Start the worker processes, each with a copy of the runner as it is now."""
        if self.workers > 1:
            self.pool = WorkerPool(self.runner, self.workers)

    def start(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        """Start tasks; return an iterator over positions and results as they arrive."""
        if self.pool is not None:
            return self.pool.start(tasks)
        return ((i, getattr(self.runner, task.method)(*task.arguments)) for i, task in enumerate(tasks))

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the tasks' results, in the tasks' order."""
        results = dict(self.start(tasks))
        return [results[i] for i in range(len(tasks))]

    @property
    def refused(self) -> dict[str, int]:
        """Why the runner's driver took steps as the plain loop does, and how often."""
        source = self.pool or self.runner.driver
        return {} if source is None else source.refused

    def close(self) -> None:
        """End the worker processes."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None


def fork_available() -> bool:
    """Return whether processes can be forked safely here; on macOS the system's libraries forbid it."""
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


class SharedTensors:
    """Named tensors that are adjacent in memory shared between processes, one block for each type."""

    def __init__(self, tensors: Tensors) -> None:
        self._names = list(tensors)
        self._shapes: dict[torch.dtype, dict[str, torch.Size]] = {}
        for name, tensor in tensors.items():
            self._shapes.setdefault(tensor.dtype, {})[name] = tensor.shape
        self._sizes = {
            dtype: [n for s in shapes.values() for n in (s.numel(), -s.numel() % _ALIGNMENT)]
            for dtype, shapes in self._shapes.items()
        }
        """In each block, by turns: how long a tensor is, and how much room is left after it."""
        self._blocks = {dtype: _shared_zeros(sum(sizes), dtype) for dtype, sizes in self._sizes.items()}
        self.views = self._cut(self._blocks)

    def put(self, tensors: Tensors) -> None:
        """Overwrite with tensors of the same names."""
        if tensors:
            torch._foreach_copy_([self.views[name] for name in tensors], list(tensors.values()))

    def taken(self) -> Tensors:
        """Return copies."""
        return self._cut({dtype: block.clone() for dtype, block in self._blocks.items()})

    def lent(self, give_back: Callable[[], object]) -> Tensors:
        """Return the tensors themselves; when the last of them dies, ``give_back`` is called, and all may change."""
        if self._blocks.keys() != {torch.float32}:
            taken = self.taken()
            give_back()
            return taken
        # A tensor over an array keeps it alive, with all that is cut from the tensor; so the array's end is theirs.
        array = self._blocks[torch.float32].numpy()[:]
        weakref.finalize(array, give_back).atexit = False
        return self._cut({torch.float32: torch.from_numpy(array)})

    def _cut(self, blocks: dict[torch.dtype, torch.Tensor]) -> Tensors:
        found: Tensors = {}
        for dtype, block in blocks.items():
            parts, shapes = block.split(self._sizes[dtype])[::2], self._shapes[dtype]
            found |= {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        return found if len(blocks) < 2 else {name: found[name] for name in self._names}


def _shared_zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros in memory that this process shares with those it forks."""
    if not size:
        return torch.zeros(0, dtype=dtype)
    try:
        memory = mmap.mmap(-1, size * dtype.itemsize)
    except OSError as error:
        raise FedatlasError(
            f"cannot share {size * dtype.itemsize:,} bytes with worker processes: {error.strerror}. Use fewer workers "
            "(--workers 1), or a smaller model.",
            code="out-of-memory",
        ) from error
    return torch.frombuffer(memory, dtype=dtype)


class WorkerPool:
    """Runs tasks on forked copies of a client runner."""

    def __init__(self, runner: ClientRunner, num_workers: int) -> None:
        parameters, buffers = runner.bench.shared()
        # A worker has at most two tasks, so with two places for each no task waits for the model of its group.
        places = 2 * num_workers if runner.bench.grouped else 1
        self._models = [(SharedTensors(parameters), SharedTensors(buffers)) for _ in range(places)]
        self._published: list[tuple[Tensors, Tensors] | None] = [None] * places
        self._users = [0] * places
        """How many tasks that workers have now read the model at each place."""
        # Two for each worker: it fills one while the other is read; small ones more, so that they need not be copied.
        size = sum(tensor.nbytes for tensor in parameters.values())
        number = 2 + min(_MOST_LENT, _LENT_BYTES // (num_workers * max(size, 1)))
        self._slots = [
            [(SharedTensors(parameters), SharedTensors(buffers)) for _ in range(number)] for _ in range(num_workers)
        ]
        self._free = [list(range(number)) for _ in range(num_workers)]
        self._given: list[deque[tuple[int, int]]] = [deque() for _ in range(num_workers)]
        """The slot and the place of the model that each of a worker's tasks uses."""
        self._sends_ahead = True
        self.refused: dict[str, int] = {}
        """Why workers could not record steps, and how many of them."""
        self._connections: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self._processes: list[multiprocessing.process.BaseProcess] = []
        try:
            for slots in self._slots:
                self._fork(runner, slots)
        except OSError as error:
            self.close()
            raise FedatlasError(
                f"cannot start {num_workers} worker processes: {error.strerror}. Use fewer (--workers), or raise the "
                "limits on open files and processes (ulimit -n, ulimit -u).",
                code="no-workers",
            ) from error
        self._busy: dict[Connection, deque[int]] = {connection: deque() for connection in self._connections}
        """The positions of the tasks that each worker has, the first it does first."""

    def _fork(self, runner: ClientRunner, slots: Sequence[tuple[SharedTensors, SharedTensors]]) -> None:
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        self._connections.append(mine)
        self._selector.register(mine, selectors.EVENT_READ, mine)
        process = context.Process(
            target=_work, args=(runner, theirs, list(self._connections), self._models, slots), daemon=True
        )
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of forking beside threads; a worker computes with one thread and takes no lock.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        finally:
            theirs.close()
        self._processes.append(process)

    def run(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the tasks' results, in the tasks' order."""
        results: list[Any] = [None] * len(tasks)
        for position, result in self.start(tasks):
            results[position] = result
        return results

    def start(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Any]]:
        """Hand out the first tasks, and return an iterator over positions and results as they arrive.

        The first error is raised when all workers are idle.
        """
        self._drain()
        waiting = sorted(range(len(tasks)), key=lambda i: (tasks[i].cost, -i))
        self._sends_ahead = True
        self._hand_out(tasks, waiting)
        return self._results(tasks, waiting)

    def _results(self, tasks: Sequence[Task], waiting: list[int]) -> Iterator[tuple[int, Any]]:
        error: BaseException | None = None
        while any(self._busy.values()):
            arrived = []
            for key, _ in self._selector.select():
                ready: Connection = key.data
                outcome = self._receive(ready)
                position = self._busy[ready].popleft()
                if isinstance(outcome, BaseException):
                    error = error or outcome
                else:
                    arrived.append((position, outcome))
            if error is None:
                self._hand_out(tasks, waiting)
                yield from arrived
        if error is not None:
            raise error

    def _drain(self) -> None:
        """Wait for tasks whose results no one asked for any more."""
        for connection, given in self._busy.items():
            while given:
                self._receive(connection)
                given.popleft()

    def close(self) -> None:
        """End the processes."""
        self._selector.close()
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=0.5)
            if process.is_alive():
                process.kill()
                process.join()
        self._connections, self._processes = [], []

    def _hand_out(self, tasks: Sequence[Task], waiting: list[int]) -> None:
        """Give every idle worker a task, and while there are many left also its next one, so that it need not wait."""
        for ahead in (0, 1) if self._sends_ahead else (0,):
            for connection, given in self._busy.items():
                if not waiting or len(given) != ahead or (ahead and len(waiting) < len(self._busy)):
                    continue
                worker = self._connections.index(connection)
                slot = self._free[worker].pop()  # now: a lent slot may be given back to the list at any moment
                message, place = self._message(tasks[waiting[-1]], slot)
                if ahead and len(message) > _MOST_AHEAD:
                    self._free[worker].append(slot)
                    self._sends_ahead = False
                    return
                self._send(connection, message)
                self._users[place] += 1
                self._given[worker].append((slot, place))
                given.append(waiting.pop())

    def _message(self, task: Task, slot: int) -> tuple[bytes, int]:
        """Return the message that hands out a task, and the place of the task's model."""
        arguments, place = list(task.arguments), 0
        if isinstance(arguments[0], Assignment):
            place = self._publish(arguments[0].shared, arguments[0].buffers)
            arguments[0] = replace(arguments[0], shared={}, buffers={})
        elif isinstance(arguments[0], dict):
            place = self._publish(arguments[0], arguments[1])
            arguments[0], arguments[1] = {}, {}
        return pickle.dumps((task.method, arguments, slot, place), protocol=pickle.HIGHEST_PROTOCOL), place

    def _send(self, connection: Connection, message: bytes) -> None:
        try:
            connection.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError) as broken:
            raise self._lost() from broken

    def _publish(self, parameters: Tensors, buffers: Tensors) -> int:
        """Put the model where the workers see it, once for all tasks that carry the same one; return the place."""
        for place, known in enumerate(self._published):
            if known is not None and known[0] is parameters and known[1] is buffers:
                return place
        place = self._users.index(min(self._users))
        self._models[place][0].put(parameters)
        self._models[place][1].put(buffers)
        self._published[place] = (parameters, buffers)
        return place

    def _receive(self, connection: Connection) -> Any:
        try:
            outcome, refusals = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise self._lost() from None
        for reason, times in refusals.items():
            self.refused[reason] = self.refused.get(reason, 0) + times
        worker = self._connections.index(connection)
        free, (slot, place) = self._free[worker], self._given[worker].popleft()
        self._users[place] -= 1
        if not (isinstance(outcome, tuple) and outcome and isinstance(outcome[0], Upload)):
            free.append(slot)
            return outcome
        upload, memory = outcome
        change, buffers = self._slots[worker][slot]
        own = buffers.taken()
        if len(free) >= 2:
            return replace(upload, change=change.lent(partial(free.append, slot)), buffers=own), memory
        free.append(slot)
        return replace(upload, change=change.taken(), buffers=own), memory

    def _lost(self) -> FedatlasError:
        codes = [p.exitcode for p in self._processes if p.exitcode is not None]
        return FedatlasError(
            f"a worker process ended without an answer (exit codes {codes}); the machine may be out of memory. "
            "The last checkpoint is intact: use fewer workers or smaller batches, and resume.",
            code="worker-lost",
        )


def _work(
    runner: ClientRunner,
    connection: Connection,
    inherited: list[Connection],
    models: Sequence[tuple[SharedTensors, SharedTensors]],
    slots: Sequence[tuple[SharedTensors, SharedTensors]],
) -> None:
    """Serve tasks until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in inherited:  # else a worker would not notice that the main process is gone
        other.close()
    torch.set_num_threads(1)
    while True:
        try:
            method, arguments, number, place = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        shared, buffers = (tensors.views for tensors in models[place])
        if isinstance(arguments[0], Assignment):
            arguments[0] = replace(arguments[0], shared=shared, buffers=buffers)
        elif isinstance(arguments[0], dict):
            arguments[0], arguments[1] = shared, buffers
        if method == "train":
            arguments.append(slots[number][0].views)
        try:
            outcome: Any = getattr(runner, method)(*arguments)
            if isinstance(outcome, tuple) and isinstance(outcome[0], Upload):
                outcome = (_into_slot(outcome[0], slots[number]), outcome[1])
            message = pickle.dumps((outcome, runner.new_refusals()), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever it is, the main process raises it
            message = pickle.dumps((error, {}))
        try:
            connection.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError):
            return


def _into_slot(upload: Upload, slot: tuple[SharedTensors, SharedTensors]) -> Upload:
    slot[0].put({name: change for name, change in upload.change.items() if change is not slot[0].views[name]})
    slot[1].put(upload.buffers)
    return replace(upload, change={}, buffers={})
