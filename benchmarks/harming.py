"""Damage the files of a run, and kill processes that train."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from campaign import BAD, HANG, REFUSED, RIGHT, SECONDS, TRACEBACK, WRONG, Campaign, Outcomes, Trials

from fedatlas.errors import RunFolderError
from fedatlas.report import write_report
from fedatlas.runs.run import Run

KILLABLE = Path(__file__).parents[1] / "tests" / "killable.py"


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
