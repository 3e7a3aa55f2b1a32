"""Train the same runs with two versions of fedatlas and compare all they leave, byte for byte, and what they say.

    python benchmarks/same_bits.py --base COMMIT               # every algorithm, engine, resume, adaptation, atlas
    python benchmarks/same_bits.py --base COMMIT --only atlas  # the cases whose name holds a word
    python benchmarks/same_bits.py --base COMMIT --jobs 9      # so many cases at once: two minutes on 16 cores
    python benchmarks/same_bits.py --base HEAD --quick         # two algorithms

Both versions are driven by their command line. Shared parameters, buffers, what clients remember, records, settings,
adapted networks, atlases, what checks and tables print and what pages hold are compared; what only the new version
writes is listed. The exit status is 0 if all is
equal but for changes that were wanted (``WANTED``), and 1 if not.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from run_differences import Comparison, compare_folders
from trees import ROOT, Tree, check_out

SMALL = """
[data]
source = "digits"
partition = { name = "domain-imbalance", factor = 2, quota = 200 }
test = "domain"
held_out = 2
[model]
name = "cnn"
width = 4
norm = "batch"
[optimizer]
name = "sgd"
lr = 0.02
[training]
rounds = 4
cohort = 4
batch_size = 4
evaluate_every = 2
checkpoint_every = 2
"""
"""Small, but with enough steps of one size that the graph engine records one on a CPU (it takes fifty)."""
PROMPTED = """
[data]
source = "digits"
partition = { name = "domain-imbalance", factor = 2, quota = 20 }
test = "client"
[model]
name = "prompted_vit"
[optimizer]
name = "adam"
lr = 1e-2
decoupled = true
[training]
rounds = 2
batch_size = 4
evaluate_every = 2
"""
OTHER = """
[data]
source = "digits"
partition = { name = "dirichlet", num_clients = 8, alpha = 0.5 }
test = "client"
held_out = 2
[model]
name = "cnn"
width = 4
norm = "group"
[optimizer]
name = "adam"
lr = 1e-3
schedule = "cosine"
keep_state = true
[training]
rounds = 4
steps = 3
cohort = 3
batch_size = 8
evaluate_every = 2
precision = "bfloat16"
augment = { padding = 2, rotate = 0.3, erase = 0.3 }
equal_weights = true
test_own = true
memory_limit = 0.0001
"""
PERMUTED = """
[data]
source = "digits"
domains = ["handwritten"]
partition = { name = "permuted-labels", num_clients = 12 }
held_out = 2
[model]
name = "mlp"
[optimizer]
name = "sgd"
lr = 0.05
[training]
rounds = 8
batch_size = 16
evaluate_every = 4
"""
TURNED = PERMUTED.replace("permuted-labels", "rotated")
CONFIGS = {"small": SMALL, "prompted": PROMPTED, "other": OTHER, "permuted": PERMUTED, "turned": TURNED}
PLACES = [(engine, workers) for engine in ("loop", "graph") for workers in (1, 2)]
ATLASES = {
    "client2vec": ["--source", "client2vec", "--epochs", "2"],
    "federated": ["--source", "client2vec", "--strategy", "federated", "--epochs", "2"],
    "feature-average": ["--source", "feature-average"],
    "class-prototypes": ["--source", "class-prototypes"],
    "label-histogram": ["--source", "label-histogram"],
}


NEED_AN_ATLAS = ("client2vec", "grouped")
"""Pages of algorithms that ``compare all`` does not train by themselves."""


@dataclass(frozen=True)
class Wanted:
    """A difference that was wanted, between versions before a commit and those from it on."""

    difference: str
    """A pattern that the whole line about the difference matches."""
    commit: str
    why: str

    def is_expected(self, base: str) -> bool:
        """Return whether a version is older than the change."""
        asked = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", self.commit, base]
        return subprocess.run(asked).returncode == 1


WANTED = (
    Wanted(r".*/portraits\.npz differs", "71bc85e", "a page shows other examples of each client"),
    Wanted(
        r".*/resolved\.json\.algorithm\.optimizer\.part is 'SGD', not 'PlainSGD'",
        "71bc85e",
        "SCAFFOLD names its optimizer SGD and refuses momentum itself",
    ),
    Wanted(
        r"(multi_)?krum-\d+/.*",
        "f937ab4",
        "Krum and Multi-Krum judge running statistics like changes",
    ),
    Wanted(
        r"fed\w+-networks/.*",
        "8b6fff5",
        "the better of before and after tuning is saved",
    ),
    Wanted(r"heart\.json\.(said\.)?status is 4, not 2", "9f8e445", "a suspect has a status of its own"),
    Wanted(r"[^ ]*\.(html|txt)[.\[ ].*", "e5c5574", "pages and tables say more"),
)


@dataclass(frozen=True)
class Command:
    """One call of the command line; FOLDER and the names of configs stand for paths."""

    arguments: tuple[str, ...]
    killed_after: int | None = None
    """Kill it when so many rounds are recorded in FOLDER/run."""
    by_base: bool = False
    """Let the base do it on both sides, so that the new version goes on with what the base left."""
    said_in: str | None = None
    """Keep what it prints, with its exit status, in this file of FOLDER."""


@dataclass(frozen=True)
class Case:
    """Calls that leave files in one folder."""

    name: str
    commands: tuple[Command, ...]


def command(
    text: str, *more: str, killed_after: int | None = None, by_base: bool = False, said_in: str | None = None
) -> Command:
    """Return a call from words that are separated by spaces."""
    return Command((*text.split(), *more), killed_after, by_base, said_in)


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for engine, workers in PLACES:
        run = command("compare all --config SMALL --folder FOLDER", *_place(engine, workers))
        yield Case(f"all algorithms, {engine}, workers: {workers}", (run,))
    # Frozen parts are computed once, and on a CPU no step over them can be recorded: auto is not graph here.
    for engine, workers in ((engine.replace("graph", "auto"), workers) for engine, workers in PLACES):
        run = command("compare fedavg fedgcr fedgc --config PROMPTED --folder FOLDER", *_place(engine, workers))
        yield Case(f"prompts, {engine}, workers: {workers}", (run,))
    stopped = "compare all --config SMALL --folder FOLDER --workers 2"
    yield Case("all algorithms, resumed", (command(f"{stopped} --rounds 2"), command(f"{stopped} --resume")))
    begun = command(f"{stopped} --rounds 2", by_base=True)
    yield Case("all algorithms, begun by the base and resumed", (begun, command(f"{stopped} --resume")))
    train = (
        "train --config SMALL --set training.checkpoint_every=1 --rounds 30 --algorithm scaffold --folder FOLDER/run"
    )
    yield Case("killed and resumed", (command(train, killed_after=5), command(f"{train} --resume")))
    yield Case("stacked clients (vmap)", (*_vmap(),))
    yield Case("other settings", (command("compare fedavg fedprox fedper --config OTHER --folder FOLDER"),))
    yield Case("adaptation", (*_adaptation(),))
    yield Case("atlas", (*_atlases(),))
    yield Case("checks, and their pages", (*_checks(),))
    for name in ("permuted", "turned"):
        yield Case(f"groups, their pages and newcomers, {name}", (*_groups(name),))
    # Relative to the case's folder: a run's config keeps the path as it was given.
    maps = command("map --config SMALL --to atlas.safetensors", *ATLASES["client2vec"])
    # The weights are set: their defaults differ from those of 0.1.0.
    weights = "--set atlas.lambda_o=1 --set atlas.lambda_d=1"
    with_atlas = f"train --config SMALL --atlas atlas.safetensors --use sample,aggregate,train {weights}"
    trained = [
        command(f"{with_atlas} --folder FOLDER/{engine}-{workers}", *_place(engine, workers))
        for engine, workers in PLACES
    ]
    yield Case("atlas in training (client2vec)", (maps, *trained))


def quick_cases() -> Iterator[Case]:
    """Yield what takes seconds: two algorithms, one of which remembers something."""
    yield Case("quick", (command("compare fedavg scaffold --config SMALL --rounds 2 --workers 1 --folder FOLDER"),))


def _place(engine: str, workers: int) -> list[str]:
    return ["--engine", engine, "--workers", str(workers)]


def _vmap() -> Iterator[Command]:
    for norm in ("group", "batch"):
        options = f"--engine vmap --set model.norm={norm} --folder FOLDER/{norm}"
        yield command(f"compare fedavg fedprox --config SMALL {options}")


def _adaptation() -> Iterator[Command]:
    yield command("compare fedpce fedbn fedper --config SMALL --folder FOLDER --workers 1")
    for name in ("fedpce", "fedbn", "fedper"):
        yield command(f"adapt FOLDER/{name}-0 --rounds 2 --steps 5 --save FOLDER/{name}-networks")


def _atlases() -> Iterator[Command]:
    for name, options in ATLASES.items():
        yield command(f"map --config SMALL --to FOLDER/{name}.safetensors", *options)
    yield command("train --config SMALL --algorithm fedpce --folder FOLDER/run --workers 1")
    yield command("map --run FOLDER/run --to FOLDER/own.safetensors")


def _checks() -> Iterator[Command]:
    # Relative to the case's folder, as what they print names paths as they were given.
    for name, clients in {
        "heart": "--data heart",
        "permuted": "--config PERMUTED",
        "turned": "--config TURNED",
        "domains": "--config SMALL",
    }.items():
        yield command(f"check {clients} --html {name}.html --share", said_in=f"{name}.txt")
        yield command(f"check {clients} --json", said_in=f"{name}.json")


def _groups(name: str) -> Iterator[Command]:
    config = f"--config {name.upper()}"
    yield command(f"train {config} --use group --workers 1 --folder grouped")
    yield command(f"compare fedavg ifca {config} --workers 1 --seeds 0,1 --folder others")
    yield command("adapt grouped --start group --save newcomers", said_in="adapt.txt")
    yield command("report grouped --share")


def perform(case: Case, tree: Tree, folder: Path, configs: Path, base: Tree) -> str | None:
    """Make a case's files with one version; return what went wrong, if anything did."""
    folder.mkdir(parents=True)
    paths = {"FOLDER": str(folder), **{name.upper(): str(configs / f"{name}.toml") for name in CONFIGS}}
    for one in case.commands:
        words = [_filled(word, paths) for word in one.arguments]
        process = subprocess.Popen(
            [sys.executable, "-m", "fedatlas", *words],
            env=(base if one.by_base else tree).environment(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if one.said_in else subprocess.STDOUT,
            text=True,
        )
        if one.killed_after is not None and not _kill(process, folder / "run" / "rounds.jsonl", one.killed_after):
            return f"fedatlas {' '.join(words)} ended before it could be killed"
        said, remarks = process.communicate()
        if one.said_in and "Traceback" not in remarks:
            (folder / one.said_in).write_text(_kept(said, process.returncode, one.said_in))
        elif process.returncode not in (0, -signal.SIGKILL if one.killed_after is not None else 0):
            return f"fedatlas {' '.join(words)} failed:\n{(said + (remarks or ''))[-3000:]}"
    return None


def _kept(said: str, status: int, name: str) -> str:
    """Return what a command printed, as a text or as JSON, with its exit status."""
    if name.endswith(".json"):
        return json.dumps({"said": json.loads(said), "status": status})
    return f"{said}exit status {status}\n"


def _filled(word: str, paths: dict[str, str]) -> str:
    first, slash, rest = word.partition("/")
    return paths.get(first, first) + slash + rest


def _kill(process: subprocess.Popen[str], records: Path, rounds: int) -> bool:
    """Kill a process when so many rounds are recorded; return whether it was still running."""
    while process.poll() is None:
        if records.exists() and records.read_bytes().count(b"\n") >= rounds:
            process.kill()
            return process.wait() == -signal.SIGKILL
        time.sleep(0.005)
    return False


def set_apart(differences: Sequence[str], wanted: Sequence[Wanted]) -> tuple[list[str], Counter[str]]:
    """Return the differences that nobody wanted, and how many there are of each wanted change."""
    left, counted = [], Counter[str]()
    for line in differences:
        why = next((one.why for one in wanted if re.fullmatch(one.difference, line)), None)
        if why is None:
            left.append(line)
        else:
            counted[why] += 1
    return left, counted


def _compare_case(
    case: Case, trees: tuple[Tree, Tree], folder: Path, wanted: Sequence[Wanted]
) -> tuple[Case, Comparison, Counter[str], list[str]]:
    """Run a case with both versions; return what differs, how often what was wanted does, and the runs."""
    base, new = (folder / side / re.sub(r"\W+", "-", case.name) for side in ("base", "new"))
    began = time.perf_counter()
    sides = list(zip(trees, (base, new), strict=True))
    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(perform, case, tree, where, folder / "configs", trees[0]) for tree, where in sides]
    failures = [task.result() for task in tasks]
    found = compare_folders(base, new)
    found.differences, own = set_apart(found.differences, wanted)
    found.differences = [f"{t.name}: {f}" for t, f in zip(trees, failures, strict=True) if f] + found.differences
    if not found.differences and not found.num_tensors + found.num_values:
        found.differences.append("nothing was compared")
    told = f"{case.name}: {len(found.differences)} differences, {time.perf_counter() - began:.0f} s"
    print("\n  ".join([told, *found.differences[:10]]), file=sys.stderr, flush=True)
    return case, found, own, [path.parent.name for path in new.rglob("resolved.json")]


