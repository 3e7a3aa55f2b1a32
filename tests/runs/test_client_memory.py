from pathlib import Path

import pytest
import torch

import fedatlas
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.parts import Memory, ServerState
from fedatlas.runs import checkpoint
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.runs.client_memory import ClientMemories
from fedatlas.runs.run import Run
from fedatlas.runs.tensor_files import TensorFiles
from fedatlas.training import Settings, TrainingPlan
from raising import raises
from tiny import Norms, blob_federation, same_bits

STATE = ServerState(round=1, shared={"w": torch.ones(2)}, buffers={}, memory={})


def _memory(value: float) -> Memory:
    """Eighty bytes."""
    return {"part": {"b": torch.full((10,), float(value)), "a": torch.full((10,), -float(value))}}


def test_memories_beyond_the_limit_lie_in_files_and_come_back_the_same(tmp_path: Path) -> None:
    memories = ClientMemories(TensorFiles(tmp_path), limit=200)
    for client in range(5):
        memories[client] = _memory(client / 3)
    assert memories.held_bytes == 160
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"client-00000{i}-000001.safetensors" for i in range(3)]
    assert list(memories) == [0, 1, 2, 3, 4]
    for client, memory in memories.items():
        assert list(memory["part"]) == ["b", "a"]
        assert same_bits(memory["part"], _memory(client / 3)["part"])
        assert memories.held_bytes <= 200


def test_the_memory_longest_not_used_leaves_first(tmp_path: Path) -> None:
    memories = ClientMemories(TensorFiles(tmp_path), limit=200)
    memories |= {0: _memory(0), 1: _memory(1)}
    assert memories[0] is memories[0]
    memories[2] = _memory(2)
    assert [path.name for path in tmp_path.iterdir()] == ["client-000001-000001.safetensors"]


def test_a_checkpoint_names_the_files_that_are_there_and_reads_no_more_than_the_limit(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    memories = store.memories(200, lambda tensor: tensor)
    memories |= {client: _memory(client) for client in range(5)}
    early = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    store.save(STATE, memories, set(memories), {})
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in early} == early
    found = CheckpointStore(tmp_path).load(limit=700).clients
    assert 0 < found.held_bytes <= 700
    assert all(same_bits(found[client]["part"], _memory(client)["part"]) for client in range(5))
    assert same_bits(CheckpointStore(tmp_path).load_state().shared, STATE.shared)


def test_the_last_checkpoint_stays_whole_while_memories_go_to_disk_after_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    memories = store.memories(0, lambda tensor: tensor)
    memories |= {0: _memory(0), 1: _memory(1)}
    store.save(STATE, memories, {0, 1}, {})
    memories[0] = _memory(7)
    memories[0] = _memory(8)
    resumed = CheckpointStore(tmp_path)
    assert same_bits(resumed.load().clients[0]["part"], _memory(0)["part"])
    resumed.clear_leftovers()
    assert len(list(tmp_path.glob("client-*"))) == 2
    memories[0] = _memory(9)
    store.save(ServerState(round=2, shared={}, buffers={}, memory={}), memories, {0}, {})
    assert sorted(path.name for path in tmp_path.glob("client-*")) == [
        "client-000000-000002.safetensors",
        "client-000001-000001.safetensors",
    ]
    assert same_bits(CheckpointStore(tmp_path).load().clients[0]["part"], _memory(9)["part"])


def test_a_memory_that_was_left_on_disk_is_checked_when_it_is_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(STATE, {0: _memory(0), 1: _memory(1)}, {0, 1}, {})
    path = tmp_path / "client-000001-000001.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found = CheckpointStore(tmp_path).load(limit=0).clients
    with raises(RunFolderError, "checkpoint-damaged", path=str(path)):
        found[1]
    path.write_bytes(content[:-1])
    with raises(RunFolderError, "checkpoint-damaged", path=str(path)):
        CheckpointStore(tmp_path).load(limit=0)


def test_the_journal_is_written_again_before_it_grows_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SPARE_LINES", 50)
    store, lines = CheckpointStore(tmp_path), []
    memories = store.memories(None, lambda tensor: tensor)
    for number in range(1, 20):
        for client in range(10):
            memories[client] = {"part": {"x": torch.tensor(float(number))}}
        store.save(ServerState(round=number, shared={}, buffers={}, memory={}), memories, set(range(10)), {})
        (journal,) = tmp_path.glob("clients-*.jsonl")
        lines.append(len(journal.read_bytes().splitlines()))
    assert max(lines) <= 5 * 10 + 50 < 190
    assert len(list(tmp_path.glob("client-*"))) == 10
    assert float(CheckpointStore(tmp_path).load().clients[4]["part"]["x"]) == number


