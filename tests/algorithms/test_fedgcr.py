import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.test_captured_step import StagedEngine
from fedatlas import check_algorithm
from fedatlas.algorithms import fedavg
from fedatlas.algorithms.fedgc import ADAMW, Customized, GroupCentres, GroupCustomization, fedgc
from fedatlas.algorithms.fedgcr import fedgcr
from fedatlas.algorithms.fedgr import FixedGroups, GroupLoss, TypeGroups, TypeVector, fedgr
from fedatlas.client import LocalWork
from fedatlas.engines import Simulator
from fedatlas.errors import UsageError
from fedatlas.models import CustomizedClassifier
from fedatlas.parts import SGD, Adam, Algorithm, Assignment, Memory, Tensors, Upload
from fedatlas.training import play as play_rounds
from raising import raises
from tiny import Line, Norms, line_federation, play, same_bits
from typed_clients import KINDS, Typed, image_federation, tiny_vit


def customize(
    term: GroupCustomization,
    memory: Memory | None = None,
    group: int = 1,
    progress: float = 0.5,
    x: float = 1.0,
    swapped: bool = False,
    vector: TypeVector | None = None,
) -> tuple[Upload, Memory]:
    """Train one step on x = 1 from w = 0, where the centres are (1, 0) and (0, 1)."""
    algorithm = replace(fedgc(), objective=(*fedavg().objective, vector or TypeVector(), term), optimizer=SGD(lr=0.1))
    _, _, simulator = play(algorithm, Typed(), line_federation(([x], [0])))
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    centres = centres.flip(0) if swapped else centres
    told: Tensors = {"centres": centres, "group": torch.tensor(group), "progress": torch.tensor(progress)}
    shared = {"w": torch.zeros(()), "head.weight": torch.zeros(2, 2)}
    assignment = Assignment(round=2, rounds=4, client=0, shared=shared, buffers={}, notes={"group_customization": told})
    return simulator.runner.train(assignment, memory or {})


PREVIOUS: Memory = {"group_customization": {"mean": torch.ones(2), "model/w": torch.ones(())}}


def test_the_customization_draws_prompts_to_the_group_s_centre() -> None:
    """h = (1, w) at w = 0; centres (1, 0) and, the own one, (0, 1); the last mean (1, 1). The cosines 1, 0, 1/sqrt 2
    have the slopes 0, 1, 1/sqrt 2. Over tau 0.5 the shares are e^2, 1, e^1.4142136 = 7.389056, 1, 4.113250 of
    12.502306, so the loss is log 12.502306 = 2.525914 and its slope ((0.0799852 - 1) + 0.3289993 / sqrt 2) / 0.5
    = -1.374754. With lambda1 0.5 and lr 0.1, w = 0.0687377."""
    upload, _ = customize(GroupCustomization(lambda1=0.5, lambda2=0.0, tau=0.5), PREVIOUS)
    assert upload.change["w"].item() == pytest.approx(0.0687377, abs=1e-6)
    assert upload.metrics["loss"] == pytest.approx(math.log(2) + 0.5 * 2.525914, abs=1e-5)


def test_the_alignment_draws_features_to_the_received_model_s() -> None:
    """z = z_0 = (1, 0), z_prev = (1, 1): the cosines are 1 with slope 0 and 1/sqrt 2 with slope 1/sqrt 2. Over tau 0.5
    the loss is log(1 + e^{-0.5857864}) = 0.4425480 and its slope 0.3576022 * 1.4142136 = 0.5057259; with lambda2 0.1
    and lr 0.1, w = -0.005057259."""
    upload, _ = customize(GroupCustomization(lambda1=0.0, lambda2=0.1), PREVIOUS)
    assert upload.change["w"].item() == pytest.approx(-0.005057259, abs=1e-7)
    assert upload.metrics["loss"] == pytest.approx(math.log(2) + 0.1 * 0.4425480, abs=1e-6)
    both, _ = customize(GroupCustomization(), PREVIOUS)
    assert both.change["w"].item() == pytest.approx(0.0687377 - 0.0050573, abs=1e-6)


