"""The tools that compare two versions tell a difference when there is one."""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.house import House, cycles
from benchmarks.run_differences import compare_folders

ROOT = Path(__file__).parent.parent


def _make_run(folder: Path) -> None:
    """Write a run of one round with a server, one client's memory and an atlas."""
    checkpoints = folder / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    save_file({"000000|shared|weight": torch.arange(3.0)}, checkpoints / "server-000001.safetensors")
    save_file({"000000|c|control": torch.ones(2)}, checkpoints / "client-000004-000000.safetensors")
    save_file({"feature": torch.eye(2)}, folder / "atlas.safetensors", {"words": '{"names": ["a", "b"]}'})
    journal = json.dumps({"client": 4, "file": "client-000004-000000.safetensors"}) + "\n"
    (checkpoints / "clients-000000.jsonl").write_text(journal)
    claim = {"file": "clients-000000.jsonl", "bytes": len(journal)}
    manifest = {"round": 1, "server": {"file": "server-000001.safetensors"}, "clients": claim}
    (checkpoints / "manifest.json").write_text(json.dumps(manifest))
    (folder / "run" / "rounds.jsonl").write_text('{"round": 1, "train_loss": 0.5}\n')
    (folder / "run" / "resolved.json").write_text('{"training": {"rounds": 1}, "machine": {"cores": 2}}')


def _alter_last_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


ALTERATIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte of the shared parameters": (
        lambda folder: _alter_last_byte(folder / "run/checkpoints/server-000001.safetensors"),
        "run/checkpoints/server: 000000|shared|weight differs, first in byte 11 of 12",
    ),
    "a byte of what a client remembers": (
        lambda folder: _alter_last_byte(folder / "run/checkpoints/client-000004-000000.safetensors"),
        "run/checkpoints/client 4: 000000|c|control differs, first in byte 7 of 8",
    ),
    "a client's memory is missing": (
        lambda folder: (folder / "run/checkpoints/manifest.json").write_text(
            (folder / "run/checkpoints/manifest.json").read_text().replace('"bytes": ', '"bytes": 0, "was": ')
        ),
        "run/checkpoints/ has memory of ['server'], not of ['client 4', 'server']",
    ),
    "a byte of an atlas": (
        lambda folder: _alter_last_byte(folder / "atlas.safetensors"),
        "atlas.safetensors: feature differs, first in byte 15 of 16",
    ),
    "a name in an atlas": (
        lambda folder: save_file(
            {"feature": torch.eye(2)}, folder / "atlas.safetensors", {"words": '{"names": ["a", "c"]}'}
        ),
        "atlas.safetensors.words.names[1] is 'c', not 'b'",
    ),
    "a tensor's type": (
        lambda folder: save_file(
            {"feature": torch.eye(2).double()}, folder / "atlas.safetensors", {"words": '{"names": ["a", "b"]}'}
        ),
        "atlas.safetensors: feature is F64[2, 2], not F32[2, 2]",
    ),
    "the last digit of a record": (
        lambda folder: (folder / "run/rounds.jsonl").write_text('{"round": 1, "train_loss": 0.50000001}\n'),
        "run/rounds.jsonl[0].train_loss is 0.50000001, not 0.5",
    ),
    "a record too many": (
        lambda folder: (folder / "run/rounds.jsonl").write_text('{"round": 1, "train_loss": 0.5}\n{"round": 2}\n'),
        "run/rounds.jsonl has 2 items, not 1",
    ),
    "a setting that is gone": (
        lambda folder: (folder / "run/resolved.json").write_text('{"training": {}}'),
        "run/resolved.json.training.rounds is missing",
    ),
    "a file that is gone": (lambda folder: (folder / "run/rounds.jsonl").unlink(), "run/rounds.jsonl is missing"),
}


@pytest.fixture
def two_runs(tmp_path: Path) -> tuple[Path, Path]:
    _make_run(tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "new")
    return tmp_path / "base", tmp_path / "new"


def test_equal_runs_have_no_difference(two_runs: tuple[Path, Path]) -> None:
    found = compare_folders(*two_runs)
    assert (found.differences, found.gained, found.num_tensors) == ([], set(), 3)


@pytest.mark.parametrize("what", ALTERATIONS)
def test_an_altered_run_is_told_with_its_first_difference(what: str, two_runs: tuple[Path, Path]) -> None:
    alter, expected = ALTERATIONS[what]
    alter(two_runs[1])
    assert compare_folders(*two_runs).differences == [expected]


