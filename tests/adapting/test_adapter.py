import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedatlas import train
from fedatlas.adapting.adapter import Adapter, adapt
from fedatlas.adapting.examples import with_few
from fedatlas.adapting.tuning import Tuning
from fedatlas.algorithms import KeepHead, fedavg, fedbn, fedpce, fedper, fedprox
from fedatlas.cli.train_config import train_config
from fedatlas.client import LocalWork
from fedatlas.config import Config
from fedatlas.data import Augment, Dataset, Federation, GaussianNoise
from fedatlas.errors import DataError, FedatlasError, UsageError
from fedatlas.models import build_model
from fedatlas.parts import SGD, Adam, Algorithm, CrossEntropy
from fedatlas.runs import Run
from fedatlas.testing import tiny_federation
from fedatlas.training import Machine
from raising import raises
from tiny import Line, Norms, blob_federation, image_run, line_federation, same_bits

# One client of the tiny federation has one example.
pytestmark = pytest.mark.filterwarnings("ignore:client-2 will take no step")

SMALL = {"rounds": 3, "steps": 4, "compare": False}
VECTOR = "embedding.vector"


class Scaled(Line):
    """A line over a number that is shared, so that the head can be a client's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(self.scale * x)


CASES = [
    (fedpce(embedding=4, hidden=8), 4),
    (fedbn(), 2 * 4 + 2 * 8),
    (fedper(), 16 * 3 + 3),
    (fedavg(), 0),
]


@pytest.mark.parametrize(("algorithm", "tuned"), CASES, ids=[a.name for a, _ in CASES])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_what_is_personal_is_tuned_and_the_rest_keeps_its_bits(
    algorithm: Algorithm, tuned: int, norm: str, tmp_path: Path
) -> None:
    """The cnn of width 4 has norms of 4 and 8 channels, and a head of 16 features for 3 classes."""
    run = image_run(tmp_path, algorithm, norm)
    adapter = Adapter(run, data=tiny_federation("images"), algorithm=algorithm)
    state = run.checkpoint().state
    expected = {**state.shared, **state.buffers}
    adapted = adapter.adapt("client-6", tune="personal", lr=0.05, **SMALL)  # type: ignore[arg-type]
    assert adapted.num_tuned == tuned
    assert (adapted.num_steps, adapted.num_examples) == ((12, 8) if tuned else (0, 0))
    assert same_bits(expected, {name: adapter.runner.bench.model.state_dict()[name] for name in expected})
    moved = [name for name in adapted.personal if not torch.equal(adapted.start[name], adapted.personal[name])]
    assert bool(moved) == bool(tuned)
    assert len(adapted.losses) == (3 if tuned else 0)


def test_shared_running_statistics_rest_while_a_client_tunes(tmp_path: Path) -> None:
    """Looked at in the midst of tuning, before anything is loaded again."""
    run = image_run(tmp_path, fedper(), "batch")
    adapter = Adapter(run, data=tiny_federation("images"))
    work = LocalWork(steps=3, batch_size=4)
    algorithm = replace(adapter.runner.algorithm, optimizer=SGD(lr=0.1))
    client = adapter.runner.data(6)
    tuning = Tuning(adapter.runner.bench, adapter.models.buffers, algorithm, [client], work=work, rounds=1, seed=0)
    tuning.round(1, [adapter.starts.find("mean", 6)[0]])
    network = adapter.runner.bench.model
    assert torch.equal(network.state_dict()["norm1.running_mean"], run.parameters()["norm1.running_mean"])
    modes = {name: module.training for name, module in network.named_modules() if name in ("norm1", "norm2", "head")}
    assert modes == {"norm1": False, "norm2": False, "head": True}


def test_a_held_out_client_starts_as_it_was_tested_in_the_run(tmp_path: Path) -> None:
    for algorithm in (fedpce(embedding=4, hidden=8), fedbn(), fedavg()):
        folder = tmp_path / algorithm.name
        run = image_run(folder, algorithm)
        adapter = Adapter(run, data=tiny_federation("images"), algorithm=algorithm)
        last = {entry["client"]: entry for entry in run.clients if entry["round"] == 2 and "accuracy" in entry}
        assert adapter.held_out == ["client-6", "client-7"]
        for name in [*adapter.held_out, "client-0"]:
            adapted = adapter.adapt(name, rounds=1, steps=1)
            assert adapted.before.loss == last[name]["loss"], (algorithm.name, name)


def test_the_first_loss_of_adapting_and_its_step_worked_out_by_hand(tmp_path: Path) -> None:
    """FedPer on one number: features x, head w x as the logit of class 0 against 0. Tuning goes on from the trained
    head: one step of SGD from w on x = 2, label 0 adds lr * 2 * sigmoid(-2 w)."""
    federation = line_federation(([2, 2], [0, 0]), ([2, 2], [0, 0])).hold_out([1])

    run = train(
        federation, fedper(), model=Scaled, rounds=1, folder=tmp_path, workers=1, progress=False, optimizer=SGD(lr=0.1)
    )
    adapted = adapt(run, 1, data=federation, model=Scaled, rounds=1, steps=1, lr=0.5, compare=False)
    w = adapted.start["head.weight"].item()
    scale = run.parameters()["scale"].item()
    x = 2 * scale
    assert adapted.personal["head.weight"].item() == pytest.approx(
        w + 0.5 * x * torch.sigmoid(torch.tensor(-w * x)).item(), rel=1e-6
    )
    assert adapted.losses[0] == pytest.approx(adapted.before.loss, rel=1e-6)
    assert adapted.after.loss < adapted.before.loss


def test_fedpce_reports_its_few_numbers(tmp_path: Path) -> None:
    run = image_run(tmp_path, fedpce(embedding=4, hidden=8))
    federation = tiny_federation("images")
    adapted = adapt(run, "client-7", data=federation, algorithm=fedpce(embedding=4, hidden=8), **SMALL)
    assert adapted.embedding is not None
    assert adapted.embedding.shape == (4,)
    assert adapted.start[VECTOR].tolist() == [0, 1, 0, 0]  # the second of the held-out clients
    record = json.loads(json.dumps(adapted.describe()))
    assert record["embedding"] == pytest.approx(adapted.embedding.tolist())
    assert record["num_tuned"] == 4
    assert record["bytes_sent"] == 0
    state = run.checkpoint().state
    assert record["bytes_received"] == sum(4 * t.numel() for t in (*state.shared.values(), *state.buffers.values()))
    assert record["accuracy_after"] == adapted.after.accuracy


def test_starts_are_chosen(tmp_path: Path) -> None:
    algorithm = fedpce(embedding=4, hidden=8)
    run = image_run(tmp_path, algorithm)
    adapter = Adapter(run, data=tiny_federation("images"), algorithm=algorithm)
    known = [memory["personal"][VECTOR] for _, memory in sorted(run.checkpoint().clients.items())]

    def start(client: str, choice: object = None) -> torch.Tensor:
        return adapter.adapt(client, rounds=1, steps=1, start=choice).start[VECTOR]  # type: ignore[arg-type]

    torch.testing.assert_close(start("client-6", "mean"), torch.stack(known).mean(0))
    assert torch.equal(start("client-6", "first"), known[0])
    assert torch.equal(start("client-6", "initial"), torch.tensor([1.0, 0, 0, 0]))
    assert torch.equal(start("client-3"), known[3])
    assert torch.equal(start("client-3", "initial"), torch.tensor([0, 0, 0, 1.0]))
    given = torch.tensor([1.0, 2, 3, 4])
    assert torch.equal(start("client-6", {VECTOR: given}), given)
    with raises(UsageError, "value-missing", got="own"):
        start("client-6", "own")
    with raises(UsageError, "unknown-name", kind="start", got="means"):
        start("client-6", "means")
    with raises(UsageError, "wrong-type") as caught:
        start("client-6", given)
    assert "Write {name: tensor}" in str(caught.value)
    with raises(UsageError, "wrong-type", got=[1.0]):
        start("client-6", {VECTOR: [1.0]})
    adapted = adapter.adapt("client-6", rounds=1, steps=1)
    assert re.fullmatch(
        r"Adapted\('client-6', accuracy 0.\d+ to 0.\d+, 4 numbers tuned on \d+ examples\)", repr(adapted)
    )
    with raises(UsageError, "wrong-shape", got=["vector"]):
        start("client-6", {"vector": given})


def test_arguments_of_another_kind_are_refused_with_what_to_write(tmp_path: Path) -> None:
    federation = tiny_federation("images")
    run = image_run(tmp_path, fedavg())
    adapter = Adapter(run, data=federation)
    calls: list[tuple[Callable[[], object], str, str]] = [
        (lambda: Adapter(tmp_path), "wrong-type", "fedatlas.Run(folder)"),  # type: ignore[arg-type]
        (lambda: Adapter(run, data="x.npz"), "wrong-type", "fedatlas.load_dataset"),  # type: ignore[arg-type]
        (lambda: adapter.adapt_all("client-6"), "wrong-type", "Write ['client-6']"),
        (lambda: Adapter(run, data=federation.data).adapt_all(), "no-clients", "Name those you want"),
        (lambda: adapter.adapt_all(rounds="5"), "wrong-type", "rounds"),  # type: ignore[arg-type]
        (lambda: adapter.adapt_all(examples=2.5), "wrong-type", "examples"),  # type: ignore[arg-type]
        (lambda: adapter.adapt(1.0), "wrong-type", "client (by position)"),  # type: ignore[arg-type]
    ]
    for call, code, words in calls:
        with raises(UsageError, code) as caught:
            call()
        assert words in str(caught.value)


def test_the_same_seed_gives_the_same_bits_whatever_was_adapted_before(tmp_path: Path) -> None:
    run = image_run(tmp_path, fedbn(), "batch", batch_size=4)
    adapter = Adapter(run, data=tiny_federation("images"))
    first = adapter.adapt("client-6", **SMALL)  # type: ignore[arg-type]
    adapter.adapt("client-7", **SMALL)  # type: ignore[arg-type]
    torch.manual_seed(5)
    again = adapter.adapt("client-6", **SMALL)  # type: ignore[arg-type]
    other = adapter.adapt("client-6", seed=1, **SMALL)  # type: ignore[arg-type]
    assert same_bits(first.personal, again.personal)
    assert not same_bits(first.personal, other.personal)


def test_few_examples_are_among_more_of_them(tmp_path: Path) -> None:
    run = image_run(tmp_path, fedbn())
    adapter = Adapter(run, data=tiny_federation("images"))
    parts = [set(with_few(adapter.federation, 6, n, 0).clients[6].train.tolist()) for n in (2, 5, 8)]
    assert [len(part) for part in parts] == [2, 5, 8]
    assert parts[0] < parts[1] < parts[2] == set(tiny_federation("images").clients[6].train.tolist())
    assert adapter.adapt("client-6", examples=2, rounds=1, steps=3).num_examples == 2
    with raises(UsageError, "out-of-range", setting="examples", client="client-6", got=9):
        adapter.adapt("client-6", examples=9)


def test_a_curve_is_recorded_where_asked_for(tmp_path: Path) -> None:
    run = image_run(tmp_path, fedper())
    adapted = adapt(run, 6, data=tiny_federation("images"), rounds=5, steps=2, evaluate_every=2)
    assert list(adapted.curve) == [2, 4]
    assert adapted.best.accuracy >= adapted.after.accuracy


def test_only_running_statistics_of_ones_own_are_taken_anew(tmp_path: Path) -> None:
    algorithm = fedavg().with_buffers("keep")
    run = image_run(tmp_path, algorithm, "batch")
    adapted = adapt(run, 6, data=tiny_federation("images"), algorithm=algorithm, **SMALL)
    assert adapted.num_tuned == 0
    assert adapted.num_steps == 12
    assert not torch.equal(adapted.start["norm1.running_mean"], adapted.personal["norm1.running_mean"])


def test_a_run_from_a_config_knows_its_own_data_model_and_algorithm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(120, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x=images, y=np.arange(120) % 3, domain=np.arange(120) // 60)
    config = Config.load(
        data={
            "source": str(tmp_path / "mine.npz"),
            "partition": {"name": "by-domain", "clients_per_domain": 3},
            "held_out": 2,
        },
        model={"name": "cnn", "width": 2, "norm": "batch"},
        algorithm={"name": "fedbn"},
        optimizer={"name": "sgd", "lr": 0.02},
        training={"rounds": 1, "steps": 1, "augment": {"padding": 1}},
    )
    machine = Machine(workers=1)
    run = train_config(config, tmp_path / "run", machine=machine, resume=False, overwrite=False, show=False)
    adapter = Adapter(run)
    adapted = adapter.adapt(adapter.held_out[0], rounds=1, steps=2)
    assert adapter.algorithm.optimizer == SGD(lr=0.02)
    assert adapted.num_tuned == 2 * 2 + 2 * 4
    assert adapted.domain == adapted.client.rsplit("-", 1)[0]
    np.savez(tmp_path / "mine.npz", x=255 - images, y=np.arange(120) % 3, domain=np.arange(120) // 60)
    with raises(DataError, "run-differs"):
        Adapter(run)
    (tmp_path / "mine.npz").unlink()
    with raises(DataError, "data-missing"):
        Adapter(run)


def test_a_data_set_is_one_new_client(tmp_path: Path) -> None:
    run = image_run(tmp_path, fedpce(embedding=4, hidden=8))
    own = tiny_federation("images").data
    few = replace(own, inputs=own.inputs[:40], labels=own.labels[:40])
    adapted = adapt(run, data=few, algorithm=fedpce(embedding=4, hidden=8), **SMALL)
    assert (adapted.num_examples, adapted.after.num_examples) == (30, 10)
    assert adapted.start[VECTOR].tolist() == [1, 0, 0, 0]


def test_a_clients_degradation_acts_while_it_adapts(tmp_path: Path) -> None:
    federation = tiny_federation("images")
    noisy = federation.with_transforms([GaussianNoise(variance=1.0) if c.held_out else None for c in federation])
    run = image_run(tmp_path, fedper())
    plain = adapt(run, 6, data=federation, **SMALL)
    changed = adapt(run, 6, data=noisy, **SMALL)
    assert plain.before.loss != changed.before.loss
    assert not same_bits(plain.personal, changed.personal)


def test_a_run_from_python_is_adapted_with_the_optimizer_it_had(tmp_path: Path) -> None:
    run = image_run(tmp_path, fedper(), optimizer=Adam(lr=0.003, schedule="cosine", min_lr=0.001))
    assert Adapter(run, data=tiny_federation("images")).algorithm.optimizer == Adam(
        lr=0.003, schedule="cosine", min_lr=0.001
    )


def _raises(
    run: Run, code: str, fields: dict[str, object], kind: type[FedatlasError] = UsageError, **options: object
) -> None:
    with raises(kind, code, **fields):
        adapt(run, **{"data": tiny_federation("images"), "rounds": 1, "steps": 1, **options})  # type: ignore[arg-type]


def test_what_does_not_fit_the_run_is_refused(tmp_path: Path) -> None:
    run = image_run(tmp_path / "one", fedbn())
    _raises(run, "missing-option", {"option": "client"})
    _raises(run, "unknown-name", {"kind": "client", "got": "client-9"}, client="client-9")
    _raises(run, "client-position", {"got": 8}, client=8)
    _raises(run, "not-rebuildable", {"path": run.folder}, client=6, data=None)
    _raises(run, "run-differs", {"known": {"part": "KeepNorms", "buffers": "average"}}, client=6, algorithm=fedper())
    _raises(run, "model-inputs", {}, client=6, model=lambda: Norms())
    _raises(run, "settings-differ", {"path": str(run.folder)}, client=6, model=_wider)
    _raises(run, "out-of-range", {"setting": "rounds", "got": -1}, client=6, rounds=-1)
    _raises(run, "names-unfit", {}, DataError, client=0, data=_renamed())
    augmented = image_run(tmp_path / "two", fedbn(), augment=Augment(padding=1))
    _raises(augmented, "not-rebuildable", {}, client=6)
    adapt(augmented, 6, data=tiny_federation("images"), rounds=1, steps=1, augment=None)
    named = image_run(tmp_path / "three", replace(fedbn(), name="mine"))
    _raises(named, "not-rebuildable", {"got": "mine"}, client=6)
    built = train(
        blob_federation(), fedprox(), model=Norms(), rounds=1, folder=tmp_path / "four", workers=1, progress=False
    )
    _raises(built, "not-rebuildable", {"got": "Norms"}, client=0, data=blob_federation())


def _wider() -> nn.Module:
    return build_model("cnn", num_classes=3, input_shape=(3, 8, 8), width=6, norm="batch")


def _renamed() -> Federation:
    federation = tiny_federation("images")
    data: Dataset = replace(federation.data, classes=("x", "y", "z"))
    return replace(federation, data=data)


@pytest.mark.parametrize("clients", [[1], [1, 1]], ids=["alone", "together"])
def test_the_rate_of_adapting_falls_by_the_schedule_to_the_last_one_given(clients: list[int], tmp_path: Path) -> None:
    """As above for two rounds of a cosine from 0.5: to 0 the second round's rate is 0.25, to 0.5 it stays."""
    federation = line_federation(([2, 2], [0, 0]), ([2, 2], [0, 0])).hold_out([1])

    run = train(
        federation,
        fedper(),
        model=Scaled,
        rounds=1,
        folder=tmp_path,
        workers=1,
        progress=False,
        optimizer=SGD(lr=0.1, schedule="cosine"),
    )
    adapter = Adapter(run, data=federation, model=Scaled)
    x = 2 * run.parameters()["scale"].item()
    for last, second in ((None, 0.25), (0.5, 0.5)):
        adapted = adapter.adapt_all(clients, rounds=2, steps=1, lr=0.5, min_lr=last, compare=False)[0]
        w = adapted.start["head.weight"].item()
        for rate in (0.5, second):
            w += rate * x * torch.sigmoid(torch.tensor(-w * x)).item()
        assert adapted.personal["head.weight"].item() == pytest.approx(w, rel=1e-5)