def test_similarities_can_be_dot_products() -> None:
    """h = (1, w) at w = 0. Its products with the centres (1, 0) and, the own one, (0, 1) and with the last mean (1, 1)
    are 1, 0, 1 with slopes 0, 1, 1. Over tau 0.5 the shares are e^2, 1, e^2 of 15.778112: the loss is
    log 15.778112 = 2.758623, its slope ((0.0633789 - 1) + 0.4683106) / 0.5 = -0.936621, so w = 0.5 * 0.1 * 0.936621.
    The products of z with z_0 = (1, 0) and z_prev = (1, 1) are 1 and 1 with slopes 0 and 1: the slope of the alignment
    is 0.5 / 0.5 = 1, so w = -0.1 * 0.1."""
    customized, _ = customize(GroupCustomization(lambda2=0.0, similarity="dot"), PREVIOUS)
    assert customized.change["w"].item() == pytest.approx(0.0468311, abs=1e-6)
    assert customized.metrics["loss"] == pytest.approx(math.log(2) + 0.5 * 2.758623, abs=1e-5)
    aligned, _ = customize(GroupCustomization(lambda1=0.0, similarity="dot"), PREVIOUS)
    assert aligned.change["w"].item() == pytest.approx(-0.01, abs=1e-7)


@pytest.mark.parametrize(("after", "second"), [(False, 0.0), (True, 0.0880797)])
def test_the_mean_can_be_of_the_trained_model(after: bool, second: float) -> None:
    """h = (1, w): w is 0 in the received model and 0.0880797 after the step of the test below."""
    upload, memory = customize(GroupCustomization(), vector=TypeVector(after_training=after))
    assert upload.notes["type_vector"]["mean"].tolist() == pytest.approx([1.0, second], abs=1e-6)
    assert torch.equal(memory["group_customization"]["mean"], upload.notes["type_vector"]["mean"])


def test_a_newcomer_has_no_last_mean_and_no_last_model() -> None:
    """The shares are e^2 and 1 alone: the slope is (1 / (e^2 + 1) - 1) / 0.5 = -1.761594, so w = 0.0880797."""
    upload, memory = customize(GroupCustomization())
    assert upload.change["w"].item() == pytest.approx(0.0880797, abs=1e-6)
    assert memory["group_customization"]["mean"].tolist() == [1.0, 0.0]
    assert memory["group_customization"]["model/w"].item() == pytest.approx(0.0880797, abs=1e-6)


def test_a_client_that_missed_the_last_round_takes_the_nearest_group() -> None:
    """Its mean is (1, 0), the first centre."""
    unknown, _ = customize(GroupCustomization(), PREVIOUS, group=-1)
    first, _ = customize(GroupCustomization(), PREVIOUS, group=0)
    assert torch.equal(unknown.change["w"], first.change["w"])


def test_the_code_s_weight_grows_from_half_to_the_whole() -> None:
    """Half way the weight is 3/4 of lambda1: w = 0.75 * 0.0687377."""
    upload, _ = customize(GroupCustomization(lambda2=0.0, ramp=True), PREVIOUS, progress=0.5)
    assert upload.change["w"].item() == pytest.approx(0.75 * 0.0687377, abs=1e-6)


def test_the_first_round_is_cross_entropy_alone() -> None:
    federation, work = image_federation(), LocalWork(batch_size=8)
    plain, _, _ = play(fedavg().with_optimizer(ADAMW), tiny_vit(gc_net=True), federation, work=work)
    first, _, simulator = play(fedgc(), tiny_vit(gc_net=True), federation, work=work)
    assert same_bits(plain.shared, first.shared)
    assert simulator.memory.keys() == set(range(len(KINDS)))


