import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlases import A, B, C, random_atlas, roster_of
from fedatlas.algorithms import fedavg, fedbn, fedper
from fedatlas.algorithms.client2vec import client2vec
from fedatlas.algorithms.client2vec_objective import KeepProjection, Projected, projection_parameters
from fedatlas.atlas import Atlas
from fedatlas.client import LocalWork
from fedatlas.data import Client, Dataset, Federation
from fedatlas.errors import UsageError
from fedatlas.models import head_parameters
from fedatlas.parts import SGD, Algorithm, Split, Tensors, words
from fedatlas.seeds import generator
from fedatlas.training import RoundRecord, make_model
from raising import raises
from tiny import Norms, blob_federation, play, same_bits

LOG3 = math.log(3)


class Pair(nn.Module):
    """Features are the inputs; logits are (0, log 3) whatever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.bias.copy_(torch.tensor([0.0, LOG3]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.head(x)


def pair_federation() -> Federation:
    """Three clients with one example (3, 4) of class 1; the last is held out."""
    data = Dataset(name="pair", inputs=torch.tensor([[3.0, 4.0]] * 3), labels=torch.ones(3).long(), classes=("a", "b"))
    own = [torch.tensor([i]) for i in range(3)]
    clients = tuple(Client(name=f"client-{i}", train=t, test=t, held_out=i == 2) for i, t in enumerate(own))
    return Federation(data=data, clients=clients)


def pair_atlas() -> Atlas:
    """Features along the axes, of lengths 2 and 5; that of the held-out client would change every mean."""
    feature = torch.tensor([[2.0, 0.0], [0.0, 5.0], [100.0, 100.0]])
    return Atlas(names=(A, B, C), halves={"feature": feature}, sizes=torch.tensor([1, 1, 1]))


def pair_play(lr: float = 0.1, **options: Any) -> tuple[RoundRecord, Tensors, Tensors]:
    """One step of both clients from P = 1 and G = 0; return the record, the last and the first parameters."""
    algorithm = client2vec(atlas=pair_atlas(), sample=False, aggregate=False, train=True, **options).with_optimizer(
        SGD(lr=lr)
    )
    model = algorithm.extend(Pair())
    with torch.no_grad():
        parameters = dict(model.named_parameters())
        for name, value in zip(projection_parameters(model), (torch.eye(2), 0.0, 0.0), strict=True):
            parameters[name].copy_(torch.as_tensor(value))
    start = {name: w.detach().clone() for name, w in parameters.items()}
    state, records, _ = play(algorithm, model, pair_federation(), work=LocalWork(steps=1))
    return records[0], state.shared, start


@pytest.mark.parametrize(("mode", "expected"), [("mean_cos", 0.7), ("mean_dot", 13.0), ("sum_dot", 26.0)])
def test_orthogonality_is_to_all_training_clients_vectors(mode: str, expected: float) -> None:
    """z_P = (3, 4) against (2, 0) and (0, 5): cosines 0.6 and 0.8, products 6 and 20. Cross-entropy of class 1 at
    (1/4, 3/4) is log 4/3 = 0.287682."""
    record, _, _ = pair_play(lambda_o=2.0, lambda_d=0.0, mode=mode)
    assert record.losses == pytest.approx({0: 0.287682 + 2 * expected, 1: 0.287682 + 2 * expected}, abs=1e-5)


@pytest.mark.parametrize(("kl", "expected"), [("forward", 0.130812), ("reverse", 0.143841)])
def test_the_divergence_is_between_the_two_classifiers(kl: str, expected: float) -> None:
    """h says (1/4, 3/4), G (1/2, 1/2). KL(h || G) = 1/4 log 1/2 + 3/4 log 3/2 = 0.130812; KL(G || h) = 1/2 log 2 +
    1/2 log 2/3 = 0.143841."""
    record, _, _ = pair_play(lambda_o=0.0, lambda_d=3.0, kl=kl)
    assert record.losses[0] == pytest.approx(0.287682 + 3 * expected, abs=1e-5)


def test_the_temperature_divides_both_logits() -> None:
    """At temperature 2, h says (1, sqrt 3) / (1 + sqrt 3) = (0.366025, 0.633975): KL to (1/2, 1/2) is 0.036341."""
    record, _, _ = pair_play(lambda_o=0.0, temperature=2.0)
    p = 1 / (1 + math.sqrt(3))
    expected = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    assert expected == pytest.approx(0.036341, abs=1e-5)
    assert record.losses[0] == pytest.approx(0.287682 + expected, abs=1e-5)


def test_one_step_moves_the_projection_away_from_the_vectors() -> None:
    """Mean |product|: the gradient by P (one row for each entry of z_P) is 1/2 (2, 0) x (3, 4) + 1/2 (0, 5) x (3, 4) =
    ((3, 4), (7.5, 10)); a step of 0.1 from the identity ends at ((0.7, -0.4), (-0.75, 0))."""
    _, end, start = pair_play(lambda_d=0.0, mode="mean_dot")
    torch.testing.assert_close(end["projection.weight"], torch.tensor([[0.7, -0.4], [-0.75, 0.0]]))
    assert torch.equal(end["projection_classifier.bias"], start["projection_classifier.bias"])


def test_a_detached_teacher_learns_from_its_labels_only() -> None:
    """Both sides get the gradient of the divergence unless h is detached; then h's bias moves by cross-entropy alone,
    by -0.1 (1/4, -1/4), and G's by -0.1 ((1/2, 1/2) - (1/4, 3/4)) in either case."""
    for detach in (True, False):
        _, end, start = pair_play(lambda_o=0.0, detach_teacher=detach)
        moved = {name: end[name] - start[name] for name in end}
        torch.testing.assert_close(moved["projection_classifier.bias"], torch.tensor([-0.025, 0.025]))
        by_labels = torch.allclose(moved["model.head.bias"], torch.tensor([-0.025, 0.025]))
        assert by_labels == detach


