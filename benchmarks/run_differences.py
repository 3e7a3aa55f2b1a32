"""Compare two folders of runs: tensors byte for byte, records and settings value by value.

Of a page its data are compared, of a printed text each line. Clocks are left out (``timings.jsonl``, ``seconds``), and
so are pictures and what a run says of its machine.
"""

from __future__ import annotations

import json
import re
import struct
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDS = ("rounds.jsonl", "clients.jsonl")
UNTIMED = {"seconds"}
"""Fields that hold a clock's reading."""
Tensor = tuple[str, tuple[int, ...], bytes]
"""A tensor's type, shape and bytes."""


@dataclass
class Comparison:
    """The result of comparing some files."""

    num_tensors: int = 0
    num_values: int = 0
    differences: list[str] = field(default_factory=list)
    gained: set[str] = field(default_factory=set)
    """Fields that only the new version writes, without the numbers of lines and list items."""

    def add(self, other: Comparison) -> None:
        """Take over another comparison's result."""
        self.num_tensors += other.num_tensors
        self.num_values += other.num_values
        self.differences += other.differences
        self.gained |= other.gained

    def compare_values(self, base: Any, new: Any, where: str) -> None:
        """Compare JSON values; new fields are noted, every other difference counts."""
        if isinstance(base, dict) and isinstance(new, dict):
            self.gained |= {re.sub(r"\[\d+\]", "[]", f"{where}.{key}") for key in new.keys() - base.keys()}
            for key in base:
                if key in UNTIMED:
                    continue
                if key in new:
                    self.compare_values(base[key], new[key], f"{where}.{key}")
                else:
                    self.differences.append(f"{where}.{key} is missing")
        elif isinstance(base, list) and isinstance(new, list):
            if len(base) != len(new):
                self.differences.append(f"{where} has {len(new)} items, not {len(base)}")
            for number, (old_item, new_item) in enumerate(zip(base, new, strict=False)):
                self.compare_values(old_item, new_item, f"{where}[{number}]")
        else:
            self.num_values += 1
            # As text: 1 and 1.0 are different, and nan equals itself.
            if json.dumps(base, default=str) != json.dumps(new, default=str):
                self.differences.append(f"{where} is {new!r}, not {base!r}")

    def compare_tensors(self, base: dict[str, Tensor], new: dict[str, Tensor], where: str) -> None:
        """Compare named tensors, their order included; new ones are noted."""
        kept = [name for name in new if name in base]
        if list(base) != kept:
            self.differences.append(f"{where} holds the tensors {', '.join(kept)}, not {', '.join(base)}")
        self.gained |= {f"{where}: {name}" for name in new if name not in base}
        for name in base.keys() & new.keys():
            self.num_tensors += 1
            (old_type, old_shape, old_bytes), (new_type, new_shape, new_bytes) = base[name], new[name]
            if (old_type, old_shape) != (new_type, new_shape):
                wrong = f"is {new_type}{list(new_shape)}, not {old_type}{list(old_shape)}"
                self.differences.append(f"{where}: {name} {wrong}")
            elif old_bytes != new_bytes:
                first = next(i for i, pair in enumerate(zip(old_bytes, new_bytes, strict=True)) if len({*pair}) == 2)
                self.differences.append(f"{where}: {name} differs, first in byte {first} of {len(old_bytes)}")


def compare_folders(base: Path, new: Path) -> Comparison:
    """Compare all runs, networks and atlases under two folders."""
    result = Comparison()
    ours, theirs = _contents(new), _contents(base)
    result.differences += [f"{name} is missing" for name in theirs if name not in ours]
    known = {str(Path(name).parent) for name in theirs}
    for name in ours.keys() - theirs.keys():
        # Of a folder that only the new version writes, such as a run of a new algorithm, the folder says enough.
        folders = [str(folder) for folder in Path(name).parents if str(folder) not in known and str(folder) != "."]
        result.gained.add(f"{folders[-1]}/" if folders else name)
    for name in (name for name in theirs if name in ours):
        _reader(name)(result, base / name, new / name, name)
    return result


def _contents(folder: Path) -> dict[str, None]:
    """Return the files to compare; of a checkpoint only the manifest, which names the others."""
    found = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): None for path in found if _is_compared(path)}