def compare_trees(
    trees: tuple[Tree, Tree], chosen: Sequence[Case], folder: Path, wanted: Sequence[Wanted] = (), jobs: int = 1
) -> tuple[str, bool, set[str]]:
    """Run the cases with both versions; return a table, whether all is equal, and the algorithms that were trained."""
    configs = folder / "configs"
    configs.mkdir(parents=True)
    for name, text in CONFIGS.items():
        (configs / f"{name}.toml").write_text(text)
    lines = ["| case | runs | tensors | values | result |", "|---|---|---|---|---|"]
    total, trained, changes = Comparison(), set(), Counter[str]()
    with ThreadPoolExecutor(jobs) as cases_at_once:
        for case, found, own, runs in cases_at_once.map(lambda one: _compare_case(one, trees, folder, wanted), chosen):
            changes += own
            trained |= {name.rpartition("-")[0] for name in runs}
            result = f"first difference: {found.differences[0]}" if found.differences else "equal"
            counts = f"{len(runs)} | {found.num_tensors:,} | {found.num_values:,}"
            lines.append(f"| {case.name} | {counts} | {result.splitlines()[0]} |")
            total.add(found)
    lines.append(f"| all | | {total.num_tensors:,} | {total.num_values:,} | {len(total.differences)} differences |")
    if changes:
        lines += ["", "Wanted changes:", *(f"- {why} ({number} times)" for why, number in changes.items())]
    if gained := sorted({re.sub(r"^[^/]+-\d+/(?=.)", "", name) for name in total.gained}):
        lines += ["", "Only the new version writes:", *(f"- {name}" for name in gained)]
    return "\n".join(lines), not total.differences, trained


