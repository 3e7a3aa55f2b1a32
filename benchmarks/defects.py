"""Reproduce the defects that an attack on fedatlas 0.1.0 found, with that version and with this one.

    python benchmarks/defects.py --base e132658 --out docs/evidence/defects.md
    python benchmarks/defects.py --only "labels" # some of them, by words

Each reproduction uses the command line only, so that both versions run the same. A version *holds* if it does the right
thing, or refuses in one message. The small-/dev/shm and read-only cases mount file systems of their own, for which they
need to be root. The exit status is 1 if this version does not hold somewhere.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from broken import corrupt_stream
from trees import ROOT, Tree, check_out

from fedatlas.cli import print_rows
from fedatlas.runs import atomic_write

SECONDS = 120
HOLDS = "holds"
CASES: dict[str, Callable[[Place], str]] = {}
TINY = ["--set", "data.partition={ name = 'iid', num_clients = 4 }", "--set", "training.cohort=2"]
TINY += ["--set", "training.checkpoint_every=1", "--model", "mlp", "--workers", "1", "-a", "scaffold"]


@dataclass
class Place:
    """A version's source, and a folder to try it in."""

    source: Path
    folder: Path

    def run(self, *words: str, before: str = "") -> tuple[int, str]:
        """Return the status and the output of a command of fedatlas; ``before`` is shell that comes first."""
        command = [sys.executable, "-m", "fedatlas", *words]
        if before:
            command = ["unshare", "-m", "bash", "-c", before + '\nexec "$@"', "bash", *command]
        environment = {**os.environ, "PYTHONPATH": str(self.source / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return 124, "hangs"
        return done.returncode, done.stdout + done.stderr

    def data(self, name: str = "data.npz", **arrays: Any) -> str:
        """Write 48 examples of three classes, with other arrays in place of some; return the file's path."""
        labels = np.arange(48) % 3
        inputs = (np.random.default_rng(0).normal(size=(48, 4)) + labels[:, None]).astype(np.float32)
        np.savez(self.folder / name, **{"x": inputs, "y": labels, **arrays})
        return str(self.folder / name)

    def train(self, folder: str, rounds: int, *more: str, before: str = "") -> tuple[int, str]:
        """Train a tiny run, or go on with it."""
        data = self.folder / "data.npz"
        own = ["-d", str(data) if data.exists() else self.data(), "--folder", folder, "--rounds", str(rounds)]
        return self.run("train", *own, *TINY, *more, before=before)


def case(words: str) -> Callable[[Callable[[Place], str]], None]:
    """Add a reproduction under a defect's words; it returns what is wrong, or HOLDS."""

    def add(function: Callable[[Place], str]) -> None:
        CASES[words] = function

    return add


def refused(found: tuple[int, str]) -> str:
    """Return HOLDS if a command ended with one message, else how it ended."""
    status, said = found
    if status == 124:
        return "hangs"
    if "Traceback" in said:
        return f"traceback: {said.strip().splitlines()[-1].partition(': ')[0]}"
    if "Usage:" in said:
        return "the reproduction is wrong: no such option"
    return HOLDS if status == 2 else "no error" if status == 0 else f"status {status}"


def fine(found: tuple[int, str]) -> str:
    """Return HOLDS if a command ended well or with one message."""
    return HOLDS if found[0] == 0 else refused(found)


@case("1 critical: a string in a config runs commands")
def _(place: Place) -> str:
    text = '[algorithm]\nname = "subprocess:getoutput"\ncmd = "touch done"\n[training]\nrounds = 1\n'
    (place.folder / "run.toml").write_text(text)
    place.run("train", "--config", "run.toml", "-d", place.data(), "--folder", "run")
    return "the command ran" if (place.folder / "done").exists() else HOLDS


@case("1 critical: the same string in a run's folder, which is resumed")
def _(place: Place) -> str:
    place.train("run", 2)
    config = place.folder / "run" / "config.toml"
    if not config.exists():
        config = place.folder / "run" / "resolved.json"
    text = config.read_text().replace('"scaffold"', '"subprocess:getoutput"')
    config.write_text(text.replace("[algorithm]", '[algorithm]\ncmd = "touch done"'))
    place.run("train", "--config", str(config), "--folder", "run", "--resume", "--rounds", "3", "-d", place.data())
    place.run("adapt", "run", "-d", place.data())
    return "the command ran" if (place.folder / "done").exists() else HOLDS


def _harmed(name: str, harm: Callable[[bytes], bytes | None]) -> Callable[[Place], str]:
    """Return a reproduction that harms a file of a run, resumes it, and reports on it."""

    def reproduce(place: Place) -> str:
        place.train("run", 2)
        place.train("whole", 4)
        path = place.folder / "run" / name
        harmed = harm(path.read_bytes())
        path.unlink() if harmed is None else path.write_bytes(harmed)
        shutil.copytree(place.folder / "run", place.folder / "copy")
        reported = fine(place.run("report", "copy", "--to", "page.html"))
        status, said = place.train("run", 4, "--resume")
        if "Traceback" in said or status == 124:
            return f"resume: {refused((status, said))}"
        if harmed is None and path.exists() and path.read_bytes().count(0) > 100:
            return "resume: the record is filled with zeros, after all rounds were trained an error"
        files = ((place.folder / run / name).read_bytes() for run in ("run", "whole"))
        if reported != HOLDS:
            return f"report: {reported}"
        if status == 0 and len(set(files)) == 2 and name != "checkpoints/manifest.json":
            return "resume: silently wrong"
        if status == 0 and name == "checkpoints/manifest.json":
            return "resume: begins again without a word"
        return HOLDS

    return reproduce


def _digit(content: bytes) -> bytes:
    """Return a record with another accuracy in its first line."""
    place = content.index(b'"accuracy"') + 14
    return content[:place] + (b"7" if content[place : place + 1] != b"7" else b"3") + content[place + 1 :]


CASES |= {
    "5 high: a flipped digit in rounds.jsonl": _harmed("rounds.jsonl", _digit),
    "5 high: a flipped digit in clients.jsonl": _harmed("clients.jsonl", _digit),
    "6 high: a deleted record": _harmed("clients.jsonl", lambda content: None),
    "low: a flipped line in rounds.jsonl": _harmed(
        "rounds.jsonl", lambda content: content.replace(b'"accuracy"', b'"accurabz"', 1)
    ),
    "low: an extra line in rounds.jsonl": _harmed("rounds.jsonl", lambda content: content + b'{"round": 3}\n'),
    "low: a record nested 100,000 deep": _harmed("rounds.jsonl", lambda content: b"[" * 100_000 + b"\n"),
    "low: a corrupt portraits.npz in a report": _harmed("portraits.npz", corrupt_stream),
    "silent: a deleted manifest": _harmed("checkpoints/manifest.json", lambda content: None),
}


@case("8 high: a /dev/shm of 64 MB and a wide model")
def _(place: Place) -> str:
    place.data(x=np.zeros((48, 4000), np.float32))
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    return fine(place.train("run", 1, "--workers", "2", "--model", "mlp", "--set", "model.hidden=[2000]", before=mount))


@case("8 high: 30 workers and 128 open files")
def _(place: Place) -> str:
    return fine(place.train("run", 1, "--workers", "30", before="ulimit -n 128"))


@case("13 medium: labels of 2e15")
def _(place: Place) -> str:
    place.data(y=np.arange(48) % 3 * 10**15)
    return refused(place.train("run", 1))


@case("14 medium: resume on a read-only file system")
def _(place: Place) -> str:
    place.train("run", 2)
    mount = "mount -t tmpfs tmpfs /mnt && cp -r run /mnt/run && mount -o remount,ro /mnt"
    return refused(place.train("/mnt/run", 4, "--resume", before=mount))


ARRAYS: Mapping[str, Mapping[str, Any]] = {
    "scalar x": {"x": np.float32(1)},
    "scalar y": {"y": np.int64(1)},
    "scalar classes": {"classes": np.array("abc")},
    "scalar mean": {"x": np.zeros((48, 8, 8), np.uint8), "mean": np.float64(0.5), "std": np.float64(0.5)},
    "text mean": {"mean": np.array(["a"]), "std": np.array(["b"])},
    "duplicate class names": {"classes": np.array(["a", "a", "b"])},
}


def _strange(arrays: Mapping[str, Any]) -> Callable[[Place], str]:
    def reproduce(place: Place) -> str:
        place.data(**arrays)
        return refused(place.train("run", 1))

    return reproduce


CASES |= {f"low: npz with {name}": _strange(arrays) for name, arrays in ARRAYS.items()}


def _rewritten(change: Callable[[bytes], bytes]) -> Callable[[Place], str]:
    """Return a reproduction with an npz whose member x was changed, or whose bytes were."""

    def reproduce(place: Place) -> str:
        path, buffer = Path(place.data()), io.BytesIO()
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
            for member in old.namelist():
                content = old.read(member)
                new.writestr(member, change(content) if member == "x.npy" else content)
        whole = bytearray(buffer.getvalue())
        if change is _as_it_is:
            whole[60:90] = bytes(30)
        path.write_bytes(whole)
        return refused(place.train("run", 1))

    return reproduce


def _as_it_is(content: bytes) -> bytes:
    return content


CASES["low: npz with a shape bomb"] = _rewritten(lambda content: content.replace(b"(48, 4)", b"(4800000000, 4)", 1))
CASES["low: npz with a corrupt stream"] = _rewritten(_as_it_is)


@case("low: optimizer.lr = 99999999999999999999999")
def _(place: Place) -> str:
    return refused(place.train("run", 1, "--set", "optimizer.lr=99999999999999999999999"))


@case("low: an atlas with a right checksum and no names; silent: a half of width 0")
def _(place: Place) -> str:
    code = (
        "import json, sys, torch\n"
        "try:\n    from fedatlas.atlas.storage import write_vectors\n"
        "except ImportError:\n    from fedatlas.atlas import storage; write_vectors = storage.write_vectors\n"
        "width = int(sys.argv[1])\n"
        "words = {'names': ['a', 'b'], 'halves': ['feature'], 'provenance': {}, 'domains': None}\n"
        "width or words.pop('nothing', 0)\n"
        "width and words.pop('names')\n"
        "rows = {'half/feature': torch.zeros(2, width), 'sizes': torch.ones(2, dtype=torch.int64)}\n"
        "write_vectors(__import__('pathlib').Path('a.safetensors'), rows, words)\n"
        "import fedatlas\nfrom fedatlas.errors import FedatlasError\n"
        "try:\n    print('loaded', fedatlas.Atlas.load('a.safetensors').names)\n"
        "except FedatlasError as error:\n    print('refused', error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(place.source / "src")}
    found = []
    for width in ("3", "0"):
        command = [sys.executable, "-c", code, width]
        done = subprocess.run(command, cwd=place.folder, env=environment, capture_output=True, text=True)
        said = (done.stdout + done.stderr).strip().splitlines()
        found.append(
            HOLDS if done.stdout.startswith("refused") else said[-1].partition(": ")[0] if said else "nothing said"
        )
    return HOLDS if set(found) == {HOLDS} else "; ".join(one for one in found if one != HOLDS)


def reproduce(tree: Tree, words: str) -> str:
    """Return what a version does under a reproduction."""
    with tempfile.TemporaryDirectory() as folder:
        return CASES[words](Place(tree.folder, Path(folder)))


def main() -> None:
    """Reproduce, print the table, and write the page where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default="e132658", help="the commit to compare with; default 0.1.0")
    parser.add_argument("--only", default="", help="words of the reproductions to run")
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    parser.add_argument("--keep", type=Path, help="a file that keeps what is done")
    given = parser.parse_args()
    kept = json.loads(given.keep.read_text()) if given.keep is not None and given.keep.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        trees = {"0.1.0": check_out(given.base, Path(scratch) / "base"), "now": Tree("now", ROOT)}
        for words in (words for words in CASES if given.only in words):
            for name, tree in trees.items():
                key = f"{words}/{name}"
                if key not in kept:
                    kept[key] = reproduce(tree, words)
                    print(f"{key}: {kept[key]}", flush=True)
                    if given.keep is not None:
                        given.keep.write_text(json.dumps(kept, indent=1))
    rows = [
        {"defect": words, **{name: kept[f"{words}/{name}"] for name in trees}} for words in CASES if given.only in words
    ]
    print_rows(rows, "what each version does")
    if given.out is not None:
        lines = ["| defect | 0.1.0 | now |", "|---|---|---|", *("| " + " | ".join(row.values()) + " |" for row in rows)]
        atomic_write(given.out, (PAGE.format(base=given.base) + "\n".join(lines) + "\n").encode())
    sys.exit(any(row["now"] != HOLDS for row in rows))


PAGE = """# Defects of 0.1.0, and this version

`python benchmarks/defects.py --base {base}`: what an attack on 0.1.0 found, reproduced by the command line with that
version and with this one. A version *holds* if it does the right thing, or refuses in one message. The numbers are
those of the attack's own list. That the tests of all defects can fail, those over a network too, is on [another
page](undone.md).

"""


if __name__ == "__main__":
    main()
