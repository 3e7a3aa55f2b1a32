import copy
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from fedatlas import train
from fedatlas.algorithms import fedavg, fediir, fedmix, moon
from fedatlas.client.model import Network, Workbench
from fedatlas.client.training import draw_order
from fedatlas.client.work import LocalWork, Precision
from fedatlas.data import Augment, Client, Dataset, Federation, GaussianNoise
from fedatlas.engines import Simulator
from fedatlas.errors import DataError, TrainingError, UsageError
from fedatlas.models import build_model
from fedatlas.parts import SGD, Adam, Algorithm, Assignment
from fedatlas.testing import tiny_federation
from fedatlas.training import Settings
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_fixed_steps_wrap_around_the_data_and_stop_exactly() -> None:
    """Three examples in batches of two: a pass has two steps, so five steps take two passes and a half."""
    federation = line_federation(([2, 2, 2], [0, 0, 0]))
    _, _, simulator = play(fedavg(), Line(), federation, work=LocalWork(steps=5, batch_size=2))
    assignment = _assignment(simulator)
    upload, _ = simulator.runner.train(assignment, {})
    assert upload.num_steps == 5


def test_epochs_keep_the_short_last_batch() -> None:
    federation = line_federation(([2, 2, 2], [0, 0, 0]))
    _, _, simulator = play(fedavg(), Line(), federation, work=LocalWork(epochs=2, batch_size=2))
    upload, _ = simulator.runner.train(_assignment(simulator), {})
    assert upload.num_steps == 4


@pytest.mark.parametrize(
    ("work", "sizes"),
    [
        (LocalWork(epochs=2, batch_size=4, least_batch=2), [4, 4, 2, 4, 4, 2]),
        (LocalWork(epochs=2, batch_size=4, least_batch=3), [4, 4, 4, 4]),
        (LocalWork(steps=3, batch_size=4, least_batch=3), [4, 4, 4]),
        (LocalWork(steps=3, batch_size=10, least_batch=10), [10, 10, 10]),
        (LocalWork(steps=2, batch_size=32, least_batch=10), [10, 10]),
        (LocalWork(steps=2, batch_size=32, least_batch=11), []),
    ],
)
def test_a_last_batch_of_too_few_examples_is_left_out(work: LocalWork, sizes: list[int]) -> None:
    """Ten examples: a pass has batches of four, four and two; the next pass begins in place of the two."""
    found, chosen = draw_order(work, 10, 0, skip_single=False)
    assert found == sizes
    assert len(chosen) == sum(sizes)
    whole = draw_order(replace(work, least_batch=1), 10, 0, skip_single=False)[1]
    assert chosen[: sum(sizes[:2])].tolist() == whole[: sum(sizes[:2])].tolist()


@pytest.mark.parametrize("make", [LocalWork, Settings])
def test_no_batch_may_be_too_small_for_the_least(make: type[LocalWork]) -> None:
    with raises(UsageError, "out-of-range", setting="least_batch", got=11, most=10):
        make(batch_size=10, least_batch=11)
    with raises(UsageError, "out-of-range", got=0):
        make(least_batch=0)


def test_a_client_with_too_few_examples_for_any_batch_is_named_before_the_training(tmp_path: Path) -> None:
    federation = tiny_federation()
    few = [federation.clients[i].name for i in federation.training_ids if len(federation.clients[i].train) < 10]
    with raises(DataError, "too-few-examples", clients=few, least=10):
        train(federation, fedavg(), Settings(least_batch=10), rounds=1, folder=tmp_path / "run", progress=False)
    assert few
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["loop", "workers", "vmap"])
def test_every_engine_leaves_the_same_batches_out(engine: str, tmp_path: Path) -> None:
    """Clients of 16, 12 and 20 examples in batches of 7: the last batches have 2, 5 and 6."""
    federation = tiny_federation()
    federation = replace(federation, clients=tuple(federation.clients[i] for i in (0, 3, 4)))
    settings = Settings(batch_size=7, least_batch=7, epochs=2, engine=engine, workers=2 if engine == "workers" else 1)
    run = train(federation, fedavg(), settings, rounds=1, model="mlp", folder=tmp_path / "a", progress=False)
    loop = Settings(batch_size=7, least_batch=7, epochs=2, engine="loop", workers=1)
    plain = train(federation, fedavg(), loop, rounds=1, model="mlp", folder=tmp_path / "b", progress=False)
    for name, value in plain.parameters().items():
        torch.testing.assert_close(run.parameters()[name], value, rtol=1e-4, atol=1e-6)
    assert run.resolved["training"]["least_batch"] == 7
    other = train(federation, fedavg(), replace(loop, least_batch=1), rounds=1, model="mlp", folder=tmp_path / "c")
    assert "least_batch" not in other.resolved["training"]
    assert not same_bits(other.parameters(), plain.parameters())


