"""When a run is saved: by the clock, beside the training, or at rounds that were asked for."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from fedatlas.algorithms import scaffold
from fedatlas.errors import RunFolderError
from fedatlas.runs import Disk, Run
from fedatlas.training import saving
from fedatlas.training.progress import Silent
from fedatlas.training.saving import Saver
from fedatlas.training.settings import Settings
from fedatlas.training.train import train
from raising import raises
from tiny import Norms, blob_federation, same_bits


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(saving, "time", clock)
    return clock


def _taking(clock: Clock, seconds: float) -> Callable[[], Callable[[], None]]:
    def finish() -> None:
        clock.now += seconds

    return lambda: finish


def test_a_save_of_half_a_second_is_followed_by_nine_and_a_half_without_one(clock: Clock) -> None:
    """0.5 s of 0.5 s + 9.5 s is a twentieth."""
    saver = Saver(every=None, beside=False)
    assert not saver.is_due()
    clock.now += 1.0
    assert saver.is_due()
    saver.save(_taking(clock, 0.5), wait=False)
    clock.now += 9.4
    assert not saver.is_due()
    clock.now += 0.2
    assert saver.is_due()
    assert saver.most_to_lose == pytest.approx(10.5)


def test_quick_saves_are_a_second_apart(clock: Clock) -> None:
    saver = Saver(every=None, beside=False)
    saver.save(_taking(clock, 0.001), wait=False)
    clock.now += 0.99
    assert not saver.is_due()
    clock.now += 0.02
    assert saver.is_due()


def test_rounds_that_were_asked_for_are_saved_and_no_others(clock: Clock) -> None:
    saver = Saver(every=3, beside=True)
    clock.now += 1000
    assert not saver.is_due()
    assert [round for round in range(1, 8) if saver.is_forced(round)] == [3, 6]


def test_a_save_beside_goes_on_while_the_caller_does_something_else() -> None:
    saver, goes_on = Saver(every=None, beside=True), threading.Event()
    saver.save(lambda: lambda: bool(goes_on.wait(10)) or None, wait=False)
    assert not saver.is_due()  # one at a time
    goes_on.set()
    saver.wait()
    assert saver.seconds_beside() > 0
    assert saver.seconds_beside() == 0


def test_an_error_beside_ends_the_run_with_that_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "LEAST_SECONDS", 0.0)

    def full(disk: Disk, file: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Disk, "sync", full)
    with raises(RunFolderError, "file-unwritable"):
        _scaffold(tmp_path / "run", rounds=200)
    monkeypatch.undo()
    _scaffold(tmp_path / "run", rounds=4, resume=True)
    _assert_same(tmp_path / "run", _scaffold(tmp_path / "whole", rounds=4).folder)


def _scaffold(folder: Path, *, rounds: int, resume: bool = False, progress: Any = False, **more: Any) -> Run:
    settings = Settings(rounds=rounds, cohort=2, batch_size=8, workers=1, model=Norms, evaluate_every=3, **more)
    return train(blob_federation(num_clients=6), scaffold(), settings, folder=folder, resume=resume, progress=progress)


def _assert_same(one: Path, other: Path) -> None:
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    first, second = Run(one).checkpoint(), Run(other).checkpoint()
    assert same_bits(first.state.shared, second.state.shared)
    assert first.clients.keys() == second.clients.keys()
    for client, memory in first.clients.items():
        assert all(same_bits(memory[part], second.clients[client][part]) for part in memory)


class PowerCut(BaseException):
    """No handler catches it."""


class CutAfter(Silent):
    """Cuts the power after a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def advance(self, round: int, metrics: object) -> None:
        if round == self.round:
            raise PowerCut


@pytest.mark.parametrize("limit", [None, 0.0])
def test_a_run_that_is_saved_beside_goes_on_to_the_same_bits(
    limit: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save is under way in most rounds, and clients' memory changes, is spilled and read meanwhile."""
    whole = _scaffold(tmp_path / "whole", rounds=14, checkpoint_every=14)
    monkeypatch.setattr(saving, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    sync = Disk.sync

    def slow(disk: Disk, file: IO[bytes]) -> None:
        time.sleep(0.01)
        sync(disk, file)

    monkeypatch.setattr(Disk, "sync", slow)
    for stop in (5, 9):
        with pytest.raises(PowerCut):
            _scaffold(tmp_path / "run", rounds=14, resume=True, memory_limit=limit, progress=CutAfter(stop))
        assert 0 < Run(tmp_path / "run").checkpoint().state.round <= stop
    _scaffold(tmp_path / "run", rounds=14, resume=True, memory_limit=limit)
    _assert_same(tmp_path / "run", whole.folder)


def test_ctrl_c_waits_for_the_save_that_is_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "LEAST_SECONDS", 0.0)
    sync = Disk.sync

    def slow(disk: Disk, file: IO[bytes]) -> None:
        time.sleep(0.05)
        sync(disk, file)

    class Stopped(Silent):
        def advance(self, round: int, metrics: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(Disk, "sync", slow)
    with pytest.raises(KeyboardInterrupt):
        _scaffold(tmp_path / "run", rounds=3, progress=Stopped())
    assert Run(tmp_path / "run").checkpoint().state.round == 1
