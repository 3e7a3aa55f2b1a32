import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedatlas.algorithms import fedavg, fedgr
from fedatlas.cli.app import app
from fedatlas.client import ClientRunner
from fedatlas.errors import RunFolderError, TrainingError
from fedatlas.parts import Adam
from fedatlas.runs import Run, RunWriter, check_same
from fedatlas.seeds import Seeds
from fedatlas.training.interrupts import held_interrupts
from fedatlas.training.loop import TrainingLoop
from fedatlas.training.settings import Settings
from fedatlas.training.train import train
from killable import main
from raising import raises
from tiny import Norms, blob_federation, same_bits

SCRIPT = Path(__file__).parents[1] / "killable.py"


def _assert_same_run(one: Path, other: Path) -> None:
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    first, second = Run(one).checkpoint(), Run(other).checkpoint()
    assert first.state.round == second.state.round
    assert same_bits(first.state.shared, second.state.shared)
    assert first.clients.keys() == second.clients.keys()
    for client, memory in first.clients.items():
        assert memory.keys() == second.clients[client].keys() == {"personal", "optimizer"}
        assert all(same_bits(memory[part], second.clients[client][part]) for part in memory)


def _kill_and_resume(folder: Path, kills: int, rng: random.Random) -> int:
    """Start the run again and again, killing it at random moments; return how many kills hit it running."""
    hits = 0
    for attempt in range(kills + 5):
        process = subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(1 + attempt % 2)])
        if hits < kills:
            rounds = folder / "rounds.jsonl"
            before = rounds.stat().st_size if rounds.exists() else 0
            while process.poll() is None and not (rounds.exists() and rounds.stat().st_size != before):
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.05))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                hits += process.wait() == -signal.SIGKILL
        if process.wait(timeout=60) == 0:
            break
    return hits


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_resumes_to_the_same_bits(tmp_path: Path, kills: int) -> None:
    main(str(tmp_path / "whole"), 1)
    hits = _kill_and_resume(tmp_path / "killed", kills, random.Random(kills))
    assert hits == kills
    assert len(Run(tmp_path / "killed").rounds) == 60
    _assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_the_number_of_workers_does_not_change_a_run(tmp_path: Path) -> None:
    main(str(tmp_path / "one"), 1)
    main(str(tmp_path / "two"), 2)
    _assert_same_run(tmp_path / "one", tmp_path / "two")


def _short(folder: Path, *, resume: bool = False, overwrite: bool = False, **changes: Any) -> Run:
    settings = Settings(**{"rounds": 4, "workers": 1, "model": Norms, **changes})
    return train(
        blob_federation(), fedavg(), settings, folder=folder, resume=resume, overwrite=overwrite, progress=False
    )