def test_a_batch_of_one_example_is_skipped_under_batch_normalisation() -> None:
    federation = blob_federation(num_clients=1)
    client = replace(federation.clients[0], train=federation.clients[0].train[:9])
    federation = replace(federation, clients=(client,))
    _, _, simulator = play(fedavg(), Norms(), federation, work=LocalWork(batch_size=4))
    upload, _ = simulator.runner.train(_assignment(simulator), {})
    assert upload.num_steps == 2


def test_a_batch_of_one_image_is_trained_on_under_instance_normalisation() -> None:
    """Three images in batches of two: two steps, the second with one image, which has statistics of its own."""
    federation = tiny_federation("images")
    client = replace(federation.clients[0], train=federation.clients[0].train[:3])
    model = build_model("cnn", num_classes=3, input_shape=(3, 8, 8), norm="instance", width=2)
    work = LocalWork(batch_size=2)
    _, _, simulator = play(fedavg(), model, replace(federation, clients=(client,)), work=work)
    upload, _ = simulator.runner.train(_assignment(simulator), {})
    assert upload.num_steps == 2


def test_a_client_that_can_take_no_step_is_named_and_counts_in_no_loss(tmp_path: Path) -> None:
    federation = blob_federation(num_clients=3)
    alone = replace(federation.clients[1], train=federation.clients[1].train[:1])
    federation = replace(federation, clients=(federation.clients[0], alone, federation.clients[2]))
    with pytest.warns(UserWarning, match="client-1 will take no step: batch norm cannot be trained by batches of one"):
        run = train(federation, fedavg(), model=Norms(), rounds=1, folder=tmp_path, progress=False, workers=1)
    first, second, third = run.clients
    assert (first["trained"], second["trained"], second["train_loss"]) == (True, False, None)
    weights = first["weight"] + third["weight"]
    expected = (first["weight"] * first["train_loss"] + third["weight"] * third["train_loss"]) / weights
    assert run.rounds[0]["train_loss"] == pytest.approx(expected)
    with raises(UsageError, "no-step"):
        train(federation, fedavg(), model=Norms(), batch_size=1, rounds=1, folder=tmp_path / "all", progress=False)


def test_training_is_a_pure_function_of_assignment_and_memory() -> None:
    algorithm = fedavg().with_optimizer(SGD(lr=0.1, momentum=0.9, keep_state=True)).with_buffers("keep")
    _, _, simulator = play(algorithm, Norms(), blob_federation())
    assignment = _assignment(simulator, client=2)
    first, memory = simulator.runner.train(assignment, {})
    simulator.runner.train(_assignment(simulator, client=4), {})
    again, memory_again = simulator.runner.train(assignment, {})
    assert same_bits(first.change, again.change)
    assert memory.keys() == memory_again.keys() == {"personal", "optimizer"}
    assert all(same_bits(memory[part], memory_again[part]) for part in memory)
    kept = {part: {k: v.clone() for k, v in tensors.items()} for part, tensors in memory.items()}
    simulator.runner.train(assignment, memory)
    assert all(same_bits(memory[part], kept[part]) for part in memory)