def _is_compared(path: Path) -> bool:
    if path.parent.name == "checkpoints":
        return path.name == "manifest.json"
    return path.name in RECORDS or path.suffix in (".json", ".safetensors", ".npz", ".toml", ".html", ".txt")


def _reader(name: str) -> Callable[[Comparison, Path, Path, str], None]:
    if name.endswith("manifest.json"):
        return _compare_checkpoints
    readers = {".jsonl": _compare_lines, ".json": _compare_json, ".safetensors": _compare_safetensors}
    readers |= {".npz": _compare_bytes, ".toml": _compare_toml, ".html": _compare_pages, ".txt": _compare_texts}
    return readers[Path(name).suffix]


def _compare_lines(result: Comparison, base: Path, new: Path, where: str) -> None:
    result.compare_values(
        *([json.loads(line) for line in path.read_text().splitlines()] for path in (base, new)), where
    )


def _compare_json(result: Comparison, base: Path, new: Path, where: str) -> None:
    old, own = (json.loads(_text(path, where)) for path in (base, new))
    if isinstance(old, dict) and isinstance(own, dict):
        old.pop("machine", None)
        own.pop("machine", None)
    result.compare_values(old, own, where)


def _compare_toml(result: Comparison, base: Path, new: Path, where: str) -> None:
    result.compare_values(*(tomllib.loads(path.read_text()) for path in (base, new)), where)


def _compare_pages(result: Comparison, base: Path, new: Path, where: str) -> None:
    pattern = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
    result.compare_values(*(json.loads(pattern.findall(_text(path, where))[0]) for path in (base, new)), where)


def _compare_texts(result: Comparison, base: Path, new: Path, where: str) -> None:
    result.compare_values(*(_text(path, where).splitlines() for path in (base, new)), where)


def _text(path: Path, where: str) -> str:
    """Return a file's text without the name of the folder that all files of its side are in."""
    return path.read_text().replace(str(path).removesuffix(where), "")


def _compare_bytes(result: Comparison, base: Path, new: Path, where: str) -> None:
    result.num_values += 1
    if base.read_bytes() != new.read_bytes():
        result.differences.append(f"{where} differs")


def _compare_safetensors(result: Comparison, base: Path, new: Path, where: str) -> None:
    (old_tensors, old_words), (new_tensors, new_words) = read_tensors(base), read_tensors(new)
    result.compare_tensors(old_tensors, new_tensors, where)
    result.compare_values(old_words, new_words, where)


def _compare_checkpoints(result: Comparison, base: Path, new: Path, where: str) -> None:
    """Compare the server's tensors and the latest memory of every client, whatever the files' names are."""
    (old_round, old_files), (new_round, new_files) = _checkpoint(base), _checkpoint(new)
    result.compare_values(old_round, new_round, f"{where}.round")
    place = where.removesuffix("manifest.json")
    if old_files.keys() != new_files.keys():
        result.differences.append(f"{place} has memory of {sorted(new_files)}, not of {sorted(old_files)}")
    for owner in sorted(old_files.keys() & new_files.keys()):
        result.compare_tensors(read_tensors(old_files[owner])[0], read_tensors(new_files[owner])[0], f"{place}{owner}")


def _checkpoint(path: Path) -> tuple[int, dict[str, Path]]:
    """Return a checkpoint's round and the file of the server and of each client."""
    manifest = json.loads(path.read_bytes())
    claim = manifest["clients"]
    journal = (path.parent / claim["file"]).read_bytes()[: claim["bytes"]] if claim["bytes"] else b""
    files = {"server": path.parent / manifest["server"]["file"]}
    for line in map(json.loads, journal.splitlines()):
        files[f"client {line['client']}"] = path.parent / line["file"]
    return manifest["round"], files


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a safetensors file in the order of its bytes, and its notes but for the checksum."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    notes = {key: _parsed(text) for key, text in header.pop("__metadata__", {}).items() if key != "sha256"}
    return dict(_tensors(header, data)), notes


def _tensors(header: dict[str, Any], data: bytes) -> Iterator[tuple[str, Tensor]]:
    for name, about in sorted(header.items()):
        begin, end = about["data_offsets"]
        yield name, (about["dtype"], tuple(about["shape"]), data[begin:end])


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
