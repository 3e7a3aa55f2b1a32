"""Let files, memory and processes fail under a short run, and count how it ends.

    python benchmarks/faults.py --out docs/evidence/faults.md     # all of it, about half an hour
    python benchmarks/faults.py --every 20 --damages 20 --kills 2 # a small one
    python benchmarks/faults.py --keep FILE --minutes 10          # a piece; the same command again goes on

After every fault the run is resumed without faults. It must end with the bits of a run that nothing happened to, or be
refused in one message. A traceback, another result or a hang is a defect; the exit status is 1 if there is any.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from campaign import BAD, Campaign, Outcomes, PausedError, Trials, table
from failing import FAULTS, fail_each
from harming import damage, forge, kill

from fedatlas.cli import print_rows
from fedatlas.runs import atomic_write


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
    forge(saved, damages, trials)
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

A run of SCAFFOLD with three clients and five rounds. The n-th write (half of it is written), fsync or rename fails,
once for each n; so does the n-th operation on tensors of the training, as if there were no memory for its result, and
every 101st of the check of the data that `fedatlas train` does afterwards. *Saved every round* is `checkpoint_every =
1`; *saved beside* saves by the clock in a thread, without a pause. Then the run is resumed without faults. A random
file of a run's folder is damaged (bits, digits, length, zeros, lines, other content, deleted); then its report is
written and the run is resumed. *A file and its checksum*: the manifest is written again to fit the damage, as whoever
means harm would do; content that makes sense is then taken (first column), all else refused. A process that trains is
killed at random moments, ten times a run.

*Right bits*: the run ends with the records, the model and the clients' memory of a run to which nothing happened. *One
message*: it is refused, with the file's name where a file is damaged. The other three columns are defects.

"""


if __name__ == "__main__":
    main()