def test_bfloat16_training_stays_near_float32_and_keeps_float32_parameters() -> None:
    """A sum of a few products rounded to eight bits is off by under one percent or so, and so is a small change."""
    work = LocalWork(epochs=2, batch_size=8)
    changes = []
    for precision in get_args(Precision):
        _, _, simulator = play(moon(), Norms(), blob_federation(), work=replace(work, precision=precision))
        upload, _ = simulator.runner.train(_assignment(simulator), {})
        changes.append(upload.change)
    exact, rounded = (torch.cat([tensor.flatten() for tensor in change.values()]) for change in changes)
    assert rounded.dtype == torch.float32
    assert 0 < float((exact - rounded).norm() / exact.norm()) < 0.05


@pytest.mark.parametrize("algorithm", [fedavg(), moon()], ids=lambda algorithm: algorithm.name)
def test_compiled_are_minibatches_of_full_size_and_the_result_is_the_same(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the compiler, which takes a minute, something that computes the same and counts."""
    seen: list[int] = []

    def compiled(model: nn.Module, *, dynamic: bool) -> Network:
        assert not dynamic

        def counted(inputs: Tensor) -> tuple[Tensor, Tensor]:
            seen.append(len(inputs))
            features, logits = model(inputs)
            return features, logits

        return counted

    monkeypatch.setattr(torch, "compile", compiled)
    work = LocalWork(epochs=2, batch_size=8)
    states = [
        play(algorithm, Norms(), blob_federation(), work=replace(work, compile=compile))[0] for compile in (False, True)
    ]
    assert same_bits(states[0].shared, states[1].shared)
    assert seen
    assert set(seen) == {8}


@pytest.mark.slow
def test_compiled_training_differs_by_rounding_only() -> None:
    states = []
    for compile in (False, True):
        model = Norms()
        model.drop.p = 0  # its draws would be others
        states.append(play(fedavg(), model, blob_federation(), work=LocalWork(batch_size=8, compile=compile))[0])
    for name, value in states[0].shared.items():
        torch.testing.assert_close(states[1].shared[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", [fedmix(), fediir()], ids=lambda algorithm: algorithm.name)
def test_what_differentiates_twice_is_not_compiled(algorithm: Algorithm) -> None:
    with raises(UsageError, "compile-unfit"):
        play(algorithm, Norms(), blob_federation(), work=LocalWork(compile=True))


def test_the_twin_of_a_compiled_bench_has_a_model_of_its_own() -> None:
    bench = Workbench(Line(), fedavg(), compile=True)
    twin = bench.twin()
    assert twin.compiled is not None
    assert bench.compiled is not None
    assert twin.model is not bench.model
    assert all(twin.parameters[name] is w for name, w in twin.model.named_parameters())
    assert all(twin.parameters[name] is not w for name, w in bench.parameters.items())


def test_an_unknown_precision_is_refused() -> None:
    with raises(UsageError, "wrong-type", setting="precision", got="half"):
        LocalWork(precision="half")  # type: ignore[arg-type]


def test_compile_is_a_truth_value_and_not_for_stacked_clients() -> None:
    with raises(UsageError, "wrong-type", setting="compile", got="maybe"):
        LocalWork(compile="maybe")  # type: ignore[arg-type]
    with raises(UsageError, "engine-unfit", got="vmap"):
        Simulator(fedavg(), Norms(), blob_federation(), work=LocalWork(compile=True), engine="vmap")


def test_training_leaves_the_global_random_state_alone() -> None:
    _, _, simulator = play(fedavg(), Norms(), blob_federation())
    before = torch.random.get_rng_state()
    simulator.runner.train(_assignment(simulator), {})
    assert torch.equal(before, torch.random.get_rng_state())


def test_optimizer_state_is_kept_or_reset_by_choice() -> None:
    """x = 2, label 0, lr 0.1, momentum 0.5: round 1 steps by 0.1 (velocity -1). In round 2 the gradient at w = 0.1 is
    -0.900332; reset gives w = 0.1900332, kept gives velocity -0.5 - 0.900332 and w = 0.2400332."""
    federation = line_federation(([2], [0]))
    ends = []
    for keep in (False, True):
        algorithm = fedavg().with_optimizer(SGD(lr=0.1, momentum=0.5, keep_state=keep))
        state, _, _ = play(algorithm, Line(), federation, rounds=2)
        ends.append(state.shared["head.weight"].item())
    assert ends == pytest.approx([0.1900332, 0.2400332], abs=1e-6)


def test_adam_state_survives_the_round_when_kept() -> None:
    algorithm = fedavg().with_optimizer(Adam(keep_state=True))
    _, _, simulator = play(algorithm, Norms(), blob_federation(), rounds=3, work=LocalWork(steps=4))
    assert float(simulator.memory[0]["optimizer"]["steps"]) == 12


def test_a_loss_that_is_not_finite_names_client_round_and_step() -> None:
    federation = line_federation(([1], [0]), ([1e30], [0]))
    algorithm = fedavg().with_optimizer(SGD(lr=1e30))
    with raises(TrainingError, "training-diverged"):
        play(algorithm, Line(), federation, work=LocalWork(steps=2))


def test_work_that_does_nothing_is_refused() -> None:
    with raises(UsageError, "out-of-range", setting="batch_size", got=0, least=1):
        LocalWork(batch_size=0)


def test_images_are_scaled_transformed_and_normalised() -> None:
    """A pixel of 51 is 0.2 of the scale; with mean 0.5 and std 0.25 it becomes (0.2 - 0.5) / 0.25 = -1.2."""
    from fedatlas.client.data import ResidentData

    images = torch.full((2, 1, 2, 2), 51, dtype=torch.uint8)
    data = Dataset(
        name="grey", inputs=images, labels=torch.tensor([0, 1]), classes=("a", "b"), mean=(0.5,), std=(0.25,)
    )
    own = torch.arange(2)
    plain = Client(name="plain", train=own, test=own)
    noisy = Client(name="noisy", train=own, test=own, transform=GaussianNoise(variance=1.0))
    federation = Federation(data=data, clients=(plain, noisy))
    rng = torch.Generator().manual_seed(0)
    batch = ResidentData(federation, 0).batch(own, rng)
    torch.testing.assert_close(batch.inputs, torch.full((2, 1, 2, 2), -1.2))
    noise = ResidentData(federation, 1).batch(own, rng).inputs
    assert noise.std() > 1


@pytest.mark.filterwarnings("ignore:client-2 will take no step")
def test_training_sees_augmented_images_and_testing_plain_ones() -> None:
    """A flip of every image in training is, bit for bit, training on a data set whose images are flipped."""
    plain = tiny_federation("images")
    flipped = replace(plain, data=replace(plain.data, inputs=plain.data.inputs.flip(-1)))
    model = build_model("cnn", num_classes=3, input_shape=(3, 8, 8), norm="none", width=2)
    work = LocalWork(augment=Augment(padding=0, flip=1.0))
    turned, _, simulator = play(fedavg(), copy.deepcopy(model), plain, work=work)
    expected, _, _ = play(fedavg(), copy.deepcopy(model), flipped)
    without, _, _ = play(fedavg(), model, plain)
    assert same_bits(turned.shared, expected.shared)
    assert not same_bits(turned.shared, without.shared)
    own = simulator.runner.data(0)
    tested = own.batch(own.client.test, None, Augment(padding=0, flip=1.0))
    assert torch.equal(tested.inputs, own.batch(own.client.test, None).inputs)


def test_statistics_that_average_over_all_batches_begin_anew_with_every_client() -> None:
    """``momentum=None`` weighs a batch by the number of those before, which must not be those of another client."""
    model = Norms()
    model.norm.momentum = None
    _, _, simulator = play(fedavg(), model, blob_federation(num_clients=2))
    alone, _ = simulator.runner.train(_assignment(simulator, 1), {})
    simulator.runner.train(_assignment(simulator, 0), {})
    after_another, _ = simulator.runner.train(_assignment(simulator, 1), {})
    assert same_bits(alone.buffers, after_another.buffers)


def _assignment(simulator, client: int = 0) -> Assignment:  # type: ignore[no-untyped-def]
    shared, buffers = simulator.runner.bench.shared()
    return Assignment(round=1, rounds=1, client=client, shared=shared, buffers=buffers)
