"""Engines by name: which there are, which one is chosen, and one that is not part of fedatlas."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
import torch
from torch import nn

from engines.test_vmap import Smooth
from fedatlas.algorithms import fedavg
from fedatlas.client import ClientRunner, LocalWork
from fedatlas.engines.engine import Engine, Result, Work, choose_engine, gives_same_bits
from fedatlas.engines.loop import LoopEngine
from fedatlas.engines.registry import ENGINES, engine
from fedatlas.engines.simulator import Simulator
from fedatlas.engines.vmap import StackedTraining
from fedatlas.engines.workers import TaskRunner
from fedatlas.errors import UsageError
from fedatlas.parts import Assignment
from tiny import Norms, blob_federation, same_bits


def tasks(
    *,
    workers: int = 1,
    compile: bool = False,
    frozen: bool = False,
    device: str = "cpu",
    network: Callable[[], nn.Module] = Norms,
) -> TaskRunner:
    """Return clients that train on a CPU; ``device`` is what engines are told."""
    model = network()
    if frozen:
        next(model.parameters()).requires_grad_(False)
    work = LocalWork(compile=compile)
    found = TaskRunner(ClientRunner(fedavg(), model, blob_federation(num_clients=4), work, seed=0), workers)
    found.device = torch.device(device)
    return found


def test_the_text_of_the_files_names_the_engines_and_whether_they_give_the_same_bits() -> None:
    found = {name: entry.facts["same_bits"] for name, entry in ENGINES.entries.items()}
    assert found == {"graph": True, "loop": True, "workers": True, "vmap": False}
    assert all(entry.summary for entry in ENGINES.entries.values())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "graph"),
        ({"workers": 2}, "graph"),
        ({"frozen": True}, "loop"),
        ({"frozen": True, "workers": 2}, "workers"),
        ({"compile": True, "workers": 2}, "workers"),
        ({"device": "cuda", "compile": True}, "graph"),
        ({"device": "cuda", "frozen": True}, "graph"),
        ({"device": "cuda"}, "graph"),  # a norm over the batch forbids padding
        ({"device": "cuda", "network": Smooth}, "vmap"),
    ],
)
def test_auto_takes_the_engine_that_suits_best(given: dict[str, object], expected: str) -> None:
    assert choose_engine("auto", tasks(**given)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "given"), [("graph", {"compile": True}), ("graph", {"frozen": True}), ("vmap", {"compile": True})]
)
def test_an_engine_that_cannot_train_says_why(name: str, given: dict[str, bool]) -> None:
    with pytest.raises(UsageError) as caught:
        choose_engine(name, tasks(**given))  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.fields) == ("engine-unfit", {"got": name})
    assert choose_engine(name, tasks()) == name


def test_an_unknown_engine_lists_those_that_are_known() -> None:
    with pytest.raises(UsageError) as caught:
        choose_engine("warp", tasks())
    assert caught.value.code == "unknown-name"
    assert {"auto", "graph", "loop", "vmap", "workers"} <= set(caught.value.fields["known"])


def test_only_vmap_rounds_differently() -> None:
    assert [name for name in ("loop", "workers", "graph", "vmap", "flower") if not gives_same_bits(name)] == ["vmap"]


def test_an_engine_of_another_package_is_chosen_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that trains the last client first."""
    monkeypatch.setattr(ENGINES, "_things", dict(ENGINES._things))

    @engine("backwards", same_bits=True)
    class Backwards(Engine):
        def __init__(self, tasks: TaskRunner) -> None:
            self._loop, self.closed = LoopEngine(tasks), False

        @classmethod
        def preference(cls, tasks: TaskRunner) -> int:
            return 0

        def train(self, work: Sequence[Work]) -> Iterator[tuple[int, Result]]:
            return ((len(work) - 1 - i, result) for i, result in self._loop.train(work[::-1]))

        @property
        def fallbacks(self) -> Mapping[str, int]:
            return {"the first comes last": 1}

        def close(self) -> None:
            self.closed = True

    changes = {}
    for name in ("loop", "backwards"):
        torch.manual_seed(0)
        with Simulator(fedavg(), Norms(), blob_federation(num_clients=4), workers=1, engine=name) as simulator:
            shared, buffers = simulator.runner.bench.shared()
            work = [Assignment(round=1, rounds=1, client=i, shared=shared, buffers=buffers) for i in range(4)]
            uploads = list(simulator.train(work))
        changes[name] = {upload.client: upload.change for upload in uploads}
    assert list(changes["loop"]) == list(changes["backwards"])[::-1] == [0, 1, 2, 3]
    assert all(same_bits(change, changes["backwards"][client]) for client, change in changes["loop"].items())
    assert simulator.engine == "backwards"
    assert simulator.fallbacks() == {"the first comes last": 1}
    assert isinstance(simulator.trainer, Backwards)
    assert simulator.trainer.closed


def test_stacked_clients_and_those_left_are_tested_with_the_models_that_they_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm over the batch lets only clients of one size step together; the others go to the loop."""
    left: list[int] = []
    start = StackedTraining.train

    def noting(stacked: StackedTraining, work: Sequence[Work]) -> tuple[Iterator[tuple[int, Result]], list[int]]:
        results, rest = start(stacked, work)
        left.extend(rest)
        return results, rest

    monkeypatch.setattr(StackedTraining, "train", noting)
    federation, losses = blob_federation(num_clients=7), []
    for name in ("loop", "vmap"):
        torch.manual_seed(0)
        with Simulator(fedavg(), Smooth(norm=True), federation, workers=1, engine=name) as simulator:
            shared, buffers = simulator.runner.bench.shared()
            work = [
                Assignment(round=1, rounds=1, client=i, shared=shared, buffers=buffers, test_own=True)
                for i in range(len(federation))
            ]
            scores = {upload.client: upload.score for upload in simulator.train(work)}
        losses.append([score.loss for _, score in sorted(scores.items()) if score is not None])
    assert 0 < len(left) < len(losses[0]) == len(federation)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
