"""Let the n-th write, fsync, rename or allocation of a short run fail, and go on without faults."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from campaign import BAD, Campaign, Outcomes, Trials
from torch.utils._python_dispatch import TorchDispatchMode

from fedatlas.runs import Disk


class Failing:
    """Lets the n-th call of one of the disk's methods fail, and counts the calls."""

    def __init__(self, method: str, at: int | None) -> None:
        self.method, self.at, self.calls = method, at, 0
        self._original: Callable[..., None] = getattr(Disk, method)

    def __enter__(self) -> Failing:
        def call(disk: Disk, *arguments: Any) -> None:
            self.calls += 1
            if self.calls == self.at:
                if self.method == "write":
                    file, content = arguments
                    _half(file, content)
                raise OSError(28, "No space left on device")
            self._original(disk, *arguments)

        setattr(Disk, self.method, call)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(Disk, self.method, self._original)


def _half(file: IO[bytes], content: bytes) -> None:
    """Write what still has room."""
    file.write(content[: len(content) // 2])
    file.flush()


class FailingMemory(TorchDispatchMode):
    """Lets the n-th operation on tensors fail as if there were no memory for its result."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.at, self.calls = at, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation, and do it unless it is the one that fails."""
        self.calls += 1
        if self.calls == self.at:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 9 bytes")
        return func(*args, **(kwargs or {}))


class Fault(NamedTuple):
    """How something fails."""

    begin: Callable[[int | None], Any]
    """Returns what lets the n-th call fail, and counts calls."""
    check: bool = True
    """Whether the data are checked after the training, as `fedatlas train` does."""
    step: int = 1
    """Every so many calls fail where all are asked for."""


FAULTS = {
    "a write": Fault(lambda at: Failing("write", at)),
    "an fsync": Fault(lambda at: Failing("sync", at)),
    "a rename": Fault(lambda at: Failing("replace", at)),
    "an allocation": Fault(FailingMemory, check=False),
    # The check takes ten times as many operations as the training, and writes nothing of it.
    "an allocation of the check": Fault(FailingMemory, step=101),
}


def fail_each(campaign: Campaign, fault: str, every: int, trials: Trials | None = None, row: str = "") -> Outcomes:
    """Let the n-th call fail, for each n or for every so many; then go on without faults."""
    own = FAULTS[fault]
    step = own.step * every

    def count() -> int:
        with own.begin(None) as counter:
            assert campaign.run(campaign.folder / "counted", 5, check=own.check) is None
        shutil.rmtree(campaign.folder / "counted")
        return len(range(0, counter.calls, step))

    def trial(number: int) -> Outcomes:
        folder, at = campaign.folder / "tried", 1 + number * step
        with own.begin(at):
            first = campaign.run(folder, 5, check=own.check)
        outcome = first if first in BAD else campaign.resumed(folder, f"{fault} {at}")
        shutil.rmtree(folder, ignore_errors=True)
        return Counter([outcome])

    return (trials or Trials()).play(row or fault, count, trial)
