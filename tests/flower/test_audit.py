"""A node's audit log, and the folders that hold it and the client's memory: only the owner writes there."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedatlas.cli.flower import app as commands
from fedatlas.errors import RunFolderError
from fedatlas.flower.deploy.keys import make_keys
from fedatlas.flower.node.audit import AuditLog, line_hash
from fedatlas.flower.node.memory import FolderStore
from fedatlas.runs import private_folder
from raising import raises

pytestmark = pytest.mark.attack("a server means harm")


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda lines: [lines[0].replace("sent", "kept"), *lines[1:]], 1),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[0], lines[0], *lines[1:]], 2),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [*lines[:-1], lines[-1].rstrip("\n")], 3),
        (lambda lines: [*lines, "[" * 100_000 + "\n"], 4),
        (lambda lines: [lines[0], forged(lines[1]), *lines[2:]], 3),
    ],
)
def test_an_altered_log_is_found_at_its_line(
    damage: Callable[[list[str]], list[str]], line: int, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(3):
        AuditLog(path).add({"request": "train", "round": number, "answer": "sent", "bytes": 10})
    path.write_text("".join(damage(path.read_text().splitlines(keepends=True))))
    with raises(RunFolderError, "audit-altered", line=line):
        list(AuditLog(path).entries())
    result = CliRunner().invoke(commands, ["audit", str(path)])
    assert result.exit_code == 2
    assert f"line {line} does not follow" in " ".join(result.output.split())


def forged(line: str) -> str:
    """Return a line with other content and a hash that fits it: the next line still tells."""
    entry = {**json.loads(line), "bytes": 1}
    return json.dumps({**entry, "hash": line_hash(entry)}) + "\n"


def test_a_line_s_hash_is_that_of_the_line_before_it_and_of_what_it_says(tmp_path: Path) -> None:
    """sha256 of 64 zeros and {"answer": "sent", "number": 1}, worked out with sha256sum."""
    entry = {"number": 1, "answer": "sent", "previous": "0" * 64}
    assert line_hash(entry) == "d206d2fba46dde361844e9c2063a5a04bc8b9c49667afe9d12197373ccc17648"


def test_a_log_that_lost_its_end_is_found_by_a_hash_that_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(3):
        AuditLog(path).add({"request": "train", "round": number, "answer": "sent", "bytes": 10})
    noted = json.loads(path.read_text().splitlines()[-1])["hash"]
    assert CliRunner().invoke(commands, ["audit", str(path), "--contains", noted]).exit_code == 0
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert CliRunner().invoke(commands, ["audit", str(path)]).exit_code == 0
    assert CliRunner().invoke(commands, ["audit", str(path), "--contains", noted]).exit_code == 2


def test_a_request_of_any_length_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    names = {"algorithm": "x" * (3 << 20), "left": {f"tensor-{i}": [1] for i in range(100_000)}, "answer": "refused"}
    for _ in range(2):
        log.add(names)
    log.add({"answer": "sent"})
    first, _, last = log.entries()
    assert (first["algorithm"]["characters"], first["answer"], last["number"]) == (3 << 20, "refused", 3)
    assert len((tmp_path / "audit.jsonl").read_bytes()) < 10_000


def test_only_its_owner_can_enter_a_node_s_memory(tmp_path: Path) -> None:
    memory = tmp_path / "state" / "memory" / "client-1"
    FolderStore(memory / "00c0ffee").put("1", {"part": {"x": torch.zeros(2)}}, ())
    AuditLog(memory / "audit.jsonl").add({"answer": "sent"})
    made = [memory.parent.parent, memory.parent, memory, memory / "00c0ffee"]
    assert {oct(folder.stat().st_mode & 0o777) for folder in made} == {"0o700"}
    assert oct((memory / "audit.jsonl").stat().st_mode & 0o777) == "0o600"


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_memory_folder_that_everybody_can_write_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory").chmod(mode)
    with raises(RunFolderError, "file-unsafe", path=str(tmp_path / "memory")):
        AuditLog(tmp_path / "memory" / "audit.jsonl").add({"answer": "sent"})
    with raises(RunFolderError, "file-unsafe"):
        FolderStore(tmp_path / "memory").put("1", {}, ())
    assert not list((tmp_path / "memory").iterdir())


def test_a_memory_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory").mkdir(mode=0o755)
    private_folder(tmp_path / "memory")
    if os.getuid() == 0:
        os.chown(tmp_path / "memory", 4321, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4321)
    with raises(RunFolderError, "file-unsafe"):
        private_folder(tmp_path / "memory")


def test_a_link_in_place_of_the_log_or_of_a_key_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "audit.jsonl").symlink_to(tmp_path / "precious")
    with raises(RunFolderError, "file-unwritable"):
        AuditLog(tmp_path / "audit.jsonl").add({"answer": "sent"})
    (tmp_path / "keys" / "nodes").mkdir(parents=True)
    (tmp_path / "keys" / "nodes" / "a.key").symlink_to(tmp_path / "elsewhere")
    key = make_keys(tmp_path / "keys", nodes=["a"]).node_key("a")
    assert (key.is_symlink(), oct(key.stat().st_mode & 0o777)) == (False, "0o600")
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()
