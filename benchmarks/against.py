"""Measure two versions of fedatlas in one run, taking turns: base, new, base, new.

    python benchmarks/against.py --base COMMIT --out speed.json               # A, B, C and the start-up, on a CPU
    python benchmarks/against.py --base-source FOLDER --gpu --out speed.json  # D and E on a GPU, with no git there

Each figure is the median over repetitions, each repetition its own process, which imports its version's source. The
workloads run by each version's own ``benchmarks/contenders/ours.py`` and ``benchmarks/gpu.py``. The exit status is 1 if
the new version is slower by more than the limit anywhere.
"""

from __future__ import annotations

import argparse
import compileall
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from run import machine
from startup import CASES, seconds
from trees import ROOT, Tree, check_out

Measure = Callable[[Tree], dict[str, float]]
"""Measures a version and returns seconds by name."""
GPU = ("D", "E, plain loop", "E, our engine")
"""What of ``gpu.py`` is measured: all of fedatlas in D and E."""
TORCH = "import torch"
"""The start-up's case that has nothing of fedatlas: a look at the noise, which the limit is not for."""


def workload_round(workload: str, rounds: int | None, tree: Tree) -> dict[str, float]:
    """Return the seconds of a workload's median round, the first left out."""
    script = tree.folder / "benchmarks" / "contenders" / "ours.py"
    words = [str(script), workload, *(["--rounds", str(rounds)] if rounds else [])]
    told = json.loads(_run(words, tree).splitlines()[-1])
    return {f"{workload}, a round": statistics.median(told["seconds"][1:])}


def start(case: str, tree: Tree) -> dict[str, float]:
    """Return the seconds until a case of the start-up is done."""
    return {case: seconds(CASES[case], tree.environment())}


def gpu_rates(device: str, more: Sequence[str], tree: Tree) -> dict[str, float]:
    """Return the seconds that each measurement of D and E takes for a million examples."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(tree.folder / "benchmarks" / "gpu.py"), "--device", device, "--repetitions", "1", "--out", folder]
        _run([*words, *more, "--only", *GPU], tree)
        found = json.loads((Path(folder) / "results.json").read_text())
    return {f"{name}, a million examples": 1e6 / told["samples_per_second"] for name, (told,) in found.items()}


def _run(words: Sequence[str], tree: Tree) -> str:
    done = subprocess.run([sys.executable, *words], env=tree.environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{tree.name}: {' '.join(words)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def measures(options: argparse.Namespace) -> Iterator[Measure]:
    """Yield what to measure."""
    if options.gpu:
        rounds = ["--rounds", str(options.rounds)] if options.rounds else []
        yield partial(gpu_rates, options.device, [*rounds, *(["--tiny"] if options.tiny else [])])
        return
    for workload in ["tiny"] if options.tiny else options.workloads.split(","):
        yield partial(workload_round, workload, options.rounds)
    for case in CASES:
        yield partial(start, case)


def take_turns(trees: Sequence[Tree], chosen: Sequence[Measure], repetitions: int) -> Iterator[tuple[str, str, float]]:
    """Yield a name, a version and its seconds as they are measured; the versions change places in each repetition."""
    for repetition in range(repetitions):
        for measure in chosen:
            for tree in trees if repetition % 2 == 0 else reversed(trees):
                for name, took in measure(tree).items():
                    print(f"{repetition + 1}/{repetitions} {name}, {tree.name}: {took:.4f} s", file=sys.stderr)
                    yield name, tree.name, took


def compare(found: Mapping[str, Mapping[str, Sequence[float]]], limit: float) -> tuple[str, list[str]]:
    """Return a markdown table of medians and ratios, and the names that are slower than the limit allows.

    >>> table, slower = compare({"A": {"base": [1.0, 1.0, 9.0], "new": [1.1, 1.1, 0.1]}}, 0.03)
    >>> slower
    ['A']
    """
    lines = [
        "| | base seconds | new seconds | new / base | spread of base | spread of new |",
        "|---|---|---|---|---|---|",
    ]
    slower = []
    for name, sides in found.items():
        base, new = (statistics.median(sides[side]) for side in ("base", "new"))
        spreads = [f"{min(sides[side]):.4f} to {max(sides[side]):.4f}" for side in ("base", "new")]
        lines.append(f"| {name} | {base:.4f} | {new:.4f} | {new / base:.3f} | {' | '.join(spreads)} |")
        if name != TORCH and new > base * (1 + limit):
            slower.append(name)
    return "\n".join(lines), slower


def main() -> None:
    """Measure, print, keep and exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    base = parser.add_mutually_exclusive_group(required=True)
    base.add_argument("--base", help="a commit")
    base.add_argument("--base-source", type=Path, help="a folder with the base's files, where there is no git history")
    parser.add_argument("--workloads", default="A,B,C")
    parser.add_argument("--gpu", action="store_true", help="measure D and E instead")
    parser.add_argument("--device", default="cuda", help="of --gpu")
    parser.add_argument("--rounds", type=int, help="rounds a measurement; default is each workload's")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=0.03, help="how much slower the new version may be; default 0.03"
    )
    parser.add_argument("--tiny", action="store_true", help="very small, to see whether it runs")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file; the table goes beside it as .md")
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        before = options.base_source or check_out(options.base, Path(temporary)).folder
        trees = [Tree("base", before.resolve()), Tree("new", ROOT)]
        for tree in trees:
            tree.check()
            compileall.compile_dir(tree.folder / "src", quiet=1)  # else the first start of each would compile
        about: dict[str, Any] = {"machine": machine(), "base": options.base or str(options.base_source)}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for name, side, took in take_turns(trees, list(measures(options)), options.repetitions):
            found.setdefault(name, {}).setdefault(side, []).append(took)
            options.out.write_text(json.dumps({**about, "seconds": found}, indent=1))
    table, slower = compare(found, options.limit)
    print(table)
    options.out.with_suffix(".md").write_text(table + "\n")
    if slower:
        raise SystemExit(f"slower by more than {options.limit:.0%}: {', '.join(slower)}")


if __name__ == "__main__":
    main()
