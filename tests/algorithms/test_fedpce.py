import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedatlas import check_algorithm
from fedatlas.algorithms import fedavg
from fedatlas.algorithms.fedpce import ConditionedNorms, Group, Grouped, KeepEmbedding, fedpce
from fedatlas.algorithms.fedsam import SharpnessAware
from fedatlas.client import LocalWork, ResidentData
from fedatlas.errors import UsageError
from fedatlas.models import ClientEmbedding, NormGenerators, build_model
from fedatlas.parts import SGD, Adam, Algorithm, Assignment, ByExamples, Equal, words
from fedatlas.testing import tiny_federation
from raising import raises
from tiny import Line, Norms, blob_federation, check_beside_torch, line_federation, play, same_bits

VECTOR = "embedding.vector"


def network(algorithm: Algorithm, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return algorithm.extend(Norms())


class Scaled(nn.Module):
    """Logits (gamma x + beta, 0), gamma and beta made from the embedding: no norm, so that it can be done by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = ClientEmbedding(2)
        self.made = nn.Linear(2, 1, bias=False)
        nn.init.constant_(self.made.weight, 1.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logit = x * self.made(self.embedding.vector)
        return x, torch.cat([logit, torch.zeros_like(logit)], 1)


def test_one_round_worked_out_by_hand() -> None:
    """Logit x * (w . v), w = (1, 1), lr 0.1 for w and 1 for v; both clients have x = 2, label 0.
    Client 0 starts at v = (1, 0), client 1 at (0, 1): the logit is 2, its gradient -sigmoid(-2) = -0.1192029.
    dw = 2 v d = -0.2384058 v and dv = 2 w d = -0.2384058 (1, 1).
    Client 0: w = (1.02384058, 1), v = (1.2384058, 0.2384058); client 1 the other way round.
    The server's mean of w is (1.01192029, 1.01192029)."""
    groups = (Group(of=ClientEmbedding, lr=1.0),)
    algorithm = replace(fedpce(), extensions=(), optimizer=Grouped(base=SGD(lr=0.1), groups=groups))
    state, _, simulator = play(algorithm, Scaled(), line_federation(([2], [0]), ([2], [0])))
    assert set(state.shared) == {"made.weight"}
    torch.testing.assert_close(state.shared["made.weight"], torch.tensor([[1.01192029, 1.01192029]]))
    own = [simulator.memory[c]["personal"][VECTOR].tolist() for c in (0, 1)]
    assert own[0] == pytest.approx([1.2384058, 0.2384058])
    assert own[1] == pytest.approx([0.2384058, 1.2384058])


@pytest.mark.parametrize("kind", ["images", "features"])
def test_it_keeps_its_promises(kind: str) -> None:
    check_algorithm(fedpce(embedding=4, hidden=8), kind=kind)  # type: ignore[arg-type]


def test_it_keeps_its_promises_with_instance_norms() -> None:
    federation = tiny_federation("images")
    model = build_model("cnn", num_classes=3, input_shape=(3, 8, 8), width=4, norm="instance")
    check_algorithm(fedpce(embedding=4, hidden=8, newcomer="mean"), federation=federation, model=model)


def test_clients_start_at_unit_vectors_counted_over_those_that_train() -> None:
    """Five clients, of which 1 and 3 are held out; three dimensions. Those that train are e0, e1, e2, the held-out ones
    e0 and e1; a fourth that trains has no dimension left and starts at 0."""
    model = network(fedpce(embedding=3, hidden=2))
    federation = blob_federation(num_clients=6).hold_out([1, 3])
    split = KeepEmbedding()
    first = [split.initial_personal(model, ResidentData(federation, c).place)[VECTOR].tolist() for c in range(6)]
    assert first == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_only_the_embedding_stays_home() -> None:
    algorithm = fedpce(embedding=3, hidden=2)
    state, _, simulator = play(algorithm, network(algorithm), blob_federation(num_clients=4), rounds=2)
    assert VECTOR not in state.shared
    assert {name for name in state.shared if name.startswith("generators.")}
    for client in range(4):
        assert list(simulator.memory[client]["personal"]) == [VECTOR]
    assert state.buffers.keys() == {"model.norm.running_mean", "model.norm.running_var"}


def test_a_client_is_trained_and_tested_with_its_own_embedding() -> None:
    algorithm = fedpce(embedding=4, hidden=8, lr=0.01)
    federation = blob_federation(num_clients=5, held_out=1)
    state, _, simulator = play(algorithm, network(algorithm), federation, rounds=3)
    own = {c: simulator.memory[c]["personal"] for c in range(4)}
    assert len({tuple(values[VECTOR].tolist()) for values in own.values()}) == 4
    scores = simulator.evaluate(state.shared, state.buffers, range(5))
    for client, values in own.items():
        assert scores[client].loss == simulator.runner.score_client(state.shared, state.buffers, values, client).loss
    unit = {VECTOR: torch.tensor([1.0, 0, 0, 0])}
    assert scores[4].loss == simulator.runner.score_client(state.shared, state.buffers, unit, 4).loss


def test_a_newcomer_may_start_at_the_mean() -> None:
    algorithm = fedpce(embedding=4, hidden=8, newcomer="mean")
    state, _, simulator = play(algorithm, network(algorithm), blob_federation(num_clients=4, held_out=1), rounds=2)
    mean = torch.stack([simulator.memory[c]["personal"][VECTOR] for c in range(3)]).mean(0)
    (score,) = simulator.evaluate(state.shared, state.buffers, [3])
    expected = simulator.runner.score_client(state.shared, state.buffers, {VECTOR: mean}, 3)
    assert score.loss == pytest.approx(expected.loss, rel=1e-6)


def test_another_clients_embedding_changes_nothing_for_a_client() -> None:
    """Training a client is a function of the shared model and of its own vector only."""
    algorithm = fedpce(embedding=4, hidden=8)
    _, _, simulator = play(algorithm, network(algorithm), blob_federation(num_clients=3), rounds=1)
    shared, buffers = simulator.runner.bench.shared()
    assignment = Assignment(round=1, rounds=1, client=1, shared=shared, buffers=buffers)
    before, memory = simulator.runner.train(assignment, simulator.memory[1])
    simulator.memory[0]["personal"] = {VECTOR: torch.full((4,), 9.0)}
    simulator.runner.train(replace(assignment, client=0), simulator.memory[0])
    after, memory_after = simulator.runner.train(assignment, simulator.memory[1])
    assert same_bits(before.change, after.change)
    assert same_bits(memory["personal"], memory_after["personal"])
    assert VECTOR not in after.change


def test_rates_fall_by_cosine_each_to_its_own_minimum() -> None:
    """Halfway through four rounds, in the third, a rate is the mean of its first and its last."""
    algorithm = fedpce(embedding=3, hidden=2)
    model = network(algorithm)
    names = [name for name, _ in model.named_parameters()]

    def rates(round: int) -> dict[str, float]:
        fitted = algorithm.optimizer.fitted(model, names)
        assert isinstance(fitted, Grouped)
        of_group = fitted.rates_at(round, 4)
        assert isinstance(of_group, tuple)
        return {name: of_group[place] for name, place in zip(names, fitted.places, strict=True)}

    first, third = rates(1), rates(3)
    assert first[VECTOR] == 0.1
    assert third[VECTOR] == pytest.approx((0.1 + 1e-4) / 2)
    made = {name for name in names if name.startswith("generators.")}
    assert {first[name] for name in made} == {1e-2}
    assert [third[name] for name in made] == pytest.approx([(1e-2 + 1e-6) / 2] * len(made))
    rest = set(names) - made - {VECTOR}
    assert {first[name] for name in rest} == {1e-4}
    assert third["model.head.weight"] == pytest.approx((1e-4 + 1e-6) / 2)


@pytest.mark.parametrize(
    ("base", "theirs"),
    [
        (
            Adam(lr=1e-3, beta1=0.5, beta2=0.9, weight_decay=0.1),
            lambda groups: torch.optim.Adam(groups, betas=(0.5, 0.9), weight_decay=0.1),
        ),
        (Adam(lr=1e-3, weight_decay=0.1, decoupled=True), lambda groups: torch.optim.AdamW(groups, weight_decay=0.1)),
        (SGD(lr=1e-3, momentum=0.9), lambda groups: torch.optim.SGD(groups, momentum=0.9)),
    ],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_grouped_steps_are_those_of_torchs_parameter_groups(base: Adam | SGD, theirs: object, as_tensor: bool) -> None:
    model = network(fedpce(embedding=3, hidden=2))
    grouped = Grouped(base=base, groups=(Group(of=NormGenerators, lr=0.02), Group(of=ClientEmbedding, lr=0.3)))
    names = [name for name, _ in model.named_parameters()]
    rates = {name: 0.3 if name == VECTOR else 0.02 if name.startswith("generators.") else 1e-3 for name in names}
    check_beside_torch(grouped, model, theirs, rates, as_tensor=as_tensor)


def test_one_rate_for_all_is_the_base_bit_for_bit() -> None:
    plain = replace(fedavg(), optimizer=Adam(lr=0.01, keep_state=True))
    grouped = replace(plain, optimizer=Grouped(base=Adam(lr=0.01, keep_state=True)))
    work = LocalWork(epochs=2, batch_size=8)
    one, _, first = play(plain, Norms(), blob_federation(), rounds=3, work=work)
    two, _, second = play(grouped, Norms(), blob_federation(), rounds=3, work=work)
    assert same_bits(one.shared, two.shared)
    assert same_bits(first.memory[0]["optimizer"], second.memory[0]["optimizer"])


def test_other_optimizers_go_under_and_around_the_groups() -> None:
    algorithm = fedpce().with_optimizer(SGD(lr=0.05))
    assert isinstance(algorithm.optimizer, Grouped)
    assert algorithm.optimizer.base == SGD(lr=0.05)
    assert algorithm.optimizer.groups == fedpce().optimizer.groups  # type: ignore[attr-defined]
    around = replace(fedpce(embedding=4, hidden=4), optimizer=SharpnessAware(rho=0.05, base=algorithm.optimizer))
    state, _, _ = play(around, network(around), blob_federation(num_clients=3), rounds=2)
    assert all(bool(tensor.isfinite().all()) for tensor in state.shared.values())
    with raises(UsageError, "wrong-type", setting="Grouped(base)", got="SharpnessAware"):
        Grouped(base=SharpnessAware())


def test_adams_state_is_kept_for_each_client() -> None:
    algorithm = fedpce(embedding=4, hidden=8)
    work = LocalWork(steps=5, batch_size=8)
    _, _, simulator = play(algorithm, network(algorithm), blob_federation(num_clients=3), rounds=2, work=work)
    state = simulator.memory[0]["optimizer"]
    assert float(state["steps"]) == 10
    assert f"first/{VECTOR}" in state


def test_a_new_client_begins_at_its_own_rate() -> None:
    """FedPCE's embedding begins at 1e-2 and ends at 1e-4; a rate that is given holds for all."""
    adapting = fedpce().optimizer.adapting()
    assert isinstance(adapting, Grouped)
    embedding = adapting.groups[1]
    assert (embedding.of, embedding.lr, embedding.min_lr) == (ClientEmbedding, 1e-2, 1e-4)
    given = fedpce().optimizer.adapting(lr=1e-5)
    assert isinstance(given, Grouped)
    assert [(group.lr, group.min_lr) for group in given.groups] == [(1e-5, 1e-6), (1e-5, 1e-5)]
    assert given.base.lr == 1e-5
    assert SharpnessAware(base=SGD(lr=0.1)).adapting(lr=0.2) == SharpnessAware(base=SGD(lr=0.2))


def test_clients_count_equally_or_by_examples() -> None:
    assert fedpce().weighting == (Equal(),)
    assert fedpce(uniform=False).weighting == (ByExamples(),)


def test_the_recipe_has_the_papers_settings() -> None:
    algorithm = fedpce()
    assert algorithm.extensions == (ConditionedNorms(embedding=32, hidden=64, head_norm="layer"),)
    assert isinstance(algorithm.optimizer, Grouped)
    base = algorithm.optimizer.base
    assert base == Adam(
        lr=1e-4, min_lr=1e-6, beta1=0.5, beta2=0.9, weight_decay=1e-4, schedule="cosine", keep_state=True
    )
    assert math.isclose(algorithm.optimizer.lr_at(1, 1000), 1e-4)
    assert words(algorithm.disclosures()) == []


def test_what_makes_no_sense_is_refused() -> None:
    with raises(UsageError, "model-unfit", got="Line"):
        play(replace(fedpce(), extensions=()), Line(), line_federation(([1], [0])))
    with raises(UsageError, "wrong-value", setting="KeepEmbedding(newcomer)", got="zero"):
        fedpce(newcomer="zero")  # type: ignore[arg-type]
    with raises(UsageError, "out-of-range", setting="Adam(min_lr)", got=0.2):
        Grouped(base=Adam(), groups=(Group(of=ClientEmbedding, lr=0.1, min_lr=0.2),))
    with raises(UsageError, "not-fitted"):
        Grouped(base=SGD()).step([torch.zeros(1)], [], lambda: [torch.zeros(1)], (0.1,))
    fitted = Grouped(base=SGD()).fitted(Line(), ["head.weight"])
    for lr in (0.1, (0.1, 0.2), torch.tensor(0.1)):
        with raises(UsageError, "wrong-type"):
            fitted.step([torch.zeros(1)], [], lambda: [torch.zeros(1)], lr)
