"""Let files, memory and processes fail under a short run, and count how it ends.

    python benchmarks/faults.py --out docs/evidence/faults.md     # all of it, about half an hour
    python benchmarks/faults.py --every 20 --damages 20 --kills 2 # a small one
    python benchmarks/faults.py --keep FILE --minutes 10          # a piece; the same command again goes on

After every fault the run is resumed without faults. It must end with the bits of a run that nothing happened to, or be
refused in one message. A traceback, another result or a hang is a defect; the exit status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from fedatlas.cli.app import app
from fedatlas.cli.terminal import print_rows
from fedatlas.errors import RunFolderError
from fedatlas.report import write_report
from fedatlas.runs.files import Disk, atomic_write
from fedatlas.runs.run import Run
from fedatlas.training import saving

SECONDS = 300
"""A command that takes longer hangs: it takes less than a second."""
RIGHT, REFUSED, TRACEBACK, WRONG, HANG = "right bits", "one message", "traceback", "silently wrong", "hang"
BAD = (TRACEBACK, WRONG, HANG)
KILLABLE = Path(__file__).parents[1] / "tests" / "killable.py"
Outcomes = Counter[str]


class Trials:
    """How trials ended, by row of the table; a file keeps them, so that a long campaign can be played in pieces."""

    def __init__(self, file: Path | None = None, minutes: float | None = None) -> None:
        self.file, self.rows = file, json.loads(file.read_text()) if file is not None and file.exists() else {}
        self.until = None if minutes is None else time.monotonic() + 60 * minutes

    def play(self, row: str, count: Callable[[], int], trial: Callable[[int], Outcomes]) -> Outcomes:
        """Play the trials of a row that are not kept yet, and return how all ended."""
        if row not in self.rows:
            self.rows[row] = {"trials": count(), "played": 0, "outcomes": {}}
        kept = self.rows[row]
        for number in range(kept["played"], kept["trials"]):
            if self.until is not None and time.monotonic() > self.until:
                raise PausedError(f"{number} of {kept['trials']} trials of {row}")
            kept["outcomes"] = dict(Counter(kept["outcomes"]) + trial(number))
            kept["played"] = number + 1
            if self.file is not None:
                atomic_write(self.file, json.dumps(self.rows, indent=1).encode())
        return Counter(kept["outcomes"])


class PausedError(Exception):
    """The time for this piece of the campaign is over."""


class HangError(BaseException):
    """A command took too long; no handler catches it."""


@dataclass
class Campaign:
    """A short run of SCAFFOLD, what it ends with if nothing happens, and a folder to try faults in."""

    folder: Path
    settings: tuple[str, ...] = ("training.checkpoint_every=1",)
    examples: list[str] = field(default_factory=list)
    """What went wrong, in words."""

    def __post_init__(self) -> None:
        rng, data = np.random.default_rng(0), self.folder / "data.npz"
        self.folder.mkdir(parents=True, exist_ok=True)
        labels = np.arange(48) % 3
        np.savez(data, x=(rng.normal(size=(48, 4)) + labels[:, None]).astype(np.float32), y=labels)
        own = ["data.partition={ name = 'iid', num_clients = 4 }", "training.cohort=2", *self.settings]
        self.train = ["train", "-d", str(data), "-a", "scaffold", "--model", "linear", "--workers", "1"]
        self.train += [word for setting in own for word in ("--set", setting)]
        for rounds in (3, 5):
            assert self.run(self.folder / f"whole-{rounds}", rounds) is None
        self.reference = self.result(self.folder / "whole-5")

    def run(self, folder: Path, rounds: int, *more: str) -> str | None:
        """Train; return None if it worked, else the outcome."""
        command = [*self.train, "--folder", str(folder), "--rounds", str(rounds), "--resume", *more]
        with _limited(), mock.patch.object(saving, "LEAST_SECONDS", 0.0):
            try:
                result = CliRunner().invoke(app, command)
            except HangError:
                return HANG
        return self._outcome(result.exit_code, result.exception, result.output, command)

    def _outcome(self, status: int, error: BaseException | None, said: str, command: list[str]) -> str | None:
        if status == 0:
            return None
        if isinstance(error, HangError):
            return HANG
        if status == 2 and isinstance(error, SystemExit) and "error:" in said and "Traceback" not in said:
            return REFUSED
        self.examples.append(f"{error!r} of {' '.join(command[-5:])}: {said[-300:]}")
        return TRACEBACK

    def result(self, folder: Path) -> tuple[Any, ...]:
        """Return all that a run must end with."""
        run = Run(folder)
        found = run.checkpoint()
        tensors = {f"shared/{name}": tensor for name, tensor in found.state.shared.items()}
        for client, memory in found.clients.items():
            for part, own in memory.items():
                tensors |= {f"{client}/{part}/{name}": tensor for name, tensor in own.items()}
        records = tuple((folder / name).read_bytes() for name in ("rounds.jsonl", "clients.jsonl"))
        return (*records, {name: tensor.numpy().tobytes() for name, tensor in sorted(tensors.items())})

    def resumed(self, folder: Path, what: str) -> str:
        """Go on without faults, and return how that ends."""
        if (outcome := self.run(folder, 5)) is not None:
            return outcome
        if self.result(folder) == self.reference:
            return RIGHT
        self.examples.append(f"other results after {what}")
        return WRONG


@contextmanager
def _limited() -> Iterator[None]:
    """Let a block that takes too long end with HangError."""

    def end(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


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


FAULTS: dict[str, Callable[[int | None], Any]] = {
    "a write": lambda at: Failing("write", at),
    "an fsync": lambda at: Failing("sync", at),
    "a rename": lambda at: Failing("replace", at),
    "an allocation": FailingMemory,
}


def fail_each(campaign: Campaign, fault: str, every: int, trials: Trials | None = None, row: str = "") -> Outcomes:
    """Let the n-th call fail, for each n or for every so many; then go on without faults."""

    def count() -> int:
        with FAULTS[fault](None) as counter:
            assert campaign.run(campaign.folder / "counted", 5) is None
        shutil.rmtree(campaign.folder / "counted")
        return len(range(0, counter.calls, every))

    def trial(number: int) -> Outcomes:
        folder, at = campaign.folder / "tried", 1 + number * every
        with FAULTS[fault](at):
            first = campaign.run(folder, 5)
        outcome = first if first in BAD else campaign.resumed(folder, f"{fault} {at}")
        shutil.rmtree(folder, ignore_errors=True)
        return Counter([outcome])

    return (trials or Trials()).play(row or fault, count, trial)


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 4))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _digit(content: bytes, rng: random.Random) -> bytes:
    places = [i for i, byte in enumerate(content) if 48 <= byte < 58]
    if not places:
        return _flip(content, rng)
    place = rng.choice(places)
    return content[:place] + str((content[place] - 47) % 10).encode() + content[place + 1 :]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    return b"".join([*lines[: place + 1], *lines[place:]])


HARMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped bits": _flip,
    "another digit": _digit,
    "cut short": lambda content, rng: content[: rng.randrange(len(content))],
    "longer": lambda content, rng: content + rng.randbytes(rng.randrange(1, 200)),
    "zeros": lambda content, rng: bytes(len(content)),
    "a line twice": _repeat,
    "other content": lambda content, rng: rng.randbytes(rng.randrange(1, 500)),
}


def damage(campaign: Campaign, count: int, trials: Trials | None = None) -> Outcomes:
    """Harm a random file of a run that ended after three of five rounds, then report on it and resume it."""
    folder = campaign.folder / "tried"

    def trial(number: int) -> Outcomes:
        rng = random.Random(number)
        shutil.copytree(campaign.folder / "whole-3", folder)
        path = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size))
        harm = rng.choice((*HARMS, "deleted"))
        if harm == "deleted":
            path.unlink()
        else:
            path.write_bytes(HARMS[harm](path.read_bytes(), rng))
        what = f"{path.name}: {harm} (seed {number})"
        reported = _report(campaign, folder, what)
        resumed = campaign.resumed(folder, what)
        if resumed == TRACEBACK:
            campaign.examples.append(what)
        shutil.rmtree(folder)
        return Counter([next((bad for bad in BAD if bad in (reported, resumed)), resumed)])

    return (trials or Trials()).play("a file of the run is damaged", lambda: count, trial)


def _report(campaign: Campaign, folder: Path, what: str) -> str:
    """Write the page of a run; return how that ends."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            write_report([Run(folder)], folder / "report.html")
            if Run(folder).rounds != Run(campaign.folder / "whole-3").rounds:
                return WRONG
    except RunFolderError:
        return REFUSED
    except Exception as error:
        campaign.examples.append(f"{error!r} in the report of {what}")
        return TRACEBACK
    return RIGHT