class InterruptedClock:
    """Raises KeyboardInterrupt in the middle of a round."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def __call__(self, *arguments: object) -> Iterable[object]:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return arguments


@pytest.mark.parametrize("at", [5, 9, 13, 20])
def test_ctrl_c_keeps_finished_rounds_and_resumes_to_the_same_bits(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _short(tmp_path / "whole", evaluate_every=3)
    original = ClientRunner.train
    clock = InterruptedClock(at)

    def interrupted(*arguments: object) -> object:
        clock()
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientRunner, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _short(tmp_path / "stopped", evaluate_every=3)
    monkeypatch.undo()
    finished = (at - 1) // 6
    if finished:
        assert Run(tmp_path / "stopped").checkpoint().state.round == finished
    _short(tmp_path / "stopped", evaluate_every=3, resume=True)
    assert (tmp_path / "stopped/rounds.jsonl").read_bytes() == (tmp_path / "whole/rounds.jsonl").read_bytes()
    assert same_bits(Run(tmp_path / "stopped").parameters(), Run(tmp_path / "whole").parameters())


@pytest.mark.parametrize("where", ["evaluate", "write"])
def test_ctrl_c_after_a_round_was_trained_keeps_that_round(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without it
    original, calls = getattr(TrainingLoop, f"_{where}"), []

    def pressed(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(TrainingLoop, f"_{where}", pressed)
    try:
        with pytest.raises(KeyboardInterrupt):
            _short(tmp_path / "stopped", evaluate_every=1)
    finally:
        signal.signal(signal.SIGINT, before)
    run = Run(tmp_path / "stopped")
    assert run.checkpoint().state.round == len(run.rounds) >= 3


def test_a_second_ctrl_c_is_not_waited_for() -> None:
    reached: list[int] = []

    def press_twice() -> None:
        with held_interrupts():
            for number in (1, 2):
                os.kill(os.getpid(), signal.SIGINT)
                reached.append(number)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            press_twice()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == [1]


def test_ctrl_c_while_records_are_written_leaves_none_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _short(tmp_path / "whole", evaluate_every=6)
    original = RunWriter.write

    def interrupted(writer: RunWriter, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        if name == "clients.jsonl" and lines[0]["round"] == 3:
            raise KeyboardInterrupt
        original(writer, name, lines)

    monkeypatch.setattr(RunWriter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _short(tmp_path / "stopped", evaluate_every=6, checkpoint_every=2)
    monkeypatch.undo()
    assert Run(tmp_path / "stopped").checkpoint().state.round == 2
    _short(tmp_path / "stopped", evaluate_every=6, checkpoint_every=2, resume=True)
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_training_that_breaks_keeps_the_rounds_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = ClientRunner.train, iter(range(1000))

    def breaks(*arguments: object) -> object:
        if next(calls) == 15:
            raise TrainingError("loss is nan", client="client-3", round=3, stage="training", code="training-diverged")
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientRunner, "train", breaks)
    with raises(TrainingError, "training-diverged"):
        _short(tmp_path / "broken", rounds=8, evaluate_every=8)
    assert Run(tmp_path / "broken").checkpoint().state.round == 2


def test_more_rounds_go_on_from_a_finished_run(tmp_path: Path) -> None:
    _short(tmp_path / "long", rounds=6)
    _short(tmp_path / "short", rounds=3)
    _short(tmp_path / "short", rounds=6, resume=True)
    assert (tmp_path / "short/rounds.jsonl").read_bytes() == (tmp_path / "long/rounds.jsonl").read_bytes()


def test_a_module_given_as_the_model_is_left_as_it_is(tmp_path: Path) -> None:
    model = Norms()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = _short(tmp_path / "first", model=model)
    assert same_bits(model.state_dict(), start)
    assert same_bits(first.parameters(), _short(tmp_path / "again", model=model).parameters())


def test_a_function_that_makes_the_model_draws_from_the_models_seed(tmp_path: Path) -> None:
    class Drawn(Norms):
        def __init__(self) -> None:
            super().__init__()
            torch.nn.init.normal_(self.head.weight)

    torch.manual_seed(1)
    first = _short(tmp_path / "first", model=Drawn)
    torch.manual_seed(2)
    assert same_bits(first.parameters(), _short(tmp_path / "again", model=Drawn).parameters())
    assert not same_bits(first.parameters(), _short(tmp_path / "other", model=Drawn, seed=Seeds(model=7)).parameters())


def test_the_four_seeds_act_apart(tmp_path: Path) -> None:
    base = _short(tmp_path / "base", cohort=3, rounds=2)
    sampling = _short(tmp_path / "sampling", cohort=3, rounds=2, seed=Seeds(sampling=5))
    batches = _short(tmp_path / "batches", cohort=3, rounds=2, seed=Seeds(batches=5))
    assert [r["cohort"] for r in base.rounds] != [r["cohort"] for r in sampling.rounds]
    assert [r["cohort"] for r in base.rounds] == [r["cohort"] for r in batches.rounds]
    assert not same_bits(base.parameters(), batches.parameters())


def test_a_folder_that_holds_a_run_is_not_overwritten_unasked(tmp_path: Path) -> None:
    _short(tmp_path / "run")
    kept = (tmp_path / "run/rounds.jsonl").read_bytes()
    with raises(RunFolderError, "folder-taken"):
        _short(tmp_path / "run", seed=1)
    assert (tmp_path / "run/rounds.jsonl").read_bytes() == kept
    _short(tmp_path / "run", seed=1, overwrite=True)
    assert (tmp_path / "run/rounds.jsonl").read_bytes() != kept


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with raises(RunFolderError, "folder-not-empty"):
        _short(tmp_path, overwrite=True)


def test_a_run_that_is_being_written_is_left_to_its_writer(tmp_path: Path) -> None:
    first = _short(tmp_path / "run", rounds=2)
    writer = RunWriter(first.folder, first.resolved, resume=True)
    kept = (first.folder / "rounds.jsonl").read_bytes()
    for options in ({"resume": True}, {"overwrite": True}):
        with raises(RunFolderError, "folder-locked"):
            _short(tmp_path / "run", rounds=4, **options)
    assert (first.folder / "rounds.jsonl").read_bytes() == kept
    writer.close()
    assert len(_short(tmp_path / "run", rounds=4, resume=True).rounds) == 4


def test_resuming_under_other_settings_is_refused_by_key(tmp_path: Path) -> None:
    _short(tmp_path / "run", rounds=2)
    with raises(RunFolderError, "settings-differ") as caught:
        _short(tmp_path / "run", batch_size=16, resume=True)
    assert "training.batch_size: 32 then, 16 now" in str(caught.value)


def test_a_run_of_an_older_version_goes_on_if_its_parts_do_the_same_today(tmp_path: Path) -> None:
    """As 0.1.0 wrote SCAFFOLD's optimizer and FedGR's objective."""
    run = {**_short(tmp_path / "run", rounds=1).resolved, "algorithm": fedgr().describe()}
    old = {**run["algorithm"], "optimizer": {**run["algorithm"]["optimizer"], "part": "PlainSGD"}}
    old["objective"] = [{k: v for k, v in own.items() if k != "after_training"} for own in old["objective"]]
    assert old["objective"] != run["algorithm"]["objective"]
    check_same({**run, "algorithm": old}, run, tmp_path)
    for now in (fedgr(after_training=True), fedgr().with_optimizer(Adam())):
        with raises(RunFolderError, "settings-differ"):
            check_same({**run, "algorithm": old}, {**run, "algorithm": now.describe()}, tmp_path)


def test_resuming_in_a_folder_of_other_files_says_one_thing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    result = CliRunner().invoke(app, ["train", "--folder", str(tmp_path), "--resume"])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert said == f"error: {tmp_path} is not empty and holds no run; choose another folder."


def test_resuming_from_an_altered_checkpoint_is_refused(tmp_path: Path) -> None:
    _short(tmp_path / "run", rounds=2)
    path = tmp_path / "run/checkpoints/server-000002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with raises(RunFolderError, "checkpoint-damaged"):
        _short(tmp_path / "run", rounds=4, resume=True)


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with raises(RunFolderError, "file-unwritable"):
        _short(tmp_path / "file" / "run")


def test_the_record_says_what_was_tested(tmp_path: Path) -> None:
    run = _short(tmp_path / "run", evaluate_every=2)
    assert [("evaluation" in entry) for entry in run.rounds] == [False, True, False, True]
    assert run.rounds[1]["tested"]["model"] == "the aggregated shared parameters"
    assert run.best["accuracy"] >= run.last["accuracy"]
    assert run.last == {"round": 4, **run.rounds[3]["evaluation"]}
    per_client = [line for line in run.clients if line["round"] == 4]
    assert {line["client"] for line in per_client} == {f"client-{i}" for i in range(6)}
    mean = sum(line["accuracy"] for line in per_client) / 6
    assert run.last["client_mean"] == pytest.approx(mean)
    assert torch.isfinite(run.parameters()["head.weight"]).all()


def test_records_can_be_read_while_a_run_goes_on(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", {})
    writer.open()
    writer.write("rounds.jsonl", [{"round": 1}, {"round": 2}])
    assert (tmp_path / "run/rounds.jsonl").read_text() == '{"round": 1}\n{"round": 2}\n'
    writer.close()


@pytest.mark.parametrize(
    ("first", "second", "goes_on"),
    [("loop", "graph", True), ("vmap", "vmap", True), ("vmap", "loop", False), ("graph", "vmap", False)],
)
def test_a_run_goes_on_with_an_engine_of_the_same_bits_only(
    first: str, second: str, goes_on: bool, tmp_path: Path
) -> None:
    _short(tmp_path, rounds=1, engine=first)
    if goes_on:
        assert len(_short(tmp_path, rounds=2, engine=second, resume=True).rounds) == 2
        return
    with pytest.raises(RunFolderError) as caught:
        _short(tmp_path, rounds=2, engine=second, resume=True)
    assert caught.value.code == "settings-differ"


class ReadOnly:
    """A file system that became read-only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = Path.open

        def refuse(*_: object, **__: object) -> None:
            raise OSError(30, "Read-only file system")

        def opened(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if set(mode) & set("wax+"):
                refuse()
            return original(path, mode, *rest, **more)

        monkeypatch.setattr(Path, "open", opened)
        for name in ("mkdir", "unlink", "replace", "write_bytes", "write_text"):
            monkeypatch.setattr(Path, name, refuse)


@pytest.mark.parametrize("rounds", [2, 4])
def test_resuming_on_a_read_only_file_system_is_one_line(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _short(tmp_path / "run", rounds=2)
    (tmp_path / "run/checkpoints/server-000009.safetensors").write_bytes(b"what a killed run left")
    ReadOnly(monkeypatch)
    with raises(RunFolderError, "file-unwritable"):
        _short(tmp_path / "run", rounds=rounds, resume=True)


def test_the_command_says_one_line_on_a_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command tidies up after an error, which must not hide the error."""
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(24, 4)), y=np.arange(24) % 2)
    command = ["train", "-d", str(tmp_path / "data.npz"), "--folder", str(tmp_path / "run"), "--model", "linear"]
    command += ["--workers", "1", "--set", "data.partition={ name = 'iid', num_clients = 2 }", "--rounds"]
    assert CliRunner().invoke(app, [*command, "1"]).exit_code == 0
    ReadOnly(monkeypatch)
    said = CliRunner().invoke(app, [*command, "2", "--resume"])
    assert isinstance(said.exception, SystemExit)
    assert (said.exit_code, "Read-only file system" in said.output) == (2, True)


def test_of_many_clients_only_the_last_evaluation_has_a_line_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedatlas.training.loop.MANY_CLIENTS", 5)
    monkeypatch.setattr("fedatlas.runs.writer.MOST_SPREAD", 5)
    run = _short(tmp_path / "run", rounds=3, cohort=2)
    assert [sum(line["round"] == number for line in run.clients) for number in (1, 2, 3)] == [2, 2, 6]
    assert all(line["evaluation"]["num_clients"] == 6 for line in run.rounds)
    assert "\n" not in (tmp_path / "run/resolved.json").read_text()
    few = _short(tmp_path / "few", rounds=3, cohort=2, resume=False)
    assert same_bits(run.parameters(), few.parameters())
