"""Undo the mending of a defect in a copy of this tree, and see its tests fail.

    python benchmarks/undone.py --out docs/evidence/undone.md
    python benchmarks/undone.py --only "3 critical"       # some of them, by words
    python benchmarks/undone.py --slow                    # the tests over real processes too, minutes each

For every defect that the attack on 0.1.0 found (benchmarks/defects.py reproduces with that version what its command
line can be led into). If none of a defect's tests fails, they cannot fail: the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedatlas.cli import print_rows
from fedatlas.runs import atomic_write

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


GIGABYTES = 5
"""Of memory that the tests may take: without some mendings they would take all."""
SECONDS = 900
RUNS, DATA = "src/fedatlas/runs", "src/fedatlas/data/loading"
_RECORDS, _BROKEN, _RESUME = (
    "tests/runs/test_records.py",
    "tests/data/test_broken_files.py",
    "tests/training/test_resume.py",
)
_HOSTILE = "tests/runs/test_hostile_folder.py"
_HARM = "tests/data/test_hostile_data.py"
_CHECKSUM = (
    f"{RUNS}/manifest.py",
    "if claim.sha256 is not None and running.hexdigest() != claim.sha256:",
    "if False:",
)
_FILES = (
    (f"{RUNS}/manifest.py", "if (claims := self._claims_of(name)) and claim_of(content) not in claims:", "if False:"),
    (f"{RUNS}/manifest.py", "if found not in self._claims_of(name):", "if False:"),
)
_DELETED = (
    _CHECKSUM,
    (
        f"{RUNS}/manifest.py",
        "            if left:\n                raise",
        "            if False:\n                raise",
    ),
    (
        f"{RUNS}/manifest.py",
        "        if left:\n            raise altered",
        "        if False:\n            raise altered",
    ),
)
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
    "return name in self.disclosures or ANY in self.disclosures",
    "return True",
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
        ((f"{FLOWER}/server/transport.py", "fault = ruined(before, after, uploads)", "fault = None"),),
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
    Mending("5 high: a flipped digit in a record", (_CHECKSUM, *_FILES), f"{_RECORDS} -k flipped"),
    Mending("6 high: a deleted record", _DELETED, f"{_RECORDS} -k deleted"),
    Mending(
        "7 high: 100,000 clients on a page",
        (
            ("src/fedatlas/report/members.py", "    if count <= MOST_SHOWN:", "    if True:"),
            ("src/fedatlas/report/sources.py", "    if len(rows) > MOST_PAIRED:", "    if False:"),
        ),
        "tests/report/test_page_data.py -k very_many_clients",
    ),
    Mending(
        "8 high: a small /dev/shm",
        (
            (
                "src/fedatlas/engines/workers.py",
                "    return torch.frombuffer(memory, dtype=dtype)",
                "    return torch.zeros(size, dtype=dtype).share_memory_()",
            ),
        ),
        "tests/engines/test_simulator.py -k dev_shm",
    ),
    Mending(
        "8 high: few open files",
        (
            (
                "src/fedatlas/engines/workers.py",
                "        except OSError as error:\n            self.close()",
                "        except ZeroDivisionError as error:\n            self.close()",
            ),
        ),
        "tests/engines/test_simulator.py -k cannot_be_started",
    ),
    Mending(
        "13 medium: labels of 2e15",
        ((f"{DATA}/arrays.py", "    if top >= MOST_CLASSES:", "    if False:"),),
        f"{_BROKEN} -k 'strange_array and labels'",
    ),
    Mending(
        "14 medium: resume on a read-only file system",
        (
            (
                f"{RUNS}/writer.py",
                '        except OSError as error:\n            raise RunFolderError(\n                f"cannot make',
                "        except ZeroDivisionError as error:\n            raise RunFolderError(\n"
                '                f"cannot make',
            ),
            (
                f"{RUNS}/files.py",
                "    except OSError as error:\n        raise unwritable(path, error) from error",
                "    except ZeroDivisionError as error:\n        raise unwritable(path, error) from error",
            ),
        ),
        f"{_RESUME} -k read_only",
    ),
    Mending(
        "low: scalars and texts in an npz",
        (
            (f"{DATA}/npz.py", "        if array.ndim < least or (beside and array.ndim != 1):", "        if False:"),
            (f"{DATA}/npz.py", 'if key in ("mean", "std") and array.dtype.kind not in "uif":', "if False:"),
        ),
        f"{_BROKEN} -k 'strange_array and (scalar or text)'",
    ),
    Mending(
        "silent: a class twice",
        ((f"{DATA}/arrays.py", "    if classes is not None and len(set(classes)) != len(classes):", "    if False:"),),
        f"{_BROKEN} -k 'strange_array and twice'",
    ),
    Mending(
        "low: a shape bomb in an npz",
        (
            (f"{DATA}/npz.py", "        _check_sizes(file)\n", ""),
            (f"{DATA}/npz.py", "KeyError, MemoryError, OverflowError", "KeyError, OverflowError"),
        ),
        f"{_BROKEN} -k header_is_read",
    ),
    Mending(
        "low: a corrupt stream in an npz",
        ((f"{DATA}/npz.py", "zipfile.BadZipFile, zlib.error, lzma", "zipfile.BadZipFile, lzma"),),
        f"{_BROKEN} -k corrupt_stream",
    ),
    Mending(
        "low: a flipped or extra line in rounds.jsonl",
        (
            (
                f"{RUNS}/run.py",
                '            if not isinstance(entry["evaluation"].get(self.metric), int | float):',
                "            if False:",
            ),
            (
                f"{RUNS}/schema.py",
                '            raise line_fault(path, number, f"is of round',
                '            line_fault(path, number, f"is of round',
            ),
        ),
        f"{_HOSTILE} -k 'right_checksum and (key or text_for or object)'",
    ),
    Mending(
        "low: a corrupt portraits.npz in a report",
        ((f"{DATA}/npz.py", "zipfile.BadZipFile, zlib.error, lzma", "zipfile.BadZipFile, lzma"),),
        f"{_HOSTILE} -k 'right_checksum and stream'",
    ),
    Mending(
        "low: a record nested 100,000 deep",
        (
            (
                f"{RUNS}/schema.py",
                "        except (ValueError, RecursionError) as error:\n            raise line_fault",
                "        except ValueError as error:\n            raise line_fault",
            ),
        ),
        f"{_RECORDS} -k nested",
    ),
    Mending(
        "low: an atlas without names",
        (
            (
                "src/fedatlas/atlas/atlas.py",
                "        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:",
                "        except ZeroDivisionError as error:",
            ),
        ),
        f"{_BROKEN} -k 'right_checksum and names'",
    ),
    Mending(
        "silent: a half of width 0",
        (("src/fedatlas/atlas/checks.py", "        if not table.shape[1]:", "        if False:"),),
        f"{_BROKEN} -k 'right_checksum and width'",
    ),
    Mending(
        "low: a number of 23 digits in a config",
        (
            (
                "src/fedatlas/parts/checks.py",
                "    if isinstance(value, int) and abs(value) >= LARGEST:",
                "    if False:",
            ),
        ),
        f"{_BROKEN} -k made_to_break_readers",
    ),
    Mending(
        "silent: a deleted manifest",
        (
            (
                f"{RUNS}/manifest.py",
                "    except FileNotFoundError as error:\n        raise RunFolderError(",
                "    except FileNotFoundError as error:\n        return Manifest()\n        raise RunFolderError(",
            ),
            (
                f"{RUNS}/writer.py",
                "    if not taken and not overwrite and (checkpoints / MANIFEST)",
                "    if False and (checkpoints / MANIFEST)",
            ),
        ),
        f"{_RECORDS} -k center",
    ),
    Mending(
        "links in a run's folder",
        (
            (f"{RUNS}/files.py", "        if odd:\n", "        if False:\n"),
            (f"{RUNS}/files.py", "        partial.unlink()  # it may be", "        pass  # it may be"),
        ),
        f"{_HOSTILE} -k 'link or pipe'",
    ),
    Mending(
        "a file larger than the memory",
        (
            ("src/fedatlas/data/memory.py", "    if needed > (most := physical_memory()):", "    if most := 0:"),
            (f"{RUNS}/files.py", "        if large:\n", "        if False:\n"),
        ),
        f"{_HARM} {_HOSTILE} -k 'larger and (csv or resolved) or cells_without_end'",
    ),
    Mending(
        "rows that a quote swallows",
        ((f"{DATA}/cells.py", "delimiter=mark, strict=True", "delimiter=mark"),) * 2,
        f"{_HARM} -k quote",
    ),
    Mending(
        "a name that steers the terminal",
        (("src/fedatlas/errors.py", "    return _STEERING.sub", "    return text or _STEERING.sub"),),
        "tests/cli/test_app.py tests/data/test_hostile_data.py tests/runs/test_hostile_folder.py -k steer",
    ),
    Mending(
        "another model under a right checksum, groups without end",
        (
            (
                f"{RUNS}/tensor_files.py",
                "        except ValueError as error:",
                "        except ZeroDivisionError as error:",
            ),
            (f"{RUNS}/checkpoint.py", "        if manifest.groups > len(packed) +", "        if False and (1) +"),
            ("src/fedatlas/training/loop.py", "            self._check_same_network(checkpoint.state)\n", ""),
        ),
        f"{_HOSTILE} -k 'another_model or groups'",
    ),
    Mending(
        "a model larger than the memory",
        (
            (
                "src/fedatlas/models/build.py",
                "    hook = register_module_parameter",
                "    if most == 0:\n        hook = register_module_parameter",
            ),
            ("src/fedatlas/models/build.py", "        hook.remove()\n", "        pass\n"),
        ),
        "tests/models/test_build_model.py -k 'larger and options3'",
    ),
    Mending(
        "a memory folder that others can write",
        (
            (f"{RUNS}/files.py", "    if found.st_mode & stat.S_IWOTH or", "    if False and"),
            (f"{FLOWER}/node/audit.py", 'flags | getattr(os, "O_NOFOLLOW", 0)', "flags"),
        ),
        "tests/flower/test_audit.py -k 'memory or link'",
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
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "-rA", *file.split()]
        command += ["-k", words.strip("'")] if words else []
        command += ["--slow"] if mending.slow else []
        (folder / "tmp").mkdir()
        own = {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
        environment = {**os.environ, **own}
        limits = [] if mending.slow else ["prlimit", f"--as={GIGABYTES * 2**30}"]
        try:
            done = subprocess.run(
                [*limits, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return 1, 1  # it hangs
        finally:
            end_left(str(folder / "tmp"))
    found = re.findall("^(FAILED|ERROR|PASSED) tests", done.stdout, re.MULTILINE)
    return sum(outcome != "PASSED" for outcome in found), len(found)


def end_left(folder: str) -> None:
    """End processes that tests left behind, by the folder in their commands: without its mending a defect does that."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if folder.encode() in file.read_bytes():
                os.kill(int(file.parent.name), signal.SIGTERM)
        except OSError:
            continue  # it ended meanwhile, or is another user's


def main() -> None:
    """Undo each mending, print the table, and write the page where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="words of the defects")
    parser.add_argument("--slow", action="store_true", help="also the tests over real processes")
    parser.add_argument("--keep", type=Path, help="a file that keeps what is done; it is gone on from")
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    given = parser.parse_args()
    kept = json.loads(given.keep.read_text()) if given.keep is not None and given.keep.exists() else {}
    rows, sound = [], True
    for mending in (one for one in MENDINGS if given.only in one.defect and (given.slow or not one.slow)):
        if mending.defect not in kept:
            kept[mending.defect] = failing(mending)
            if given.keep is not None:
                given.keep.write_text(json.dumps(kept, indent=1))
        failed, count = kept[mending.defect]
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
shows are also [reproduced with 0.1.0 itself](defects.md).

"""


if __name__ == "__main__":
    main()
