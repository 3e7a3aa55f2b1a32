"""Measure what saving costs in a run of tiny rounds, and what a kill costs.

    python benchmarks/saving.py                            # 2,000 rounds of SCAFFOLD, then 100 kills
    python benchmarks/saving.py --rounds 200 --kills 2     # a small one

Saving is timed on both sides: in the loop over rounds, and in the thread beside it. After a kill, what is lost is the
time from the last round that a resumed run has to the kill. The run states before how much that can be; the exit status
is 1 if a kill cost more, or if saving took more than its share.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from growth import federation

import fedatlas
from fedatlas.runs import CHECKPOINTS, Run, read_manifest
from fedatlas.training import SHARE, Saver, Silent, TrainingLoop

CLIENTS, COHORT = 20, 2
JITTER = 0.25
"""Seconds between the system's end of a process and our knowledge of it."""


class Log(Silent):
    """Writes the time of each round, and how many seconds of work a kill can cost at that moment."""

    def __init__(self, path: Path) -> None:
        self.file, self.saver = path.open("a", buffering=1), Saver(every=None, beside=True)

    def advance(self, round: int, metrics: object) -> None:
        """Write a line."""
        self.file.write(f"{round} {time.time():.4f} {self.saver.most_to_lose:.4f}\n")


def play(folder: Path, rounds: int) -> Run:
    """Train, or go on; the rounds' times go to a file beside the folder."""
    torch.set_num_threads(1)
    log, make = Log(folder.with_suffix(".log")), TrainingLoop.__init__

    def with_log(loop: TrainingLoop, *arguments: Any, **options: Any) -> None:
        make(loop, *arguments, **options)
        log.saver = loop.saver

    TrainingLoop.__init__ = with_log  # type: ignore[method-assign]
    settings = fedatlas.Settings(rounds=rounds, cohort=COHORT, steps=1, batch_size=10, model="mlp", workers=1)
    algorithm = fedatlas.algorithms.scaffold()
    return fedatlas.train(federation(CLIENTS), algorithm, settings, folder=folder, resume=True, progress=log)


def measure(folder: Path, rounds: int) -> float:
    """Train once, print what saving took, and return its share of the time."""
    began = time.monotonic()
    run = play(folder, rounds)
    whole = time.monotonic() - began
    inside = sum(line["stages"].get("checkpoints", 0.0) for line in run.timings)
    beside = sum(line.get("saved_beside", 0.0) for line in run.timings)
    median = sorted(line["train"] + line["evaluate"] for line in run.timings)[rounds // 2]
    print(f"{rounds} rounds in {whole:.1f} s, {1000 * median:.1f} ms each (median)")
    print(f"saving: {inside:.2f} s in the rounds and {beside:.2f} s beside them, {(inside + beside) / whole:.1%}")
    return (inside + beside) / whole


def lose(folder: Path, rounds: int, kills: int) -> bool:
    """Kill the run again and again; print what that cost, and return whether it was no more than stated."""
    rng, lost, kept = random.Random(0), [], True
    for number in range(kills):
        process = subprocess.Popen([sys.executable, __file__, "--folder", str(folder), "--rounds", str(rounds)])
        log = folder.with_suffix(".log")
        before = len(log.read_text().splitlines()) if log.exists() else 0
        size = log.stat().st_size if log.exists() else 0
        while process.poll() is None and (not log.exists() or log.stat().st_size == size):
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 4.0))
        process.kill()
        killed = time.time()
        if process.wait() == 0:
            print(f"all rounds were played before kill {number + 1}")
            break
        lines = [line.split() for line in log.read_text().splitlines()[before:]]
        times = [(int(line[0]), float(line[1]), float(line[2])) for line in lines if len(line) == 3]
        saved = read_manifest(folder / CHECKPOINTS).round
        # If this process saved nothing, all that it did is lost.
        since = max((at for round, at, _ in times if round == saved), default=times[0][1])
        longest = max((b[1] - a[1] for a, b in itertools.pairwise(times)), default=0.0)
        stated = times[-1][2] + longest + JITTER
        lost.append(killed - since)
        if killed - since > stated:
            kept = False
            print(f"kill {number + 1} cost {killed - since:.2f} s, {stated:.2f} s were stated")
    lost.sort()
    print(f"{len(lost)} kills: a median of {lost[len(lost) // 2]:.2f} s of work lost, {lost[-1]:.2f} s at most")
    return kept


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of the run that is timed; default 2000")
    parser.add_argument("--kills", type=int, default=100, help="how often another run is killed; default 100")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is not None:
        play(given.folder, given.rounds)
        return
    with tempfile.TemporaryDirectory() as scratch:
        share = measure(Path(scratch) / "timed", given.rounds)
        kept = lose(Path(scratch) / "killed", 1_000_000, given.kills) if given.kills else True
        print(f"load average {os.getloadavg()[0]:.1f}")
    sys.exit(share > SHARE or not kept)


if __name__ == "__main__":
    main()
