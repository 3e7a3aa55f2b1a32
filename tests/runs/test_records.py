"""A run's files cannot be deleted, cut short, lengthened or altered unseen: resume and report refuse them by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedatlas import train
from fedatlas.algorithms import fedavg
from fedatlas.errors import RunFolderError
from fedatlas.report import write_report
from fedatlas.runs.files import digest
from fedatlas.runs.manifest import Manifest, add_file, announce, plain_name, read_manifest
from fedatlas.runs.run import Run
from fedatlas.training import Settings
from raising import raises
from tiny import Norms, blob_federation

FILES = ("rounds.jsonl", "clients.jsonl", "timings.jsonl", "resolved.json", "portraits.npz")


def _train(folder: Path, *, rounds: int = 2, resume: bool = False, overwrite: bool = False) -> Run:
    settings = Settings(rounds=rounds, workers=1, model=Norms)
    federation = blob_federation(num_clients=3)
    return train(federation, fedavg(), settings, folder=folder, resume=resume, overwrite=overwrite, progress=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records") / "run"
    _train(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def _flipped(content: bytes) -> bytes:
    """A digit becomes another one, so that the file stays well-formed where it is text."""
    place = next(i for i, byte in enumerate(content) if chr(byte).isdigit())
    other = b"7" if content[place : place + 1] != b"7" else b"3"
    return content[:place] + other + content[place + 1 :]


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "flipped": _flipped,
    "cut short": lambda content: content[:-1],
    "emptied": lambda content: b"",
    "longer": lambda content: content + content[:40],
    "NULs": lambda content: b"\0" * len(content),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", [*HARMS, "deleted"])
def test_a_harmed_file_is_refused_by_name_by_resume_and_report(folder: Path, name: str, harm: str) -> None:
    path = folder / name
    if harm == "deleted":
        path.unlink()
    else:
        path.write_bytes(HARMS[harm](path.read_bytes()))
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"}
    cut = harm == "longer" and name.endswith(".jsonl")
    if cut:  # lines after the checkpoint are cut off and written again
        assert len(_train(folder, rounds=3, resume=True).rounds) == 3
        return
    with pytest.raises(RunFolderError) as caught:
        _train(folder, rounds=3, resume=True)
    assert name in str(caught.value)
    with pytest.raises(RunFolderError) as caught:
        write_report([Run(folder)], folder / "report.html")
    assert name in str(caught.value)
    for file, content in before.items():
        assert file.read_bytes() == content, "nothing may be repaired, extended or written anew"


@pytest.mark.parametrize("name", FILES[:3])
def test_lines_that_a_finished_run_did_not_write_are_refused(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[-1])
    with raises(RunFolderError, "file-altered", path=str(path)):
        getattr(Run(folder), path.stem)


def test_rounds_out_of_order_are_refused_where_nothing_claims_them(folder: Path) -> None:
    path = folder / "rounds.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(second + first)
    Manifest().write(folder / "checkpoints")
    with raises(RunFolderError, "file-altered", line=1):
        Run(folder).rounds  # noqa: B018


def test_a_record_nested_without_end_is_refused(folder: Path) -> None:
    (folder / "rounds.jsonl").write_bytes(b"[" * 100_000 + b"\n")
    Manifest().write(folder / "checkpoints")
    with raises(RunFolderError, "file-altered", line=1):
        Run(folder).rounds  # noqa: B018


@pytest.mark.parametrize("name", ["checkpoints/manifest.json", "resolved.json"])
def test_a_run_whose_center_was_deleted_does_not_begin_again_in_silence(folder: Path, name: str) -> None:
    (folder / name).unlink()
    kept = (folder / "rounds.jsonl").read_bytes()
    with pytest.raises(RunFolderError) as caught:
        _train(folder, rounds=3, resume=True)
    assert name in str(caught.value)
    assert (folder / "rounds.jsonl").read_bytes() == kept


def test_a_run_of_format_2_goes_on(folder: Path, tmp_path: Path) -> None:
    """Version 0.1.0 claimed the lengths of records only."""
    path = folder / "checkpoints/manifest.json"
    old = json.loads(path.read_bytes())
    body = {key: old[key] for key in ("round", "server", "clients")} | {"format": 2}
    body["records"] = {name: claim["bytes"] for name, claim in old["records"].items()}
    path.write_text(json.dumps({"sha256": digest(json.dumps(body, sort_keys=True).encode()), **body}))
    assert len(Run(folder).rounds) == 2
    _train(folder, rounds=3, resume=True)
    _train(tmp_path / "whole", rounds=3)
    assert (folder / "rounds.jsonl").read_bytes() == (tmp_path / "whole/rounds.jsonl").read_bytes()
    assert read_manifest(folder / "checkpoints").records["rounds.jsonl"].sha256 is not None


def test_a_manifest_names_no_file_elsewhere() -> None:
    for name in ("../x", "/etc/passwd", "a/b", "..", ".", "", "a\0b", 3, None):
        with pytest.raises(ValueError, match="not a file's name"):
            plain_name(name)


def test_a_file_that_is_replaced_is_claimed_before_and_after(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the manifest and the file finds a run that can be opened."""
    manifest = read_manifest(folder / "checkpoints")
    whole = (folder / "resolved.json").read_bytes()
    monkeypatch.setattr("fedatlas.runs.manifest.atomic_write", lambda *_: None)
    announce(folder, manifest, {"resolved.json": whole + b" "})  # the file itself is not written
    monkeypatch.undo()
    announce(folder, manifest, {"resolved.json": whole})
    Run(folder).verify()
    replaced = announce(folder, manifest, {"resolved.json": whole + b" "})
    assert replaced.coming == {}
    Run(folder).verify()


def test_what_is_added_to_a_run_later_is_claimed_too(folder: Path) -> None:
    add_file(folder, "adapted.json", b"[]")
    assert Run(folder).adapted == []
    (folder / "adapted.json").write_bytes(b"[ ]")
    with raises(RunFolderError, "file-altered", path=str(folder / "adapted.json")):
        Run(folder).adapted  # noqa: B018
    with raises(RunFolderError, "file-altered", path=str(folder / "adapted.json")):
        Run(folder).verify()