def test_a_client_on_its_own_tunes_on_cross_entropy_alone(tmp_path: Path) -> None:
    """What other terms need, such as a server's notes, it does not get; nor is it pulled back to where it began."""
    algorithm = replace(fedprox(mu=5.0), split=KeepHead())
    run = image_run(tmp_path, algorithm)
    adapter = Adapter(run, data=tiny_federation("images"), algorithm=algorithm)
    assert adapter.runner.algorithm.objective == (CrossEntropy(),)


def test_adapting_repeats_from_the_seed_of_the_runs_batches(tmp_path: Path) -> None:
    run = image_run(tmp_path, fedper(), seed=3)
    adapter = Adapter(run, data=tiny_federation("images"))
    plain, same, other = (adapter.adapt("client-6", rounds=1, steps=3, batch_size=2, seed=s) for s in (None, 3, 0))
    assert same_bits(plain.personal, same.personal)
    assert not same_bits(plain.personal, other.personal)


def test_shared_running_statistics_are_received_too(tmp_path: Path) -> None:
    run = image_run(tmp_path, fedper(), "batch")
    state = run.checkpoint().state
    adapted = Adapter(run, data=tiny_federation("images")).adapt("client-6", rounds=1, steps=1)
    assert state.buffers
    assert adapted.bytes_received == sum(t.nbytes for t in (*state.shared.values(), *state.buffers.values()))


def test_clients_of_one_size_do_not_lose_the_same_places(tmp_path: Path) -> None:
    """Which examples a client may use is drawn for each by its name."""
    adapter = Adapter(image_run(tmp_path, fedper()), data=tiny_federation("images"))
    places = []
    for number, client in enumerate(adapter.federation):
        if len(client.train) == 8:
            few = with_few(adapter.federation, number, 3, 0).clients[number].train
            places.append(tuple(client.train.tolist().index(i) for i in few.tolist()))
    assert len(places) > 1
    assert len(set(places)) > 1
