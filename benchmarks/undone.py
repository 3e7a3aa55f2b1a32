"""Undo the mending of a defect in a copy of this tree, and see its tests fail.

    python benchmarks/undone.py --out docs/evidence/undone.md
    python benchmarks/undone.py --only "3 critical"       # some of them, by words
    python benchmarks/undone.py --slow                    # the tests over real processes too, minutes each

For defects that need a network, which the command line of 0.1.0 cannot be led into (benchmarks/defects.py does the
others). A test that passes all the same cannot fail: the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedatlas.cli.terminal import print_rows
from fedatlas.runs.files import atomic_write

ROOT = Path(__file__).resolve().parent.parent
FLOWER = "src/fedatlas/flower"


@dataclass(frozen=True)
class Mending:
    """A defect, the lines that mended it with what undoes them, and the tests that must fail then."""

    defect: str
    undone: tuple[tuple[str, str, str], ...]
    """Files, texts, and what to put in their place."""
    tests: str
    slow: bool = False


_CODE = ("src/fedatlas/algorithms/user_function.py", "    if _in_full(text) not in _allowed():", "    if False:")
_NAMED = 'if name not in self.algorithms and (ANY not in self.algorithms or ":" in name):'
_IDENTITY = (
    (
        f"{FLOWER}/node/request.py",
        '    if not isinstance(run, str) or not re.fullmatch("[0-9a-f]{1,64}", run):',
        "    run = str(run)\n    if False:",
    ),
    (
        f"{FLOWER}/node/request.py",
        "return inside(self.node.memory, run_identity(self.about))",
        "return self.node.memory / run_identity(self.about)",
    ),
)
_APP = (f"{FLOWER}/node/apps.py", '    fault = app_fault(content, tomllib.loads(policy.decode()).get("apps", [OWN]))')
_SCALE = (f"{FLOWER}/server/safety.py", "    if times is None or len(uploads) < FEW:", "    if True:")
_LARGEST = (
    f"{FLOWER}/protocol/checks.py",
    "MOST_CHANGED, MOST_NOTED = 1e6, 1e15",
    "MOST_CHANGED, MOST_NOTED = 1e38, 1e38",
)
_DISCLOSED = (
    f"{FLOWER}/node/policy.py",
    "if name not in self.disclosures and ANY not in self.disclosures:",
    "if False:",
)
_SIGNALS = (f"{FLOWER}/deploy/demo.py", "with ended_by_signals(), LocalFederation(", "with LocalFederation(")
_BAD, _POLICY, _REAL = (f"tests/flower/test_{name}.py" for name in ("bad_nodes", "policy", "attacks"))
MENDINGS = (
    Mending("1 critical: code named in a config or a run", (_CODE,), "tests/config/test_code.py"),
    Mending(
        "1 critical: code that a server names",
        (_CODE, (f"{FLOWER}/node/policy.py", _NAMED, "if False:")),
        f"{_POLICY} -k function",
    ),
    Mending("1 critical: code that comes as an app", ((*_APP, "    fault = None"),), "tests/flower/test_apps.py"),
    Mending("2 critical: a run's name leads elsewhere", _IDENTITY, f"{_POLICY} -k leads_elsewhere"),
    Mending(
        "3 critical: 10^14 examples",
        ((f"{FLOWER}/server/exchange.py", "MOST_EXAMPLES = 10**10", "MOST_EXAMPLES = 10**30"),),
        f"{_BAD} -k claims_what_cannot",
    ),
    Mending(
        "3 critical: a weight of nearly 1",
        (
            (
                f"{FLOWER}/server/safety.py",
                "        return algorithm.with_weighting(",
                "        return algorithm or algorithm.with_weighting(",
            ),
        ),
        f"{_BAD} -k claims_many",
    ),
    Mending("3 critical: a change of 1e30, or scaled by -1000", (_SCALE, _LARGEST), f"{_BAD} -k change_out_of_scale"),
    Mending(
        "3 critical: a run that ends normally with a ruined model",
        ((f"{FLOWER}/server/transport.py", "fault = ruined(before, after)", "fault = None"),),
        f"{_BAD} -k would_ruin",
    ),
    Mending(
        "3 critical: a false loss",
        ((f"{FLOWER}/protocol/checks.py", "MOST_SURVEYED = 1e4", "MOST_SURVEYED = 1e38"),),
        f"{_BAD} -k false_loss",
    ),
    Mending("4 high: a node has no say", (_DISCLOSED,), f"{_POLICY} -k more_than_agreed"),
    Mending(
        "10 medium: data of another form",
        (
            (
                f"{FLOWER}/server/gathering.py",
                "        except DataError as error:",
                "        except ZeroDivisionError as error:",
            ),
        ),
        f"{_BAD} -k another_form",
    ),
    Mending(
        "11, 12 medium: a shape of 10^6 x 10^6, 300,000 classes",
        ((f"{FLOWER}/protocol/data_form.py", "        _check_bounds(values)\n", ""),),
        f"{_BAD} -k claims_what_cannot",
    ),
    Mending("2 and 4, real processes: a server that means harm", (*_IDENTITY, _DISCLOSED), f"{_REAL} -k server", True),
    Mending("3, real processes: a node that lies", (_SCALE, _LARGEST), f"{_REAL} -k lies", True),
    Mending(
        "9 high, real processes: SIGTERM to flower demo", (_SIGNALS,), "tests/flower/test_deployment.py -k told", True
    ),
)


def undo(mending: Mending, folder: Path) -> None:
    """Put the old lines in place of a mending, in a copy of the tree."""
    for name, text, instead in mending.undone:
        path = folder / name
        source = path.read_text(encoding="utf-8")
        if text not in source:
            raise SystemExit(f"{mending.defect}: {name} does not hold {text!r}")
        path.write_text(source.replace(text, instead, 1), encoding="utf-8")


def failing(mending: Mending) -> tuple[int, int]:
    """Return how many of a mending's tests fail without it, and how many there are."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("src", "tests", "benchmarks", "configs", "docs", "papers"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, folder / name)
        undo(mending, folder)
        file, _, words = mending.tests.partition(" -k ")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "-rA", file]
        command += ["-k", words] if words else []
        command += ["--slow"] if mending.slow else []
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    found = re.findall("^(FAILED|ERROR|PASSED) tests", done.stdout, re.MULTILINE)
    return sum(outcome != "PASSED" for outcome in found), len(found)