def test_features_of_zeros_have_a_finite_loss_and_gradient() -> None:
    federation = pair_federation()
    federation = replace(federation, data=replace(federation.data, inputs=torch.zeros(3, 2)))
    algorithm = client2vec(atlas=pair_atlas(), sample=False, train=True)
    state, _, _ = play(algorithm, algorithm.extend(Pair()), federation)
    assert all(bool(tensor.isfinite().all()) for tensor in state.shared.values())


def test_the_test_goes_through_the_classifier_that_is_named() -> None:
    inputs = torch.randn(4, 2, generator=generator(0))
    for through in ("h", "g"):
        model = Projected(width=3, test_through=through).extend(Pair())
        through_g = model.projection_classifier(model.projection(inputs))  # type: ignore[operator]
        with torch.no_grad():
            features, trained = model(inputs)
            _, tested = model.eval()(inputs)
        assert torch.equal(features, inputs)
        assert torch.equal(trained, Pair()(inputs)[1])
        assert torch.equal(tested, through_g if through == "g" else trained)
        # A survey that differentiates by the head finds the head in the graph.
        assert torch.equal(model(inputs)[1], trained)


def test_the_projection_is_found_under_other_extensions_and_is_no_head() -> None:
    model = nn.ModuleDict({"outer": Projected(width=3).extend(Norms())})
    names = ["outer.projection.weight", "outer.projection_classifier.weight", "outer.projection_classifier.bias"]
    assert projection_parameters(model) == names
    assert head_parameters(model) == ["outer.model.head.weight", "outer.model.head.bias"]
    with raises(UsageError, "model-unfit", got="Norms"):
        projection_parameters(Norms())


def test_the_projection_starts_from_the_seed_and_leaves_the_model_as_it_was() -> None:
    federation = blob_federation()
    algorithm = client2vec(atlas=random_atlas(federation), train=True)
    one, same, other = (make_model(Norms, {}, federation, algorithm, seed).state_dict() for seed in (0, 0, 1))
    assert same_bits(dict(one), dict(same))
    assert not torch.equal(one["projection.weight"], other["projection.weight"])
    assert one["projection.weight"].shape == (5, 8)
    assert torch.equal(one["model.body.weight"], Norms().state_dict()["body.weight"])


def test_what_clients_are_told_is_declared_and_only_of_clients_that_train() -> None:
    federation = blob_federation(num_clients=5, held_out=2)
    atlas = random_atlas(federation).add_client("client-4", {"feature": torch.ones(5), "label": torch.ones(6)}, 99)
    rule = client2vec(atlas=atlas, train=True).server[-1]
    sizes = [len(client.train) for client in federation]
    roster = [replace(client, held_out=client.id > 2) for client in roster_of(sizes)]
    note = rule.note(rule.init({}, roster), roster[0])
    assert torch.equal(note["vectors"], atlas.halves["feature"][:3])
    vector, told = words(client2vec(atlas=atlas, train=True).disclosures())
    assert vector == "the client's vector in the atlas, made once before training"
    assert told == "one half of that vector, sent to the clients of every round"
    assert words(client2vec(atlas=atlas, train=False).disclosures()) == [vector]
    assert words(client2vec(atlas=atlas, train=True, lambda_o=0.0).disclosures()) == [vector]


class Peculiar(Split):
    """A split whose clients start with a head of their own, newcomers too."""

    def initial_personal(self, model: nn.Module, place: int) -> Tensors:
        return {name: torch.full((2,), float(place)) for name in head_parameters(model)[1:]}

    @property
    def newcomers_take_the_mean(self) -> bool:
        return False