def test_fedgc_without_weights_is_fedavg_over_the_same_model_bit_for_bit() -> None:
    federation, work = image_federation(), LocalWork(batch_size=8)
    plain, _, _ = play(fedavg().with_optimizer(ADAMW), tiny_vit(gc_net=True), federation, rounds=3, work=work)
    algorithm = fedgc(lambda1=0.0, lambda2=0.0)
    without, _, simulator = play(algorithm, tiny_vit(gc_net=True), federation, rounds=3, work=work)
    assert same_bits(plain.shared, without.shared)
    assert simulator.memory == {}
    with_both, _, _ = play(fedgc(), tiny_vit(gc_net=True), federation, rounds=3, work=work)
    assert not same_bits(plain.shared, with_both.shared)


def test_types_are_found_and_only_what_is_trained_travels() -> None:
    algorithm = fedgcr(num_groups=2)
    model = algorithm.extend(tiny_vit(dropout=0.1))
    state, records, _ = play(algorithm, model, image_federation(), rounds=3, work=LocalWork(batch_size=8))
    assert state.memory["server/group_customization"]["group"].tolist() == list(KINDS)
    assert {name.split(".")[0] for name in state.shared} == {"prompts", "gc_net", "head"}
    assert sum(records[-1].weights.values()) == pytest.approx(1.0)
    assert isinstance(model, CustomizedClassifier)
    assert not model.encoder.training


def test_each_client_remembers_its_mean_and_its_last_model_without_the_head() -> None:
    algorithm = fedgcr(num_groups=2)
    federation = image_federation()
    model = algorithm.extend(tiny_vit())
    _, records, simulator = play(algorithm, model, federation, rounds=3, cohort=2, work=LocalWork(batch_size=8))
    drawn = {client for record in records for client in record.cohort}
    assert simulator.memory.keys() == drawn
    assert len(drawn) > 2
    names = {f"model/{name}" for name in simulator.runner.bench.parameters if not name.startswith("head")}
    for client in drawn:
        assert simulator.memory[client]["group_customization"].keys() == names | {"mean"}
    ends = {tuple(simulator.memory[c]["group_customization"]["model/prompts"].flatten().tolist()) for c in drawn}
    assert len(ends) == len(drawn)


def test_the_alignment_leaves_the_model_in_the_mode_of_training() -> None:
    algorithm = fedgc(num_groups=2, lambda1=0.0)
    with Simulator(algorithm, algorithm.extend(tiny_vit(dropout=0.5)), image_federation(), workers=1) as simulator:
        shared, buffers = simulator.runner.bench.shared()
        assignment = Assignment(round=1, rounds=2, client=0, shared=shared, buffers=buffers)
        _, memory = simulator.runner.train(assignment, {})
        simulator.runner.train(assignment, memory)
        assert simulator.runner.bench.model.training


@pytest.mark.parametrize(
    "algorithm",
    [fedgcr(), fedgcr(num_groups=2, method="finch", preset="as_published_code")],
    ids=["paper", "as_published_code"],
)
def test_fedgcr_keeps_its_promises(algorithm: Algorithm) -> None:
    check_algorithm(algorithm, kind="images", model=tiny_vit(num_classes=3, dropout=0.1))


def test_captured_steps_give_the_bits_of_the_plain_loop_and_pass_no_image_again() -> None:
    algorithm, states, passed = fedgcr(num_groups=2), [], []
    for staged in (False, True):
        torch.manual_seed(0)
        model = algorithm.extend(tiny_vit())
        assert isinstance(model, CustomizedClassifier)
        plain, count = model.encoder.embed, [0]

        def embed(images: Tensor, plain: Callable[[Tensor], Tensor] = plain, count: list[int] = count) -> Tensor:
            count[0] += len(images)
            return plain(images)

        model.encoder.embed = embed  # type: ignore[method-assign]
        work = LocalWork(batch_size=4)
        with Simulator(algorithm, model, image_federation(), work=work, workers=1, engine="loop") as simulator:
            runner = simulator.runner
            if staged:
                simulator.trainer = StagedEngine(runner, most_lanes=1)
            for found in play_rounds(algorithm, simulator, rounds=3, cohort_size=5, seed=0):
                state = found.state
        assert simulator.fallbacks() == {}
        states.append(state.shared)
        passed.append(count[0])
    assert same_bits(*states)
    assert passed[0] == passed[1]