def test_a_new_field_is_listed_and_is_no_difference(two_runs: tuple[Path, Path]) -> None:
    (two_runs[1] / "run/rounds.jsonl").write_text('{"round": 1, "train_loss": 0.5, "f1": 0.25}\n')
    (two_runs[1] / "run/resolved.json").write_text('{"training": {"rounds": 1}, "machine": {"cores": 64}}')
    found = compare_folders(*two_runs)
    assert (found.differences, found.gained) == ([], {"run/rounds.jsonl[].f1"})


def test_new_tensors_and_new_runs_are_listed_and_are_no_difference(two_runs: tuple[Path, Path]) -> None:
    """Of a run of a new algorithm the folder says enough."""
    words = {"words": '{"names": ["a", "b"]}'}
    save_file({"feature": torch.eye(2), "lengths": torch.ones(3)}, two_runs[1] / "atlas.safetensors", words)
    shutil.copytree(two_runs[1] / "run", two_runs[1] / "krum-0")
    found = compare_folders(*two_runs)
    assert (found.differences, found.gained) == ([], {"atlas.safetensors: lengths", "krum-0/"})


def test_a_wanted_change_excuses_its_difference_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    same_bits = importlib.import_module("same_bits")
    wanted = same_bits.Wanted(r".*/portraits\.npz differs", "HEAD", "other pictures")
    lines = ["fedavg-0/portraits.npz differs", "fedavg-0/portraits.npz is missing", "atlas.safetensors: a differs"]
    assert same_bits.set_apart(lines, [wanted]) == (lines[1:], {"other pictures": 1})
    assert not wanted.is_expected("HEAD")


@pytest.mark.slow
def test_a_version_has_the_same_bits_as_itself() -> None:
    script = str(ROOT / "benchmarks" / "same_bits.py")
    done = subprocess.run([sys.executable, script, "--base", "HEAD", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| quick | 3 |" in done.stdout


def test_a_slower_version_is_named_and_a_slower_torch_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Medians 1.0 and 1.04 are 4 percent apart, 1.0 and 1.02 two; the outlier 9.0 moves no median."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    against = importlib.import_module("against")
    taken = {"A": [1.04, 1.04, 1.0], "B": [1.02, 1.02, 9.0], "import torch": [2.0, 2.0, 2.0]}
    found = {name: {"base": [1.0, 1.0, 1.0], "new": new} for name, new in taken.items()}
    table, slower = against.compare(found, 0.03)
    assert slower == ["A"]
    assert "| A | 1.0000 | 1.0400 | 1.040 |" in table


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_a_house_is_counted(tmp_path: Path) -> None:
    """Types and lazy imports close the cycle of a and b; c has one importer, the package's door."""
    long = "def long(self, a, b, c, d, e, f, g, *, h, i):\n" + "    a = 1\n" * 60
    files = {
        "src/fedatlas/__init__.py": "from fedatlas import c\nfrom fedatlas.room.a import x\n",
        "src/fedatlas/c.py": f"try:\n    pass\nexcept Exception:\n    pass\n{long}",
        "src/fedatlas/room/__init__.py": "",
        "src/fedatlas/room/a.py": "x = 1\ndef f():\n    from .b import y\n",
        "src/fedatlas/room/b.py": "if TYPE_CHECKING:\n    import fedatlas.room.a\n",
        "tests/test_c.py": "pytest.raises(ValueError, match='x')\n",
    }
    _write(tmp_path, files)
    house = House(tmp_path)
    assert house.first_level() == ["c", "room"]
    assert house.with_one_importer() == ["fedatlas.c", "fedatlas.room.b"]
    assert house.cycles() == ["fedatlas.room.a, fedatlas.room.b"]
    assert house.long_functions() == ["fedatlas.c.long (61)"]
    assert house.wide_functions() == ["fedatlas.c.long (9)"]
    assert house.broad_excepts() == ["fedatlas.c:3"]
    assert house.matches() == ["tests/test_c.py:1"]
    assert house.lines("src") == 72


def test_a_declared_import_closes_no_cycle(tmp_path: Path) -> None:
    sources = {"src/fedatlas/a.py": "import fedatlas.b\n", "src/fedatlas/b.py": "import fedatlas.a\n"}
    _write(tmp_path, sources)
    assert House(tmp_path).cycles() == ["fedatlas.a, fedatlas.b"]
    contract = '[[tool.importlinter.contracts]]\nignore_imports = ["fedatlas.a -> fedatlas.b"]\n'
    _write(tmp_path, {"pyproject.toml": contract})
    assert House(tmp_path).cycles() == []


def test_a_module_beside_a_cycle_is_not_in_it() -> None:
    edges = {"a": frozenset({"b"}), "b": frozenset({"a", "d"}), "c": frozenset({"a"}), "d": frozenset()}
    assert cycles(edges) == [["a", "b"]]
