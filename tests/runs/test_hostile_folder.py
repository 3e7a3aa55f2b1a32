"""A run's folder that somebody made to do harm: it has links, or other content under right checksums."""

import io
import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_tensors
from typer.testing import CliRunner

from benchmarks.broken import corrupt_stream
from fedatlas.cli.app import app
from fedatlas.errors import RunFolderError
from fedatlas.runs.files import Entry, atomic_write
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


def _forge(folder: Path, name: str, content: bytes) -> None:
    """Put another content into a run's file, and its checksum into the manifest."""
    (folder / name).write_bytes(content)
    manifest = read_manifest(folder / CHECKPOINTS)
    kind = "records" if name in manifest.records else "files"
    replace(manifest, **{kind: {**getattr(manifest, kind), name: claim_of(content)}}).write(folder / CHECKPOINTS)


def _settings(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        settings = json.loads(content)
        change(settings["federation"]["clients"][0])
        return json.dumps(settings).encode()

    return changed


def _portraits(**changes: Any) -> Callable[[bytes], bytes]:
    def changed(content: bytes) -> bytes:
        buffer = io.BytesIO()
        with np.load(io.BytesIO(content)) as arrays:
            np.savez_compressed(buffer, **{**arrays, **changes})  # type: ignore[arg-type]
        return buffer.getvalue()

    return changed


_LARGE = np.zeros((3, 1, 1, 2000, 2000), np.uint8)
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
    "a corrupt stream": ("portraits.npz", corrupt_stream),
    "vectors that are no numbers": ("portraits.npz", _portraits(vectors=np.full((3, 11), np.nan, np.float32))),
    "pictures of any size": ("portraits.npz", _portraits(images=_LARGE, pictured=np.arange(3))),
    "counts of labels that are nested": ("resolved.json", _settings(lambda one: one.update(label_counts=[[1], 2, 3]))),
    "counts of other classes": ("resolved.json", _settings(lambda one: one["label_counts"].append(1))),
    "a check nested without end": ("check.json", lambda content: b"[" * 100_000),
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
    _forge(folder, name, content)
    assert _is_one_message(CliRunner().invoke(app, ["report", str(folder)]))
    resumed = _train(made, folder, 3)
    assert resumed.exit_code == 0 or _is_one_message(resumed), resumed.output


@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "resolved.json", "config.toml", "portraits.npz", "check.json", "checkpoints/manifest.json"]
)
def test_a_file_larger_than_the_memory_is_not_read(name: str, folder: Path, made: Path) -> None:
    """A terabyte of zeros takes no room on a disk, nor in an archive."""
    os.truncate(folder / name, 2**40)
    for result in (_train(made, folder, 3), CliRunner().invoke(app, ["report", str(folder)])):
        assert _is_one_message(result), result.output
    with raises(RunFolderError, "out-of-memory", path=str(folder / name)):
        Run(folder)


def _state(**tensors: torch.Tensor) -> bytes:
    return save_tensors({name.replace("__", "|"): tensor for name, tensor in tensors.items()})


_LYING = json.dumps({"0|shared|w": {"dtype": "F32", "shape": [2, 10**15], "data_offsets": [0, 8 * 10**15]}}).encode()
STATES: dict[str, bytes] = {
    "no tensors at all": b"hello",
    "a header that lies": struct.pack("<Q", len(_LYING)) + _LYING,
    "a header without end": struct.pack("<Q", 2**62) + b"{}",
    "tensors of something else": _state(x=torch.zeros(2)),
    "another network": _state(**{"000000__shared__head.weight": torch.zeros(10**15, 0)}),
}


@pytest.mark.parametrize("harm", STATES)
def test_another_model_under_a_right_checksum_is_one_message(harm: str, folder: Path, made: Path) -> None:
    manifest = read_manifest(folder / CHECKPOINTS)
    assert manifest.server is not None
    (folder / CHECKPOINTS / manifest.server.file).write_bytes(STATES[harm])
    claim = Entry(manifest.server.file, len(STATES[harm]), claim_of(STATES[harm]).sha256 or "")
    replace(manifest, server=claim).write(folder / CHECKPOINTS)
    export = CliRunner().invoke(app, ["export", str(folder), "--to", str(folder.parent / "model.safetensors")])
    for result in (_train(made, folder, 3), export):
        assert _is_one_message(result), result.output
    report = CliRunner().invoke(app, ["report", str(folder)])  # it shows records, whatever the network is
    assert _is_one_message(report) or (report.exit_code == 0 and harm == "another network")


def test_groups_without_end_are_not_made(folder: Path) -> None:
    replace(read_manifest(folder / CHECKPOINTS), groups=10**12).write(folder / CHECKPOINTS)
    with raises(RunFolderError, "checkpoint-damaged"):
        Run(folder).checkpoint()


def test_a_name_from_a_run_s_folder_does_not_steer_the_terminal(folder: Path) -> None:
    name = "\x1b[2J\x1b]0;mine\x07\ud800"
    changed = json.loads((folder / "resolved.json").read_bytes())
    changed["algorithm"]["name"] = name
    _forge(folder, "resolved.json", json.dumps(changed).encode())
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "\\x1b[2J" in result.output
