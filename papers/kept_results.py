"""The results of many trainings in one file that travels, and back into a folder, where they are not measured again.

python -m papers.kept_results runs/client2vec docs/evidence/client2vec.json
python -m papers.kept_results docs/evidence/client2vec.json runs/client2vec
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.errors import DataError
from fedatlas.runs import atomic_write
from papers.options import existing, script

ATLAS = "atlas of "
FOLDER = "results"
"""Where in its folder a script of tables keeps what it measured, a file for each training."""


def result_file(folder: Path, key: str, seed: int) -> Path:
    """Return the file in a script's folder that holds the numbers of one training."""
    return folder / FOLDER / f"{key}-{seed}.json"


def read_numbers(folder: Path, key: str, seed: int) -> dict[str, Any] | None:
    """Return the numbers of one training that a script's folder holds, None if there are none."""
    file = result_file(folder, key, seed)
    if not file.exists():
        return None
    numbers: dict[str, Any] = json.loads(file.read_bytes())["numbers"]
    return numbers


def write_result(file: Path, content: Mapping[str, Any]) -> None:
    """Write the numbers of one training; a reader finds the file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(content, indent=1).encode())


def pack(folder: Path, file: Path) -> int:
    """Write the results of a folder to one file; return how many there are."""
    found = {path.stem: json.loads(path.read_bytes()) for path in sorted((folder / FOLDER).glob("*.json"))}
    for content in found.values():
        content["numbers"].pop("clock", None)  # seconds of every evaluation: long, and of one machine
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(content)}" for name, content in found.items())
    file.write_text(f"{{\n{lines}\n}}\n")
    return len(found)


def read_packed(file: Path) -> dict[str, dict[str, Any]]:
    """Return the results that ``pack`` wrote, by the names of their files."""
    try:
        found: dict[str, dict[str, Any]] = json.loads(file.read_bytes())
        if all({"name", "numbers"} <= content.keys() for content in found.values()):
            return found
        reason = "a result without name or numbers"
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error)
    raise DataError(
        f"{file} cannot be read as kept results: {reason}. Give a file that papers.kept_results wrote.",
        code="file-unreadable",
        path=str(file),
    )


def unpack(file: Path, folder: Path) -> int:
    """Write the results of a file into a folder, except those that are there already; return how many.

    The numbers of an atlas stay behind: the atlas itself does not travel, and is made again.
    """
    written = 0
    for name, content in read_packed(file).items():
        target = folder / FOLDER / f"{name}.json"
        if not target.exists() and not content["name"].startswith(ATLAS):
            write_result(target, content)
            written += 1
    return written


@script
def main() -> None:
    """Pack a folder, or unpack a file."""
    parser = argparse.ArgumentParser(description="Keep the results of many trainings in one file, or take them out.")
    parser.add_argument("source", type=existing, help="a script's folder (--out), or a file that was made from one")
    parser.add_argument("target", type=Path, help="the file to write, or the folder to fill")
    given = parser.parse_args()
    if given.source.is_dir():
        print(f"{given.target}: {pack(given.source, given.target)} results")
    else:
        print(f"{given.target}: {unpack(given.source, given.target)} results that were not there")


if __name__ == "__main__":
    main()
