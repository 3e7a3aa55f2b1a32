from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedatlas import train
from fedatlas.adapting.adapter import Adapter
from fedatlas.adapting.result import Adapted, AdaptingStopped
from fedatlas.adapting.tuning import Tuning, can_tune_together
from fedatlas.algorithms import SharpnessAware, fedavg, fedbn, fedpce, fedper
from fedatlas.atlas import Atlas
from fedatlas.client import LocalContext, LocalWork, ResidentData
from fedatlas.engines import Captured, Simulator
from fedatlas.errors import TrainingError, UsageError
from fedatlas.parts import SGD, Adam, Algorithm, Tensors
from fedatlas.runs import Run
from fedatlas.testing import tiny_federation
from raising import raises
from tiny import Again, Norms, blob_federation, same_bits

# One client of the tiny federation has one example.
pytestmark = pytest.mark.filterwarnings("ignore:client-2 will take no step")

IMAGE = (3, 16, 16)
FEW = {"rounds": 2, "steps": 5, "batch_size": 3, "compare": False}


def trained(folder: Path, algorithm: Algorithm, norm: str = "instance") -> tuple[Run, Adapter]:
    federation = tiny_federation("images")
    run = train(
        federation,
        algorithm,
        model="cnn",
        model_options={"width": 4, "norm": norm},
        rounds=2,
        batch_size=8,
        workers=1,
        progress=False,
        folder=folder,
    )
    return run, Adapter(run, data=federation, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", [fedpce(embedding=4, hidden=8), fedbn(), fedper()], ids=lambda a: a.name)
def test_clients_tuned_together_end_as_they_do_alone(algorithm: Algorithm, tmp_path: Path) -> None:
    """Batches of 3 of 5 and 8 examples, so that the short ones at a pass's end meet at different steps."""
    run, adapter = trained(tmp_path, algorithm.with_optimizer(Adam(lr=1e-3)))
    wanted = [("client-6", 5), ("client-7", 8), ("client-6", 2)]
    together = adapter.adapt_all([name for name, _ in wanted], examples=[count for _, count in wanted], **FEW)  # type: ignore[arg-type]
    for (name, count), joint in zip(wanted, together, strict=True):
        alone = adapter.adapt(name, examples=count, **FEW)
        assert (joint.client, joint.num_examples, joint.num_steps) == (name, count, 10)
        assert joint.losses == pytest.approx(alone.losses, rel=1e-4)
        for key, value in alone.personal.items():
            torch.testing.assert_close(joint.personal[key], value, rtol=1e-3, atol=1e-5)
            assert not torch.equal(joint.personal[key], joint.start[key])
    state = run.checkpoint().state
    assert same_bits(state.shared, {key: adapter.runner.bench.model.state_dict()[key] for key in state.shared})


@pytest.mark.parametrize(("clients", "shapes"), [(["client-6", "client-7"], {(2, 3)}), (["client-6"], {(3,)})])
def test_compiled_code_sees_batches_of_one_size_and_gives_the_same(
    clients: list[str], shapes: set[tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the compiler, which takes a minute, something that computes the same and notes the sizes.

    Of 8 examples in batches of 3 the last has 2: it is filled up where clients go together, and not compiled alone.
    """
    _, adapter = trained(tmp_path, fedbn().with_optimizer(Adam(lr=1e-3)))
    plain = adapter.adapt_all(clients, examples=8, **FEW)  # type: ignore[arg-type]
    seen = set()

    def compiled(function: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
        def noting(*given: Any) -> Any:
            inputs = given[-1] if len(given) == 1 else given[1]
            seen.add(tuple(inputs.shape[: -len(IMAGE)]))
            return function(*given)

        assert not dynamic
        return noting

    monkeypatch.setattr(torch, "compile", compiled)
    found = adapter.adapt_all(clients, examples=8, compile=True, **FEW)  # type: ignore[arg-type]
    assert seen == shapes
    for one, other in zip(found, plain, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-4)
        for key, value in other.personal.items():
            torch.testing.assert_close(one.personal[key], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("works", [True, False])
def test_steps_of_all_clients_are_captured_at_second_sight_and_give_the_same(works: bool, tmp_path: Path) -> None:
    """Batches of 3 of 8 examples: whole ones and, at a pass's end, of 2. The rates fall from round to round."""
    algorithm = fedpce(embedding=4, hidden=8)
    _, adapter = trained(tmp_path, algorithm)
    clients = [adapter.runner.data(number) for number in (6, 7)]
    found = []
    for recorder in (None, Again(works)):
        tuning = Tuning(
            adapter.runner.bench,
            adapter.models.buffers,
            adapter.runner.algorithm,
            clients,
            work=LocalWork(steps=5, batch_size=3),
            rounds=3,
            seed=0,
            recorder=recorder,
        )
        personal: list[Tensors] = [dict(own) for own in list(adapter.starts.known.values())[:2]]
        for turn in range(1, 4):
            personal = tuning.round(turn, personal)
        found.append((personal, tuning.losses))
        if recorder is not None:
            assert recorder.captures == (2 if works else 0)
            assert (recorder.began, recorder.ended) == (3, 3)
    (plain, plain_losses), (replayed, replayed_losses) = found
    assert plain_losses == replayed_losses
    assert all(same_bits(one, other) for one, other in zip(plain, replayed, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_steps_give_the_same_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, adapter = trained(tmp_path, fedpce(embedding=4, hidden=8))
    on_gpu = Adapter(run, data=adapter.federation, algorithm=adapter.algorithm, device="cuda")
    captured = on_gpu.adapt_all(**FEW)  # type: ignore[arg-type]
    monkeypatch.setattr(Captured, "is_worth", lambda *_: False)
    for one, other in zip(captured, on_gpu.adapt_all(**FEW), strict=True):  # type: ignore[arg-type]
        assert one.losses == other.losses
        assert same_bits(one.personal, other.personal)


def test_held_out_clients_are_those_adapted_by_default_and_fedavg_tunes_its_head(tmp_path: Path) -> None:
    _, adapter = trained(tmp_path, fedavg())
    results = adapter.adapt_all(**FEW)  # type: ignore[arg-type]
    assert [adapted.client for adapted in results] == ["client-6", "client-7"]
    assert {(adapted.tune, adapted.num_tuned) for adapted in results} == {("head", results[0].num_tuned)}
    asked = adapter.adapt_all(**FEW, tune="head")  # type: ignore[arg-type]
    assert all(same_bits(one.personal, two.personal) for one, two in zip(results, asked, strict=True))
    for nothing in ({**FEW, "tune": "personal"}, {**FEW, "rounds": 0}):
        for adapted in adapter.adapt_all(**nothing):  # type: ignore[arg-type]
            assert adapted.before.loss == adapted.after.loss
            assert (adapted.num_steps, adapted.num_tuned) == (0, 0)


@pytest.mark.parametrize("algorithm", [fedper(), fedbn()])
def test_ctrl_c_keeps_the_rounds_that_were_tuned(
    algorithm: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the third of four rounds, clients have the values, losses and steps of two; in the first, none."""
    _, adapter = trained(tmp_path, algorithm)
    settings: dict[str, Any] = {**FEW, "rounds": 4, "evaluate_every": 1}
    whole = adapter.adapt_all(**settings)
    real = Tuning._open

    def stopped_in(turn: int) -> list[Adapted]:
        def opened(self: Tuning, client: ResidentData, number: int, personal: Tensors) -> LocalContext:
            # The second client is opened after the first has taken its steps, where they go one after another.
            if number == turn and client is self.clients[1]:
                raise KeyboardInterrupt
            return real(self, client, number, personal)

        monkeypatch.setattr(Tuning, "_open", opened)
        with pytest.raises(AdaptingStopped) as caught:
            adapter.adapt_all(**settings)
        return caught.value.results

    assert stopped_in(1) == []
    for one, other in zip(stopped_in(3), whole, strict=True):
        assert one.losses == other.losses[:2]
        assert one.num_steps == other.num_steps // 2
        assert one.after.loss == other.curve[2].loss


def test_running_statistics_and_whole_model_optimizers_are_tuned_one_after_another(tmp_path: Path) -> None:
    _, adapter = trained(tmp_path / "batch", fedbn(), norm="batch")
    assert not can_tune_together(adapter.runner.bench, SGD())
    alone = [adapter.adapt(name, **FEW) for name in ("client-6", "client-7")]
    both = adapter.adapt_all(["client-6", "client-7"], **FEW)  # type: ignore[arg-type]
    assert all(same_bits(one.personal, other.personal) for one, other in zip(alone, both, strict=True))
    _, adapter = trained(tmp_path / "instance", fedbn())
    assert can_tune_together(adapter.runner.bench, SGD())
    assert not can_tune_together(adapter.runner.bench, SharpnessAware(base=SGD()))
    assert can_tune_together(adapter.runner.bench, fedpce().optimizer)


def test_the_client_whose_tuning_breaks_is_named(tmp_path: Path) -> None:
    _, adapter = trained(tmp_path, fedbn().with_optimizer(SGD(lr=0.1)))
    with raises(TrainingError, "not-finite") as caught:
        adapter.adapt_all(lr=1e30, rounds=3)
    assert isinstance(caught.value, TrainingError)
    assert (caught.value.client, caught.value.stage) == ("client-6", "adapting")


def test_a_client_starts_from_the_nearest_that_trained(tmp_path: Path) -> None:
    """client-6 lies at client-7, which did not train, then at client-2."""
    algorithm = fedpce(embedding=4, hidden=8)
    run, adapter = trained(tmp_path, algorithm)
    names = tuple(client["name"] for client in run.resolved["federation"]["clients"])
    rows = torch.eye(len(names))
    rows[6] = 0.1 * rows[2] + rows[7]
    atlas = Atlas(names=names, halves={"feature": rows}, sizes=torch.ones(len(names), dtype=torch.int64))
    adapted = adapter.adapt("client-6", start="nearest", atlas=atlas, **FEW)
    assert same_bits(adapted.start, adapter.starts.known[2])
    assert "client-2" in adapted.origin
    with raises(UsageError, "missing-option", option="atlas"):
        adapter.adapt("client-6", start="nearest")
    with raises(UsageError, "settings-conflict"):
        adapter.adapt("client-6", atlas=atlas)
    rows[6] = 0
    zero = Atlas(names=names, halves={"feature": rows}, sizes=torch.ones(len(names), dtype=torch.int64))
    with raises(UsageError, "zero-vector", client="client-6"):
        adapter.adapt("client-6", start="nearest", atlas=zero)
    few = Atlas(names=("client-6", "x"), halves={"feature": rows[:2]}, sizes=torch.tensor([1, 1]))
    with raises(UsageError, "client-missing", path=str(run.folder)):
        adapter.adapt("client-6", start="nearest", atlas=few)
    with raises(UsageError, "client-missing", client="client-7"):
        adapter.adapt("client-7", start="nearest", atlas=few)


def test_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    _, adapter = trained(tmp_path, fedper())
    with raises(UsageError, "wrong-count", got=2, wanted=1):
        adapter.adapt_all(["client-6"], examples=[1, 2])


def test_dropout_repeats_and_keeps_clients_from_being_tuned_together(tmp_path: Path) -> None:
    """The draws come from the run's seed, whatever the process drew before; of all clients at once they differ."""
    federation = blob_federation(held_out=1)
    run = train(federation, fedper(), model=Norms, rounds=1, workers=1, progress=False, folder=tmp_path)
    adapter = Adapter(run, data=federation, model=Norms)
    ends = []
    for state in (1, 2):
        torch.manual_seed(state)
        ends.append(adapter.adapt("client-5", rounds=1, steps=3).personal)
    assert same_bits(*ends)

    class Dropped(Norms):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.Identity()  # type: ignore[assignment]

    bench = Simulator(fedper(), Dropped(), federation, workers=1).runner.bench
    assert not can_tune_together(bench, SGD(lr=0.1))