def test_fedgcr_is_fedgr_over_fedgc() -> None:
    both, over = fedgcr(num_groups=3), fedgr(fedgc(num_groups=3), num_groups=3)
    assert replace(over, name="fedgcr") == both
    assert over.name == "fedgr+fedgc"


def test_what_is_set_goes_before_the_preset() -> None:
    algorithm = fedgcr(num_groups=3, lambda1=0.2, tau=0.7, gamma=0.8, preset="as_published_code")
    term = next(term for term in algorithm.objective if isinstance(term, GroupCustomization))
    assert term == GroupCustomization(lambda1=0.2, lambda2=0.05, tau=0.7, tau_alignment=0.7, ramp=True)
    groups = TypeGroups(num_groups=3, method="kmeans", n_init=1)
    assert algorithm.weighting[-1] == GroupLoss(groups=groups, gamma=0.8, delay=0, by_examples=True)
    assert algorithm.server == (GroupCentres(groups=groups),)
    assert algorithm.optimizer.keep_state
    assert algorithm.extensions == (Customized(mix_in_batch=True),)


def test_gc_net_is_added_to_prompts_and_left_where_it_is() -> None:
    plain = tiny_vit()
    model = Customized(mix_in_batch=True).extend(plain)
    assert isinstance(model, CustomizedClassifier)
    assert model.mix_in_batch
    assert model.prompts is plain.prompts
    assert Customized().extend(model) is model
    with raises(UsageError, "model-unfit", got="Norms"):
        Customized().extend(Norms())


def test_a_missing_half_is_named() -> None:
    with raises(UsageError, "model-unfit", got="Line"):
        play(fedgc(), Line(), line_federation(([1], [0])))
    with raises(UsageError, "part-missing", part="TypeVector"):
        play(replace(fedgc(), objective=(GroupCustomization(),)), Typed(), line_federation(([1], [0])))


def test_settings_out_of_range_are_refused() -> None:
    with raises(UsageError, "out-of-range", setting="GroupLoss(q)", got=-2):
        fedgr(q=-2)
    with raises(UsageError, "out-of-range", setting="GroupLoss(delta)", got=1.5):
        fedgr(delta=1.5)
    with raises(UsageError, "out-of-range", setting="GroupLoss(delay)"):
        GroupLoss(delay=-1)
    with raises(UsageError, "out-of-range", setting="GroupCustomization(lambda1)", got=-1):
        fedgc(lambda1=-1)
    with raises(UsageError, "out-of-range", setting="GroupCustomization(tau)", got=0):
        fedgc(tau=0)
    with raises(UsageError, "out-of-range", setting="TypeGroups(num_groups)", got=0):
        fedgcr(num_groups=0)
    with raises(UsageError, "unknown-name", kind="method of grouping", got="gmmm"):
        fedgcr(method="gmmm")
    with raises(UsageError, "unknown-name", kind="covariance", got="tied"):
        fedgr(covariance="tied")
    with raises(UsageError, "wrong-type"):
        fedgc(similarity="euclid")  # type: ignore[arg-type]
    with raises(UsageError, "unknown-name", kind="preset of fedgcr", got="code"):
        fedgcr(preset="code")
    with raises(UsageError, "wrong-count", got=1, wanted=2):
        FixedGroups(clients=("a", "b"), groups=(0,))


def test_only_the_direction_of_a_prompt_counts() -> None:
    """x = 2 doubles h; the cosines and their slopes, and so the step, are those of x = 1."""
    upload, _ = customize(GroupCustomization(lambda2=0.0), PREVIOUS, x=2.0)
    assert upload.change["w"].item() == pytest.approx(0.0687377, abs=1e-6)