def main() -> None:
    """Undo each mending, print the table, and write the page where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="words of the defects")
    parser.add_argument("--slow", action="store_true", help="also the tests over real processes")
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    given = parser.parse_args()
    rows, sound = [], True
    for mending in (one for one in MENDINGS if given.only in one.defect and (given.slow or not one.slow)):
        failed, count = failing(mending)
        sound = sound and failed > 0
        rows.append({"defect": mending.defect, "tests": f"`{mending.tests}`", "fail without": f"{failed} of {count}"})
        print(*rows[-1].values(), sep=" | ", flush=True)
    print_rows(rows, "tests that fail where a mending is undone")
    if given.out is not None:
        lines = [
            "| " + " | ".join(rows[0]) + " |",
            "|---|---|---:|",
            *("| " + " | ".join(r.values()) + " |" for r in rows),
        ]
        atomic_write(given.out, (PAGE + "\n".join(lines) + "\n").encode())
    sys.exit(not sound)


PAGE = """# Tests that can fail

`python benchmarks/undone.py --slow`: the lines that mended a defect are undone in a copy of the source, and the
defect's tests run. Those that are about something else in the same choice of tests pass. Defects that the command line
shows are [reproduced with 0.1.0 itself](defects.md).

"""


if __name__ == "__main__":
    main()
