"""Damage the files of a run, and kill processes that train."""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

from campaign import (
    BAD,
    HANG,
    REFUSED,
    RIGHT,
    SECONDS,
    TRACEBACK,
    WRONG,
    Campaign,
    HangError,
    Outcomes,
    Trials,
    limited,
)

from fedatlas.errors import FedatlasError
from fedatlas.report import write_report
from fedatlas.runs import CHECKPOINTS, Run, claim_of, read_manifest

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


def _value(content: bytes, rng: random.Random) -> bytes:
    """Put something of another type or size in place of a value of JSON."""
    values = list(re.finditer(rb'(?<=: )(-?[0-9.e+-]+|"[^"]*"|true|false|null|\[[^\[\]]*\]|\{[^{}]*\})', content))
    if not values:
        return _flip(content, rng)
    value = rng.choice(values)
    return content[: value.start()] + rng.choice(ODD) + content[value.end() :]


def _key(content: bytes, rng: random.Random) -> bytes:
    """Give another name to a key of JSON."""
    keys = list(re.finditer(rb'"([a-z_]+)": ', content))
    if not keys:
        return _flip(content, rng)
    key = rng.choice(keys)
    return content[: key.start(1)] + b"zz" + content[key.end(1) :]


ODD = (b"-1", b"0", b"null", b"[]", b"{}", b'"x"', b"1e999", b"NaN", b"9" * 30, b"true", b'"\\u0000"', b'["a"]')


def forge(campaign: Campaign, count: int, trials: Trials | None = None) -> Outcomes:
    """Alter a file and the manifest's checksum of it, then report on the run and resume it.

    Whoever can do that can write any run: content that makes sense is taken, so nothing is silently wrong.
    """
    folder = campaign.folder / "tried"

    def trial(number: int) -> Outcomes:
        rng = random.Random(f"forge {number}")
        shutil.copytree(campaign.folder / "whole-3", folder)
        manifest = read_manifest(folder / CHECKPOINTS)
        name = rng.choice([*manifest.records, *manifest.files])
        harm = rng.choice((_value, _value, _key, *HARMS.values()))
        content = harm((folder / name).read_bytes(), rng)
        (folder / name).write_bytes(content)
        kind = "records" if name in manifest.records else "files"
        claims = {**getattr(manifest, kind), name: claim_of(content)}
        replace(manifest, **{kind: claims}).write(folder / CHECKPOINTS)
        reported = _report(campaign, folder, f"{name}, forged (seed {number})")
        resumed = campaign.run(folder, 5)
        shutil.rmtree(folder)
        outcome = next((bad for bad in (TRACEBACK, HANG) if bad in (reported, resumed)), None)
        return Counter([outcome or (REFUSED if REFUSED in (reported, resumed) else RIGHT)])

    return (trials or Trials()).play("a file and its checksum are altered", lambda: count, trial)


def _report(campaign: Campaign, folder: Path, what: str) -> str:
    """Write the page of a run; return how that ends."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), limited():
            write_report([Run(folder)], folder / "report.html")
            if Run(folder).rounds != Run(campaign.folder / "whole-3").rounds:
                return WRONG
    except FedatlasError:
        return REFUSED
    except HangError:
        return HANG
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