def kill(campaign: Campaign, count: int, each: int = 10, trials: Trials | None = None) -> Outcomes:
    """Kill processes that train, at random moments and so many times a run, and go on with them to the end."""
    whole = campaign.folder / "unkilled"

    def trial(number: int) -> Outcomes:
        if not whole.exists():
            _killable(whole).wait()
        rng, folder, hits = random.Random(number), campaign.folder / "killed", 0
        while hits < min(each, count - number * each):
            process = _killable(folder)
            _wait_for_more(folder / "rounds.jsonl", process)
            time.sleep(rng.uniform(0, 0.1))
            process.kill()
            if process.wait() == 0:  # it was done before: again from the start
                shutil.rmtree(folder)
                continue
            hits += 1
        last = _killable(folder)
        try:
            status = last.wait(SECONDS)
            outcome = TRACEBACK if status else RIGHT if campaign.result(folder) == campaign.result(whole) else WRONG
        except subprocess.TimeoutExpired:
            last.kill()
            outcome = HANG
        shutil.rmtree(folder)
        return Counter({outcome: hits})

    return (trials or Trials()).play("the process is killed", lambda: -(-count // each), trial)


def _killable(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(KILLABLE), str(folder), "1"], env=environment)


def _wait_for_more(record: Path, process: subprocess.Popen[bytes]) -> None:
    before = record.stat().st_size if record.exists() else 0
    while process.poll() is None and not (record.exists() and record.stat().st_size != before):
        time.sleep(0.002)


def table(found: dict[str, Outcomes]) -> list[dict[str, str]]:
    """Return one row for each kind of fault."""
    kinds = (RIGHT, REFUSED, *BAD)
    return [
        {"fault": name, "times": f"{sum(own.values()):,}", **{kind: f"{own[kind]:,}" for kind in kinds}}
        for name, own in found.items()
    ]


def run_all(
    folder: Path, *, every: int, damages: int, kills: int, trials: Trials, examples: list[str]
) -> dict[str, Outcomes]:
    """Let everything fail; return the outcomes by kind of fault. What goes wrong is added to the examples."""
    saved = Campaign(folder / "saved", examples=examples)
    beside = Campaign(folder / "beside", settings=(), examples=examples)
    for fault in FAULTS:
        fail_each(saved, fault, every, trials, f"{fault} fails, saved every round")
        fail_each(beside, fault, every, trials, f"{fault} fails, saved beside")
    damage(saved, damages, trials)
    kill(saved, kills, trials=trials)
    return {row: Counter(kept["outcomes"]) for row, kept in trials.rows.items()}


def main() -> None:
    """Let everything fail, print the table, and write the page where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="let every n-th call fail; default 1, each one")
    parser.add_argument("--damages", type=int, default=500, help="how many damaged folders; default 500")
    parser.add_argument("--kills", type=int, default=100, help="how many kills; default 100")
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    parser.add_argument("--keep", type=Path, help="a file that keeps how trials ended; it is gone on from")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes, with the exit status 3")
    given = parser.parse_args()
    torch.set_num_threads(1)
    began, trials, examples = time.monotonic(), Trials(given.keep, given.minutes), list[str]()
    sizes = {"every": given.every, "damages": given.damages, "kills": given.kills}
    try:
        with tempfile.TemporaryDirectory() as scratch:
            found = run_all(Path(scratch), **sizes, trials=trials, examples=examples)
    except PausedError as pause:
        print(f"so far {pause}; the same command again goes on")
        sys.exit(3)
    finally:
        print(*examples, sep="\n", file=sys.stderr)
    rows = table(found)
    print_rows(rows, f"{time.monotonic() - began:.0f} s")
    if given.out is not None:
        write_page(rows, given)
    sys.exit(any(own[bad] for own in found.values() for bad in BAD))


def write_page(rows: list[dict[str, str]], given: argparse.Namespace) -> None:
    """Write the table as Markdown, with the command."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" + "|---:" * (len(rows[0]) - 1) + "|"]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    text = PAGE.format(command=f"--every {given.every} --damages {given.damages} --kills {given.kills}")
    atomic_write(given.out, (text + "\n".join(lines) + "\n").encode())


PAGE = """# What happens when something fails

`python benchmarks/faults.py {command}`, two CPU cores. `make test-faults` runs the same as tests, with mutated configs
and data files and with malicious nodes and servers ([trust](../trust.md)).

A run of SCAFFOLD with four clients and five rounds. The n-th write (half of it is written), fsync or rename fails, once
for each n; so does the n-th operation on tensors, as if there were no memory for its result. *Saved every round* is
`checkpoint_every = 1`; *saved beside* saves by the clock in a thread, without a pause. Then the run is resumed without
faults. A random file of a run's folder is damaged (bits, digits, length, zeros, lines, other content, deleted); then
its report is written and the run is resumed. A process that trains is killed at random moments, ten times a run.

*Right bits*: the run ends with the records, the model and the clients' memory of a run to which nothing happened. *One
message*: it is refused, with the file's name where a file is damaged. The other three columns are defects.

"""


if __name__ == "__main__":
    main()