def test_a_small_limit_changes_no_bit_and_resumes(tmp_path: Path) -> None:
    def play(folder: str, rounds: int, limit: float | None, resume: bool = False) -> Run:
        options = {"folder": tmp_path / folder, "model": Norms, "rounds": rounds, "cohort": 3, "workers": 1}
        settings = Settings(memory_limit=limit, checkpoint_every=2)
        return fedatlas.train(blob_federation(8), fedatlas.algorithms.scaffold(), settings, resume=resume, **options)

    whole = play("whole", 6, None)
    play("parts", 3, 1e-6)
    parts = play("parts", 6, 2e-6, resume=True)
    assert same_bits(whole.parameters(), parts.parameters())
    assert whole.rounds == parts.rounds
    one, other = whole.checkpoint().clients, parts.checkpoint().clients
    assert list(one) == list(other)
    assert all(same_bits(one[client]["scaffold"], other[client]["scaffold"]) for client in one)


def test_a_negative_limit_is_refused() -> None:
    with raises(UsageError, "out-of-range", got=-1):
        TrainingPlan(memory_limit=-1)


def test_a_resumed_run_writes_no_file_that_the_checkpoint_names(tmp_path: Path) -> None:
    """Killed after that, it finds the checkpoint as it was."""
    store = CheckpointStore(tmp_path)
    memories = store.memories(0, lambda tensor: tensor)
    memories |= {0: _memory(0), 1: _memory(1)}
    store.save(STATE, memories, {0, 1}, {})
    resumed = CheckpointStore(tmp_path).load(limit=0).clients
    resumed[0] = _memory(7)
    assert same_bits(CheckpointStore(tmp_path).load().clients[0]["part"], _memory(0)["part"])


def test_what_a_checkpoint_names_is_brought_to_the_disk_once(tmp_path: Path) -> None:
    files = TensorFiles(tmp_path)
    memories = ClientMemories(files, limit=0)
    memories[0] = _memory(0)
    memories.entry(0)
    assert [entry.file for entry in memories.take_unsettled()] == ["client-000000-000001.safetensors"]
    memories.entry(0)
    assert memories.take_unsettled() == []


def test_what_a_killed_run_left_behind_the_journal_is_not_part_of_it(tmp_path: Path) -> None:
    """It is neither read nor written behind."""
    store = CheckpointStore(tmp_path)
    store.save(STATE, {0: _memory(0), 1: _memory(1)}, {0, 1}, {})
    (journal,) = tmp_path.glob("clients-*.jsonl")
    with journal.open("ab") as file:
        file.write(b'{"client": 1, "fi')
    resumed = CheckpointStore(tmp_path)
    clients = dict(resumed.load().clients)
    resumed.save(ServerState(round=2, shared={}, buffers={}, memory={}), clients | {1: _memory(9)}, {1}, {})
    found = CheckpointStore(tmp_path).load().clients
    assert same_bits(found[0]["part"], _memory(0)["part"])
    assert same_bits(found[1]["part"], _memory(9)["part"])


def test_a_round_that_is_saved_twice_keeps_its_files(tmp_path: Path) -> None:
    """The second time the clients' files have the names of the first, and must not be cleared away as old ones."""
    store = CheckpointStore(tmp_path)
    for value in (1, 2):
        store.save(STATE, {0: _memory(value)}, {0}, {})
    assert same_bits(CheckpointStore(tmp_path).load().clients[0]["part"], _memory(2)["part"])


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr("fedatlas.runs.manifest.FORMAT", 99)
        CheckpointStore(tmp_path).save(STATE, {}, set(), {})
    with raises(RunFolderError, "checkpoint-damaged") as caught:
        CheckpointStore(tmp_path).load()
    assert "another version" in str(caught.value)


def test_journals_that_no_manifest_names_are_cleared_away(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(STATE, {0: _memory(0)}, {0}, {})
    (tmp_path / "clients-000009.jsonl").write_text("{}")
    store.clear_leftovers()
    assert [path.name for path in tmp_path.glob("clients-*")] == ["clients-000000.jsonl"]
