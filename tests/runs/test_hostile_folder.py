"""A run's folder that somebody made to do harm: it has links, or other content under right checksums."""

import io
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedatlas.cli.app import app
from fedatlas.errors import RunFolderError
from fedatlas.runs.files import atomic_write
from fedatlas.runs.manifest import CHECKPOINTS, claim_of, read_manifest
from fedatlas.runs.run import Run
from raising import raises

pytestmark = pytest.mark.attack("a run's folder means harm")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line, with a config and portraits."""
    root = tmp_path_factory.mktemp("hostile")
    labels = np.arange(36) % 3
    inputs = (np.random.default_rng(0).normal(size=(36, 4)) + labels[:, None]).astype(np.float32)
    np.savez(root / "data.npz", x=inputs, y=labels)
    assert _train(root, root / "run", 2).exit_code == 0
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def _train(root: Path, folder: Path, rounds: int):
    command = ["train", "-d", str(root / "data.npz"), "--folder", str(folder), "--model", "linear", "--workers", "1"]
    command += ["--set", "data.partition={ name = 'iid', num_clients = 3 }", "--rounds", str(rounds), "--resume"]
    return CliRunner().invoke(app, command)


def _is_one_message(result) -> bool:
    return result.exit_code == 2 and isinstance(result.exception, SystemExit) and "error:" in result.output


@pytest.mark.parametrize(
    "name",
    [
        ".lock",
        "rounds.jsonl",
        "config.toml",
        "portraits.npz",
        "report.html",
        "checkpoints/manifest.json",
        "checkpoints",
    ],
)
def test_a_link_in_a_run_s_folder_is_not_followed(name: str, folder: Path, made: Path) -> None:
    outside, place = folder.parent / "outside", folder / name
    if place.is_dir():
        shutil.move(place, outside)
    else:
        outside.write_bytes(place.read_bytes())
        place.unlink()
    before = {path: path.read_bytes() for path in [outside, *outside.rglob("*")] if path.is_file()}
    place.symlink_to(outside)
    for result in (_train(made, folder, 3), CliRunner().invoke(app, ["report", str(folder)])):
        assert _is_one_message(result), result.output
    with raises(RunFolderError, "path-outside"):
        Run(folder)
    assert {path: path.read_bytes() for path in before} == before


def test_a_pipe_in_a_run_s_folder_is_not_waited_for(folder: Path) -> None:
    (folder / "portraits.npz").unlink()
    os.mkfifo(folder / "portraits.npz")
    with raises(RunFolderError, "path-outside", got="portraits.npz"):
        Run(folder)


def test_a_file_is_never_written_through_a_link_that_waits_under_its_partial_name(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".page.html.partial").symlink_to(tmp_path / "precious")
    atomic_write(tmp_path / "page.html", b"theirs")
    assert (tmp_path / "precious").read_text() == "mine"
    assert ((tmp_path / "page.html").read_bytes(), (tmp_path / "page.html").is_symlink()) == (b"theirs", False)


def _corrupt_stream(content: bytes) -> bytes:
    """Bytes within the members that are no stream of zlib, under a directory that is whole."""
    changed = bytearray(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            start = member.header_offset + 50 + len(member.filename)
            changed[start : start + member.compress_size - 25] = b"\xff" * (member.compress_size - 25)
    return bytes(changed)


ALTERED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "another key": ("rounds.jsonl", lambda content: content.replace(b'"accuracy"', b'"accurabz"', 1)),
    "a text for a number": ("rounds.jsonl", lambda content: content.replace(b'"accuracy": 0', b'"accuracy": "0"', 1)),
    "bytes that are no text": ("rounds.jsonl", lambda content: content.replace(b'"accuracy"', b'"accur\xffcy"', 1)),
    "a line that is an object of something else": ("rounds.jsonl", lambda content: content + b'{"round": 4}\n'),
    "a line that is a list": ("rounds.jsonl", lambda content: content + b"[3]\n"),
    "a line twice": ("rounds.jsonl", lambda content: content + content.splitlines(keepends=True)[-1]),
    "a weight of text": ("clients.jsonl", lambda content: content.replace(b'"weight": ', b'"weight": "x", "y": ', 1)),
    "examples without end": (
        "clients.jsonl",
        lambda content: content.replace(b'"num_tested": ', b'"num_tested": null, "y": ', 1),
    ),
    "seconds that are no number": (
        "timings.jsonl",
        lambda c: c.replace(b'"train": ', b'"y": 1, "train": NaN, "z": ', 1),
    ),
    "seconds without end": ("timings.jsonl", lambda c: re.sub(rb'"train": [^,]+', b'"train": 1e999', c, count=1)),
    "a corrupt stream": ("portraits.npz", _corrupt_stream),
    "a config that is no TOML": ("config.toml", lambda content: content + b"\n[[["),
    "a config that is no text": ("config.toml", lambda content: b"\xff\xfe" + content),
    "a config of other types": ("config.toml", lambda content: b"atlas = 3\ndata = [1]\n"),
    "a config nested without end": ("config.toml", lambda content: b"x = " + b"[" * 50_000),
}


@pytest.mark.parametrize("harm", ALTERED)
def test_other_content_under_a_right_checksum_is_one_message(harm: str, folder: Path, made: Path) -> None:
    name, alter = ALTERED[harm]
    content = alter((folder / name).read_bytes())
    assert content != (folder / name).read_bytes()
    (folder / name).write_bytes(content)
    manifest = read_manifest(folder / CHECKPOINTS)
    kind = "records" if name in manifest.records else "files"
    replace(manifest, **{kind: {**getattr(manifest, kind), name: claim_of(content)}}).write(folder / CHECKPOINTS)
    assert _is_one_message(CliRunner().invoke(app, ["report", str(folder)]))
    resumed = _train(made, folder, 3)
    assert resumed.exit_code == 0 or _is_one_message(resumed), resumed.output
