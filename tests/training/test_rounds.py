import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithms import fedavg, fedprox
from fedatlas.client import LocalWork
from fedatlas.engines import Simulator
from fedatlas.errors import TrainingError, UsageError
from fedatlas.parts import (
    SGD,
    Algorithm,
    Assignment,
    ByExamples,
    Cohort,
    CrossEntropy,
    Sampler,
    ServerRule,
    Tensors,
    Term,
    Upload,
    Weighting,
    add,
    weighted_sum,
)
from fedatlas.parts import tensor_math as aggregation
from fedatlas.training.draws import Draws
from fedatlas.training.rounds import play as play_rounds
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_fedavg_weighs_clients_by_their_examples() -> None:
    """One step at w = 0, lr 0.1, x = 2: client 0 (one example, label 0) has gradient -1 and ends at 0.1; client 1
    (three examples, label 1) has gradient +1 and ends at -0.1. Mean by examples: (1 * 0.1 + 3 * -0.1) / 4 = -0.05."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    algorithm = fedavg().with_optimizer(SGD(lr=0.1))
    state, records, _ = play(algorithm, Line(), federation)
    assert state.shared["head.weight"].item() == pytest.approx(-0.05)
    assert records[0].weights == {0: 0.25, 1: 0.75}


def test_proximal_term_pulls_towards_the_received_model() -> None:
    """Two steps, lr 0.1, mu 2, x = 2, label 0, from w = 0. Step 1: the pull is 0, w = 0.1. Step 2: the gradient of
    cross-entropy is -2 / (1 + e^{0.2}) = -0.900332, the pull is 2 * 0.1 = 0.2: w = 0.1 + 0.1 * 0.700332 = 0.170033."""
    federation = line_federation(([2], [0]))
    algorithm = fedprox(mu=2.0).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), federation, work=LocalWork(epochs=2))
    assert state.shared["head.weight"].item() == pytest.approx(0.1700332, abs=1e-6)


def test_fedprox_without_pull_is_fedavg_bit_for_bit() -> None:
    federation = blob_federation()
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3)
    without, _, _ = play(fedprox(mu=0.0), Norms(), federation, rounds=3)
    assert same_bits(plain.shared, without.shared)
    assert same_bits(plain.buffers, without.buffers)


def test_one_client_and_one_epoch_equal_centralised_training() -> None:
    federation = blob_federation(num_clients=1)
    work = LocalWork(epochs=1, batch_size=8)
    torch_model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    head = nn.Linear(8, 3)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = torch_model, head

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            features = self.body(x)
            return features, self.head(features)

    model = Net()
    start = {k: v.detach().clone() for k, v in model.state_dict().items()}
    state, _, simulator = play(fedavg().with_optimizer(SGD(lr=0.1)), model, federation, work=work)

    from fedatlas.client import minibatches, open_local

    model.load_state_dict(start)
    shared, buffers = simulator.runner.bench.shared()
    assignment = Assignment(round=1, rounds=1, client=0, shared=shared, buffers=buffers)
    runner = simulator.runner
    local = open_local(runner.algorithm, work, assignment, runner.bench, {}, runner.data(0), 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in minibatches(local, runner.bench):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.inputs)[1], batch.labels).backward()
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state.shared[name], value, rtol=1e-6, atol=1e-7)


def test_partial_participation_draws_distinct_clients_and_never_held_out_ones() -> None:
    federation = blob_federation(num_clients=8, held_out=2)
    _, records, _ = play(fedavg(), Norms(), federation, rounds=10, cohort=3)
    assert all(len(set(record.cohort)) == 3 for record in records)
    assert all(max(record.cohort) < 6 for record in records)
    assert len({record.cohort for record in records}) > 1


@pytest.mark.parametrize("cohort", [0, 7, 100])
def test_a_cohort_the_federation_cannot_fill_is_refused(cohort: int) -> None:
    roster = Simulator(fedavg(), Norms(), blob_federation(num_clients=8, held_out=2), workers=1).roster
    with raises(UsageError, "cohort-size"):
        Draws(fedavg().sampler, roster, cohort, seed=0)


class Dropping(Simulator):
    """Loses the answer of one client."""

    lost = 1

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        return super().train([a for a in assignments if a.client != self.lost])


def test_a_client_that_does_not_answer_is_left_out_of_the_weights() -> None:
    federation = line_federation(([2], [0]), ([2, 2], [1, 1]), ([2, 2, 2], [1, 1, 1]))
    algorithm = fedavg().with_optimizer(SGD(lr=0.1))
    with Dropping(algorithm, Line(), federation, workers=1) as simulator:
        state, record, *_ = next(play_rounds(algorithm, simulator, rounds=1))
    assert record.weights == {0: 0.25, 2: 0.75}
    assert state.shared["head.weight"].item() == pytest.approx(-0.05)


def test_integer_counters_are_never_averaged_and_statistics_are() -> None:
    state, _, simulator = play(fedavg(), Norms(), blob_federation(), rounds=2)
    assert set(state.buffers) == {"norm.running_mean", "norm.running_var"}
    assert not any("num_batches_tracked" in name for name in simulator.runner.bench.buffers)
    assert not torch.equal(state.buffers["norm.running_mean"], torch.zeros(8))


def test_kept_buffers_stay_with_their_client() -> None:
    algorithm = fedavg().with_buffers("keep")
    state, _, simulator = play(algorithm, Norms(), blob_federation(), rounds=1)
    assert state.buffers == {}
    means = [simulator.memory[c]["personal"]["norm.running_mean"] for c in range(6)]
    assert len({tuple(mean.tolist()) for mean in means}) == 6


def test_two_parts_of_one_name_are_refused() -> None:
    with raises(UsageError, "name-repeated", got="cross_entropy"):
        Algorithm(name="twice", objective=fedavg().objective * 2)


def test_an_unknown_buffer_policy_is_refused() -> None:
    with raises(UsageError, "wrong-value", setting="buffers", got="drop"):
        replace(fedavg().split, buffers="drop")  # type: ignore[arg-type]


def test_a_product_sums_as_one_after_another_does(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    terms = [torch.randn(3, 5, generator=rng) for _ in range(7)]
    weights = torch.rand(7, generator=rng, dtype=torch.float64)
    expected = weighted_sum([{"w": term} for term in terms], weights)["w"]
    for at_once in (100, 3):
        monkeypatch.setattr(aggregation, "PRODUCT_BYTES", at_once * terms[0].nbytes)
        torch.testing.assert_close(aggregation._product(terms, weights), expected)


def test_tensors_of_stacked_clients_are_summed_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = torch.randn(6, 2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    weights = torch.rand(6, generator=torch.Generator().manual_seed(1))
    copied: list[int] = []
    stack = torch.stack

    def counted(tensors: list[torch.Tensor]) -> torch.Tensor:
        copied.append(len(tensors))
        return stack(tensors)

    monkeypatch.setattr(torch, "stack", counted)
    channels_last = torch.empty_strided(stacked.shape, (96, 48, 1, 12, 3)).copy_(stacked)
    for terms in (stacked.unbind(), channels_last.unbind(), stacked.flip(0).unbind()[::-1]):
        expected = sum((w * t for w, t in zip(weights, terms, strict=True)), torch.zeros(()))
        total = aggregation._product(terms, weights)
        torch.testing.assert_close(total, expected)
        assert total.stride() == terms[0].stride()
    assert copied == [6], "only those in another order"


@dataclass(frozen=True, kw_only=True)
class Nameless(Term):
    pass


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ({"objective": CrossEntropy()}, "Write objective=(part,)"),
        ({"objective": (Nameless(),)}, "Nameless must have a name"),
        ({"objective": (CrossEntropy,)}, "got the class CrossEntropy"),
        ({"weighting": (CrossEntropy(),)}, "weighting must be a Weighting"),
        ({"sampler": "uniform"}, "sampler must be a Sampler"),
        ({"split": None}, "split must be a Split"),
        ({"optimizer": "sgd"}, "Write fedatlas.SGD("),
    ],
)
def test_what_is_no_part_of_an_algorithm_is_refused(slots: dict[str, Any], words: str) -> None:
    with raises(UsageError, "wrong-type") as caught:
        Algorithm(name="mine", **slots)
    assert words in str(caught.value)


@dataclass(frozen=True, kw_only=True)
class Returns(Weighting, Sampler):
    name: ClassVar[str] = "returns"
    answer: Any = None

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> Any:
        return self.answer

    def sample(self, candidates: Any, count: int, roster: Any, memory: Tensors, rng: Any) -> Any:
        return self.answer


def test_weightings_of_a_chain_multiply() -> None:
    """3 and 1 by the first, 1 and 3 examples: both count the same."""
    federation = line_federation(([2], [0]), ([2, 2, 2], [1, 1, 1]))
    first = Returns(answer=(torch.tensor([3.0, 1.0], dtype=torch.float64), {}))
    _, records, _ = play(replace(fedavg(), weighting=(first, ByExamples())), Line(), federation)
    assert records[0].weights == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (torch.ones(6), r"Returns returned tensor\(.*return weights, memory`"),
        (([1.0] * 6, {}), "the weights as a tensor"),
        ((torch.ones(5), {}), r"weights of shape \(5,\); give one to each of the 6 uploads"),
        ((torch.tensor([1.0, -1, 1, 1, 1, 1]), {}), r"Returns returned \[1.0, -1.0, .* weights must not be negative"),
    ],
)
def test_a_weighting_that_returns_something_else_is_named(answer: Any, says: str) -> None:
    with raises(TrainingError, "bad-weights") as caught:
        play(fedavg().with_weighting(Returns(answer=answer)), Norms(), blob_federation())
    assert re.search(says, str(caught.value))


@pytest.mark.parametrize(
    ("answer", "fields"),
    [(([999], {}), {"got": 999}), (([5, 0], {}), {"got": 5}), ([1, 2], {})],
)
def test_a_sampler_that_returns_something_else_is_named(answer: Any, fields: dict[str, Any]) -> None:
    with raises(UsageError, "bad-draw", sampler="Returns", **fields):
        play(replace(fedavg(), sampler=Returns(answer=answer)), Norms(), blob_federation(held_out=1))


def test_tensors_are_added_by_name_whatever_their_order() -> None:
    """An answer from another machine may name its parameters in another order."""
    one, other = {"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, {"b": torch.tensor(20.0), "a": torch.tensor(10.0)}
    found = weighted_sum([one, other], torch.tensor([0.5, 0.5]))
    assert {name: float(value) for name, value in found.items()} == {"a": 5.5, "b": 11.0}
    assert {name: float(value) for name, value in add(one, other).items()} == {"a": 11.0, "b": 22.0}


def test_running_statistics_are_the_mean_of_the_clients_by_their_examples() -> None:
    federation = blob_federation(num_clients=2)
    with Simulator(fedavg(), Norms(), federation, workers=1) as simulator:
        shared, buffers = simulator.runner.bench.shared()
        given = [Assignment(round=1, rounds=1, client=i, shared=shared, buffers=buffers) for i in (0, 1)]
        own = [simulator.runner.train(assignment, {})[0].buffers for assignment in given]
    state, records, _ = play(fedavg(), Norms(), federation)
    assert records[0].weights[0] != records[0].weights[1]
    for name, mean in state.buffers.items():
        expected = records[0].weights[0] * own[0][name] + records[0].weights[1] * own[1][name]
        torch.testing.assert_close(mean, expected)


@dataclass(frozen=True, kw_only=True)
class Twice(ServerRule):
    """Doubles the change."""

    name: ClassVar[str] = "twice"

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        return {name: 2 * tensor for name, tensor in change.items()}, memory


@dataclass(frozen=True, kw_only=True)
class PlusOne(ServerRule):
    """Adds one to the change."""

    name: ClassVar[str] = "plus_one"

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        return {name: tensor + 1 for name, tensor in change.items()}, memory


def test_server_rules_chain_in_their_order() -> None:
    """A change of 0.1, doubled and then plus one, is 1.2; the other way around it would be 2.2."""
    algorithm = replace(fedavg(), server=(Twice(), PlusOne())).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), line_federation(([2], [0])))
    assert state.shared["head.weight"].item() == pytest.approx(1.2)


@dataclass(frozen=True, kw_only=True)
class Nothing(Weighting):
    """Gives nobody any weight."""

    name: ClassVar[str] = "nothing"

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        return 0 * weights, memory


def test_weights_that_are_all_zero_are_refused_before_they_divide() -> None:
    with raises(TrainingError, "bad-weights"):
        play(replace(fedavg(), weighting=(Nothing(),)), Line(), line_federation(([2], [0])))