def test_a_personal_projection_starts_clients_as_the_base_does() -> None:
    split = KeepProjection(base=Peculiar())
    assert same_bits(
        split.initial_personal(Projected(width=3).extend(Pair()), 4), {"model.head.bias": torch.full((2,), 4.0)}
    )
    assert not split.newcomers_take_the_mean
    assert KeepProjection().newcomers_take_the_mean


@pytest.mark.parametrize("base", [fedavg(), fedbn(), fedper()])
def test_personal_projections_stay_home_beside_what_the_base_keeps(base: Algorithm) -> None:
    federation = blob_federation(num_clients=5, held_out=1)
    plain = client2vec(base, random_atlas(federation), train=True)
    algorithm = client2vec(base, random_atlas(federation), train=True, personal=True, test_through="g")
    state, _, simulator = play(algorithm, make_model(Norms, {}, federation, algorithm, 0), federation, rounds=2)
    model = plain.extend(Norms())
    names = projection_parameters(model)
    kept = plain.split.personal_parameters(model) | plain.split.personal_buffers(model)
    assert not set(names) & state.shared.keys()
    assert simulator.memory[0]["personal"].keys() == kept | set(names)
    mine, yours = (simulator.memory[i]["personal"]["projection.weight"] for i in (0, 1))
    assert not torch.equal(mine, yours)
    assert len(simulator.evaluate(state.shared, state.buffers, range(5))) == 5


def test_a_policy_for_running_statistics_passes_through_a_personal_projection() -> None:
    federation = blob_federation()
    algorithm = client2vec(atlas=random_atlas(federation), train=True, personal=True).with_buffers("keep")
    model = algorithm.extend(Norms())
    assert isinstance(algorithm.split, KeepProjection)
    assert algorithm.split.personal_buffers(model) == {"model.norm.running_mean", "model.norm.running_var"}
    assert algorithm.with_buffers("average").split.personal_buffers(model) == set()


def test_halves_of_a_method_ask_for_each_other() -> None:
    algorithm = client2vec(atlas=pair_atlas(), sample=False, aggregate=False, train=True)
    with raises(UsageError, "part-missing", part="AtlasVectors"):
        play(replace(algorithm, server=()), algorithm.extend(Pair()), pair_federation())
    with raises(UsageError, "model-unfit", got="Pair"):
        play(algorithm, Pair(), pair_federation())
    with raises(UsageError, "head-unfit", got="Sequential"):
        Projected(width=2).extend(nn.ModuleDict({"head": nn.Sequential(nn.Linear(2, 2))}))


@pytest.mark.parametrize(("mode", "expected"), [("mean_cos", 0.84), ("mean_dot", 15.75), ("sum_dot", 31.5)])
def test_the_overlap_has_no_sign_and_is_a_mean_over_the_batch(mode: str, expected: float) -> None:
    """A batch of (3, 4) and (4, 3) against (-2, 0) and (3, 4): cosines -0.6, 1 and -0.8, 0.96, the mean without
    signs is 0.84; products -6, 25 and -8, 24, of mean 15.75; the sums over clients 31 and 32 have the mean 31.5."""
    inputs = torch.tensor([[3.0, 4.0], [4.0, 3.0]]).repeat(2, 1)
    data = Dataset(name="pair", inputs=inputs, labels=torch.ones(4).long(), classes=("a", "b"))
    own = torch.arange(4).split(2)
    clients = tuple(Client(name=f"client-{i}", train=part, test=part) for i, part in enumerate(own))
    vectors = torch.tensor([[-2.0, 0.0], [3.0, 4.0]])
    atlas = Atlas(names=(A, B), halves={"feature": vectors}, sizes=torch.tensor([2, 2]))
    algorithm = client2vec(atlas=atlas, sample=False, aggregate=False, train=True, lambda_d=0.0, mode=mode)
    model = algorithm.extend(Pair())
    with torch.no_grad():
        model.get_parameter("projection.weight").copy_(torch.eye(2))
    _, records, _ = play(
        algorithm, model, Federation(data=data, clients=clients), work=LocalWork(steps=1, batch_size=2)
    )
    assert records[0].losses[0] == pytest.approx(0.287682 + expected, abs=1e-5)


def test_the_projection_is_a_matrix_without_a_bias() -> None:
    """The loss reads z P alone: a bias would never be trained, and would still be added where G is tested."""
    names = {name for name, _ in Projected(width=3).extend(Pair()).named_parameters() if not name.startswith("model.")}
    assert names == {"projection.weight", "projection_classifier.weight", "projection_classifier.bias"}