def test_each_term_has_a_temperature_of_its_own() -> None:
    """The other term's changes nothing; ``fedgc(tau=...)`` sets both."""
    customized, _ = customize(GroupCustomization(lambda2=0.0, tau=0.5, tau_alignment=9.0), PREVIOUS)
    assert customized.change["w"].item() == pytest.approx(0.0687377, abs=1e-6)
    aligned, _ = customize(GroupCustomization(lambda1=0.0, tau=9.0, tau_alignment=0.5), PREVIOUS)
    assert aligned.change["w"].item() == pytest.approx(-0.005057259, abs=1e-7)
    assert fedgc(tau=0.2).objective[-1] == GroupCustomization(tau=0.2, tau_alignment=0.2)


def test_a_client_of_the_first_group_keeps_it_though_another_is_nearer() -> None:
    """With the centres in the other order its group, the first, lies at (0, 1), and its mean (1, 0) at the second."""
    upload, _ = customize(GroupCustomization(lambda2=0.0), PREVIOUS, group=0, swapped=True)
    assert upload.change["w"].item() == pytest.approx(0.0687377, abs=1e-6)


class Restless(Typed):
    """Features (x, w x), and (x, w x + x) in training: what dropout does, without its chance."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.type_prompts(x) + (torch.cat([0 * x, x], 1) if self.training else 0)
        return features, self.head(features)


def test_the_alignment_is_to_features_without_dropout() -> None:
    """z = (1, 1) in training, z_0 = (1, 0) and z_prev = (1, 1) in test: the cosines are 1/sqrt 2 and 1, and over tau
    0.5 the loss is log(1 + e^0.5857864) = 1.0283344. With all three in training it would be another."""
    algorithm = replace(
        fedgc(), objective=(*fedavg().objective, GroupCustomization(lambda1=0.0, lambda2=1.0)), optimizer=SGD(lr=0.1)
    )
    _, _, simulator = play(algorithm.with_terms(TypeVector()), Restless(), line_federation(([1], [0])))
    shared = {"w": torch.zeros(()), "head.weight": torch.zeros(2, 2)}
    assignment = Assignment(round=2, rounds=4, client=0, shared=shared, buffers={})
    upload, _ = simulator.runner.train(assignment, PREVIOUS)
    assert upload.metrics["loss"] == pytest.approx(math.log(2) + 1.0283344, abs=1e-6)


def test_recipes_pass_their_switches_on() -> None:
    options: dict[str, Any] = {"similarity": "dot", "covariance": "full", "after_training": True, "by_run": True}
    options["gc_layers"] = 3
    for algorithm in (fedgc(**options), fedgcr(**options), fedgcr(**options, preset="as_published_code")):
        (term,) = [term for term in algorithm.objective if isinstance(term, GroupCustomization)]
        (centres,) = [rule for rule in algorithm.server if isinstance(rule, GroupCentres)]
        assert isinstance(centres.groups, TypeGroups)
        assert (term.similarity, centres.groups.covariance, centres.groups.by_run) == ("dot", "full", True)
        assert [one.layers for one in algorithm.extensions if isinstance(one, Customized)] == [3]
        assert TypeVector(after_training=True) in algorithm.objective
    assert TypeVector(after_training=True) in fedgr(after_training=True).objective
    (weighting,) = [link for link in fedgr(by_run=True).weighting if isinstance(link, GroupLoss)]
    assert weighting.groups == TypeGroups(by_run=True)


def test_gc_net_has_the_layers_that_are_asked_for() -> None:
    """Of width 32: one linear map has 32 x 32 + 32 = 1056 numbers; three layers have 32 x 128 + 128, 128 x 128 + 128
    and 128 x 32 + 32, together 24864."""
    for layers, count in ((1, 1056), (3, 24864)):
        model = fedgc(gc_layers=layers).extend(tiny_vit())
        assert isinstance(model, CustomizedClassifier)
        assert sum(w.numel() for w in model.gc_net.parameters()) == count
    with raises(UsageError, "out-of-range", setting="Customized(layers)", got=0):
        fedgcr(gc_layers=0)


def test_clients_step_with_adamw() -> None:
    assert fedgc().optimizer == fedgcr().optimizer == Adam(lr=1e-3, weight_decay=1e-2, decoupled=True)