def main() -> None:
    """Check the base out, compare, print and exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="a commit")
    parser.add_argument("--only", help="only the cases whose name holds this")
    parser.add_argument("--quick", action="store_true", help="two algorithms only")
    parser.add_argument("--jobs", type=int, default=1, help="how many cases run at once")
    parser.add_argument("--keep", type=Path, help="a new folder for the runs, in place of a temporary one")
    options = parser.parse_args()
    chosen = [case for case in (quick_cases() if options.quick else cases()) if (options.only or "") in case.name]
    if not chosen:
        raise SystemExit(f"no case has {options.only!r} in its name: {', '.join(case.name for case in cases())}")
    with tempfile.TemporaryDirectory() as temporary:
        trees = check_out(options.base, Path(temporary) / "tree"), Tree("new", ROOT)
        for tree in trees:
            tree.check()
        wanted = [one for one in WANTED if one.is_expected(options.base)]
        runs = (options.keep or Path(temporary) / "runs").resolve()
        table, equal, trained = compare_trees(trees, chosen, runs, wanted, options.jobs)
    print(table)
    if not (options.only or options.quick):
        expected = {page.stem for page in (ROOT / "docs" / "algorithms").glob("*.md")} - {*NEED_AN_ATLAS, "README"}
        if left := sorted(expected - trained):
            raise SystemExit(f"not trained: {', '.join(left)}")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
