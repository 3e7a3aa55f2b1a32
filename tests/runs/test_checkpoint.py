import json
import resource
import signal
from pathlib import Path

import pytest
import torch

from fedatlas import train
from fedatlas.algorithms import fedbn
from fedatlas.errors import RunFolderError
from fedatlas.parts import Memory, ServerState
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.runs.files import atomic_write
from fedatlas.runs.manifest import MANIFEST, Claim
from fedatlas.training import Settings
from raising import raises
from tiny import Norms, blob_federation, same_bits

STATE = ServerState(
    round=3,
    shared={"b": torch.randn(3), "a": torch.randn(2, 2)},
    buffers={"mean": torch.zeros(2)},
    memory={"server/momentum": {"b": torch.ones(3), "a": torch.ones(2, 2)}, "sampler/uniform": {}},
)
CLIENTS: dict[int, Memory] = {0: {"personal": {"x": torch.randn(4)}}, 7: {"optimizer": {"momentum/a": torch.randn(2)}}}


def _saved(folder: Path) -> CheckpointStore:
    store = CheckpointStore(folder)
    store.save(STATE, CLIENTS, {0, 7}, {"rounds.jsonl": Claim(120, None)})
    return store


def test_a_checkpoint_comes_back_whole_and_in_order(tmp_path: Path) -> None:
    checkpoint = CheckpointStore(_saved(tmp_path).folder).load()
    assert checkpoint.state.round == 3
    assert list(checkpoint.state.shared) == ["b", "a"]
    assert same_bits(checkpoint.state.shared, STATE.shared)
    assert same_bits(checkpoint.state.memory["server/momentum"], STATE.memory["server/momentum"])
    assert same_bits(checkpoint.clients[7]["optimizer"], CLIENTS[7]["optimizer"])
    assert checkpoint.records == {"rounds.jsonl": Claim(120, None)}


def test_only_clients_that_changed_are_written_again(tmp_path: Path) -> None:
    store = _saved(tmp_path)
    before = (tmp_path / "client-000000-000003.safetensors").stat().st_mtime_ns
    changed: dict[int, Memory] = {**CLIENTS, 7: {"optimizer": {"momentum/a": torch.zeros(2)}}}
    store.save(ServerState(round=4, shared={}, buffers={}, memory={}), changed, {7}, {})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "client-000000-000003.safetensors",
        "client-000007-000004.safetensors",
        "clients-000000.jsonl",
        "manifest.json",
        "server-000004.safetensors",
    ]
    assert (tmp_path / "client-000000-000003.safetensors").stat().st_mtime_ns == before
    assert same_bits(CheckpointStore(tmp_path).load().clients[0]["personal"], CLIENTS[0]["personal"])


def test_a_run_writes_at_each_checkpoint_whom_it_trained_since_the_last(tmp_path: Path) -> None:
    """Three rounds of one client, a checkpoint after each: three lines in all, not one more for those before."""
    settings = Settings(checkpoint_every=1)
    run = train(blob_federation(), fedbn(), settings, model=Norms(), rounds=3, cohort=1, folder=tmp_path / "run")
    (journal,) = run.folder.rglob("clients-*.jsonl")
    assert len(journal.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "name", ["server-000003.safetensors", "client-000007-000003.safetensors", "clients-000000.jsonl"]
)
@pytest.mark.parametrize("harm", ["truncate", "alter", "remove"])
def test_a_harmed_file_is_refused_by_name(tmp_path: Path, name: str, harm: str) -> None:
    _saved(tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    if harm == "truncate":
        path.write_bytes(content[:-3])
    elif harm == "alter":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    else:
        path.unlink()
    with raises(RunFolderError, "checkpoint-damaged", path=str(path)):
        CheckpointStore(tmp_path).load()


@pytest.mark.parametrize("harm", ["truncate", "alter"])
def test_a_harmed_manifest_is_refused(tmp_path: Path, harm: str) -> None:
    _saved(tmp_path)
    path = tmp_path / MANIFEST
    if harm == "truncate":
        path.write_bytes(path.read_bytes()[:50])
    else:
        manifest = json.loads(path.read_bytes())
        path.write_text(json.dumps({**manifest, "round": 2}))
    with raises(RunFolderError, "checkpoint-damaged", path=str(path)):
        CheckpointStore(tmp_path).load()


def test_a_full_disk_leaves_the_last_checkpoint_intact(tmp_path: Path) -> None:
    store = _saved(tmp_path)
    big = ServerState(round=4, shared={"a": torch.zeros(100_000)}, buffers={}, memory={})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with raises(RunFolderError, "file-unwritable", path=str(tmp_path / "server-000004.safetensors")):
            store.save(big, CLIENTS, set(), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert CheckpointStore(tmp_path).load().state.round == 3


def test_an_atomic_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"first, longer")
    atomic_write(path, b"second")
    assert path.read_bytes() == b"second"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
