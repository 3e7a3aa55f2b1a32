import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import build_algorithm, fedavg, feddyn, qffl, scaffold
from fedatlas.algorithms.fedgc import ADAMW, Customized, GroupCentres, GroupCustomization, fedgc
from fedatlas.algorithms.fedgcr import fedgcr
from fedatlas.algorithms.fedgr import FixedGroups, GroupLoss, TypeGroups, TypeVector, fedgr
from fedatlas.atlas import Atlas
from fedatlas.checking import check_algorithm
from fedatlas.client import LocalWork
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Client, Federation
from fedatlas.errors import UsageError
from fedatlas.graphs import GraphEngine
from fedatlas.models.classifier import InputForm
from fedatlas.models.prompted import CustomizedClassifier, PromptedClassifier, prompted_vit
from fedatlas.objectives import ReceivedLoss
from fedatlas.optimizers import SGD
from fedatlas.rounds import initial_state, play_round
from fedatlas.simulate import Simulator
from fedatlas.types import Assignment, ClientInfo, Cohort, Memory, Tensors, Upload
from fedatlas.weighting import ByExamples
from test_graphs import Rerun
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits

KINDS = (0, 0, 1, 0, 1)


class Typed(nn.Module):
    """One parameter w: h = z = (x, w x); a head of zeros, so that cross-entropy is log 2 and does not move w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.head.weight)

    def type_prompts(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.w * x], 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.type_prompts(x)
        return features, self.head(features)


def image_federation() -> Federation:
    """Five clients of two types: dark images and bright ones; the class is where a bar lies."""
    rng = torch.Generator().manual_seed(0)
    inputs, labels, clients, start = [], [], [], 0
    for i, kind in enumerate(KINDS):
        size = 10 + 4 * i
        label = torch.randint(2, (size,), generator=rng)
        images = torch.full((size, 3, 8, 8), 50.0 + 120 * kind)
        images[label == 0, :, :3] += 60
        images[label == 1, :, :, 5:] += 60
        inputs.append((images + 10 * torch.randn(images.shape, generator=rng)).clamp(0, 255).to(torch.uint8))
        labels.append(label)
        own = torch.arange(start, start + size)
        clients.append(Client(name=f"client-{i}", train=own, test=own, domain=str(kind)))
        start += size
    data = Dataset(name="bars", inputs=torch.cat(inputs), labels=torch.cat(labels), classes=("top", "right"))
    return Federation(data=data, clients=tuple(clients), partition="by hand")


def tiny_vit(num_classes: int = 2, gc_net: bool = False, dropout: float = 0.0) -> PromptedClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        form = InputForm(shape=(3, 8, 8))
        return prompted_vit(
            num_classes,
            form,
            weights="untrained",
            gc_net=gc_net,
            dropout=dropout,
            patch=4,
            width=32,
            depth=2,
            heads=2,
        )


def cohort(
    losses: Sequence[float],
    sizes: Sequence[int],
    vectors: Sequence[Sequence[float]] = (),
    round: int = 2,
) -> Cohort:
    """A round's uploads with what FedGR needs to know of them."""
    roster = [ClientInfo(id=i, name=f"client-{i}", num_examples=n) for i, n in enumerate(sizes)]
    uploads = []
    for i, (loss, size) in enumerate(zip(losses, sizes, strict=True)):
        notes: Memory = {"received_loss": {"loss": torch.tensor(loss)}}
        if vectors:
            notes["type_vector"] = {"mean": torch.tensor(vectors[i])}
        uploads.append(Upload(client=i, num_examples=size, num_steps=1, change={}, buffers={}, notes=notes))
    draws = dict.fromkeys(range(len(sizes)), 1)
    return Cohort(round=round, rounds=9, roster=roster, uploads=uploads, draws=draws, shared={}, lr=0.1)


def weigh(weighting: GroupLoss, given: Cohort) -> Tensor:
    """Return the normalised weights over those of FedAvg."""
    weights, _ = ByExamples().weigh(torch.ones(len(given.uploads), dtype=torch.float64), given, {})
    weights, _ = weighting.weigh(weights, given, {})
    return weights / weights.sum()


PAIR_AND_ONE = FixedGroups(clients=("client-0", "client-1", "client-2"), groups=(7, 7, 3))


def test_weights_mix_the_client_s_loss_with_its_group_s() -> None:
    """Sizes 10, 20, 30, losses 1, 2, 4, groups {0, 1} and {2} of losses 1.5 and 4. Round 2 with delta 1 and gamma 0.5:
    beta = 0.5, so with q = 1 the factor is L L~ = 1.5, 3, 16 and a = 15, 60, 480, of 555 together."""
    weighting = GroupLoss(groups=PAIR_AND_ONE, delta=1.0, gamma=0.5, q=1.0)
    weights = weigh(weighting, cohort((1, 2, 4), (10, 20, 30)))
    torch.testing.assert_close(weights, torch.tensor([15, 60, 480], dtype=torch.float64) / 555)


def test_a_group_s_loss_can_count_its_members_by_their_examples() -> None:
    """As above, but the first group's loss is (10 * 1 + 20 * 2) / 30 = 5/3: a = 10 * 5/3, 20 * 2 * 5/3, 480."""
    weighting = GroupLoss(groups=PAIR_AND_ONE, delta=1.0, gamma=0.5, by_examples=True)
    expected = torch.tensor([50 / 3, 200 / 3, 480], dtype=torch.float64)
    torch.testing.assert_close(weigh(weighting, cohort((1, 2, 4), (10, 20, 30))), expected / expected.sum())


def test_q_of_minus_one_leaves_the_numbers_of_examples() -> None:
    given = cohort((1, 2, 4), (10, 20, 30))
    weights = weigh(GroupLoss(groups=PAIR_AND_ONE, q=-1.0), given)
    torch.testing.assert_close(weights, torch.tensor([1, 2, 3], dtype=torch.float64) / 6)


def test_the_first_round_looks_at_clients_only() -> None:
    """beta is 0: a = n L^2 = 10, 80, 480; no groups are asked for."""
    expected = torch.tensor([10, 80, 480], dtype=torch.float64) / 570
    torch.testing.assert_close(weigh(GroupLoss(), cohort((1, 2, 4), (10, 20, 30), round=1)), expected)


def test_with_one_client_a_group_the_share_of_the_group_does_not_matter() -> None:
    alone = FixedGroups(clients=("client-0", "client-1", "client-2"), groups=(0, 1, 2))
    given = cohort((1, 2, 4), (10, 20, 30))
    weights = [weigh(GroupLoss(groups=alone, delta=delta, gamma=0.0), given) for delta in (0.0, 0.3, 1.0)]
    torch.testing.assert_close(weights[1], weights[0])
    torch.testing.assert_close(weights[2], weights[0])


def test_losses_of_zero_and_huge_ones_give_finite_weights() -> None:
    for losses in ((0.0, 0.0, 0.0), (0.0, 1.0, 1e30)):
        weights = weigh(GroupLoss(groups=PAIR_AND_ONE, q=5.0), cohort(losses, (10, 20, 30)))
        assert bool(weights.isfinite().all())
        assert float(weights.sum()) == pytest.approx(1.0)


def test_the_share_of_the_group_follows_the_paper_s_schedule_or_the_code_s() -> None:
    paper = GroupLoss()
    assert [paper.beta(r) for r in (1, 2, 3)] == [0.0, 0.25, 0.375]
    assert paper.beta(50) == pytest.approx(0.5)
    code = fedgcr(preset="as_published_code").weighting[-1]
    assert isinstance(code, GroupLoss)
    assert code.beta(1) == pytest.approx(0.05)
    assert code.beta(35) == pytest.approx(0.4875, abs=1e-4)


def test_groups_come_from_the_vectors_of_the_same_round_for_weights_and_centres_alike() -> None:
    """Vectors 0, 9, 1: groups {0, 2} and {1} of centres 0.5 and 9; client 3 did not answer and has no group."""
    given = cohort((1, 2, 4), (10, 20, 30), vectors=([0.0], [9.0], [1.0]), round=3)
    given = replace(given, roster=[*given.roster, ClientInfo(id=3, name="client-3", num_examples=5)])
    groups = TypeGroups(num_groups=2)
    rule = GroupCentres(groups=groups)
    change, memory = rule.apply({"w": torch.ones(())}, {}, given)
    assert change["w"].item() == 1
    assert groups.labels(given).tolist() == [0, 1, 0]
    assert memory["group"].tolist() == [0, 1, 0, -1]
    assert memory["centres"].tolist() == [[0.5], [9.0]]
    assert memory["progress"].item() == pytest.approx(3 / 9)
    note = rule.note(memory, given.roster[1])
    assert (note["group"].item(), note["centres"].tolist()) == (1, [[0.5], [9.0]])
    assert rule.note({}, given.roster[1]) == {}


def test_fewer_clients_than_groups_are_grouped_and_weighed() -> None:
    given = cohort((1, 2), (10, 20), vectors=([0.0], [9.0]))
    weights = weigh(GroupLoss(groups=TypeGroups(num_groups=5), delta=1.0), given)
    torch.testing.assert_close(weights, torch.tensor([10, 80], dtype=torch.float64) / 90)


def test_a_client_s_vector_counts_its_classes_alike_under_the_received_model() -> None:
    """x = 1, 3 of class 0 and 5 of class 1, w = 2: class means (2, 4) and (5, 10), their mean (3.5, 7). Training then
    moves w, which must not show."""
    federation = line_federation(([1, 3, 5], [0, 0, 1]))
    algorithm = fedgr().with_optimizer(SGD(lr=1.0))
    _, _, simulator = play(algorithm, Typed(), federation)
    shared = {"w": torch.tensor(2.0), "head.weight": torch.ones(2, 2)}
    upload, _ = simulator.runner.train(Assignment(round=1, rounds=1, client=0, shared=shared, buffers={}), {})
    assert upload.notes["type_vector"]["mean"].tolist() == [3.5, 7.0]
    assert upload.notes["received_loss"]["loss"].item() == pytest.approx(math.log(2))


def test_a_model_without_type_specific_prompts_is_described_by_its_features() -> None:
    """Line's features are its inputs: 1, 3 of class 0 and 5 of class 1 give 3.5."""
    _, _, simulator = play(fedgr(), Line(), line_federation(([1, 3, 5], [0, 0, 1])))
    shared, buffers = simulator.runner.bench.shared()
    upload, _ = simulator.runner.train(Assignment(round=1, rounds=1, client=0, shared=shared, buffers=buffers), {})
    assert upload.notes["type_vector"]["mean"].tolist() == [3.5]


def customize(
    term: GroupCustomization, memory: Memory | None = None, group: int = 1, progress: float = 0.5
) -> tuple[Upload, Memory]:
    """Train one step on x = 1 from w = 0, where the centres are (1, 0) and (0, 1)."""
    algorithm = replace(fedgc(), objective=(*fedavg().objective, TypeVector(), term), optimizer=SGD(lr=0.1))
    _, _, simulator = play(algorithm, Typed(), line_federation(([1], [0])))
    centres = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
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


def test_fedgr_without_its_exponent_is_its_base_bit_for_bit() -> None:
    for base in (fedavg(), scaffold()):
        plain, _, _ = play(base, Norms(), blob_federation(), rounds=3)
        without, _, _ = play(fedgr(base, q=-1.0), Norms(), blob_federation(), rounds=3)
        assert same_bits(plain.shared, without.shared)
        assert same_bits(plain.buffers, without.buffers)
    weighed, _, _ = play(fedgr(), Norms(), blob_federation(), rounds=3)
    assert not same_bits(plain.shared, weighed.shared)


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
                simulator.graphs = GraphEngine(runner.bench, runner.begin, Rerun, most_lanes=1)
            state = initial_state(algorithm, *runner.bench.shared(), simulator.roster)
            for _ in range(3):
                state, _ = play_round(algorithm, state, simulator.roster, simulator, cohort_size=5, rounds=3, seed=0)
                simulator.commit()
        assert simulator.graphs is None or simulator.graphs.refused == {}
        states.append(state.shared)
        passed.append(count[0])
    assert same_bits(*states)
    assert passed[0] == passed[1]


def test_fedgr_keeps_its_promises_over_another_base() -> None:
    check_algorithm(fedgr(feddyn(), num_groups=2))


class Towns:
    """An atlas, as far as FedGR looks at one."""

    names = ("client-0", "client-1", "client-2", "client-3")

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    def groups(self, count: int, *, method: str, seed: int) -> Tensor:
        self.asked.append((count, method))
        return torch.tensor([0, 1, 1, 0])


def test_groups_may_come_from_an_atlas() -> None:
    atlas = Towns()
    algorithm = fedgr(num_groups=9, method="kmeans", atlas=atlas)
    assert atlas.asked == [(4, "kmeans")]
    assert not any(isinstance(term, TypeVector) for term in algorithm.objective)
    assert algorithm.weighting[-1] == GroupLoss(groups=FixedGroups(clients=atlas.names, groups=(0, 1, 1, 0)))
    assert algorithm.disclosures() == list(ReceivedLoss.discloses)
    play(algorithm, Norms(), blob_federation(num_clients=4), rounds=2)
    with pytest.raises(UsageError, match=r"client 'client-4' has no group among the 4 .* from the same federation"):
        play(algorithm, Norms(), blob_federation(num_clients=5), rounds=2)


def test_an_atlas_groups_for_weights_and_centres_alike_and_centres_are_of_what_clients_sent() -> None:
    """The atlas has client-1 and client-2 together: their vectors 9 and 1 have the mean 5."""
    algorithm = fedgcr(num_groups=2, atlas=Towns())
    known = FixedGroups(clients=Towns.names, groups=(0, 1, 1, 0))
    rule, weighting = algorithm.server[0], algorithm.weighting[-1]
    assert isinstance(rule, GroupCentres)
    assert isinstance(weighting, GroupLoss)
    assert rule.groups == weighting.groups == known
    assert fedgc(num_groups=2, atlas=Towns()).server == algorithm.server
    given = cohort((1, 2, 4), (10, 20, 30), vectors=([0.0], [9.0], [1.0]))
    _, memory = rule.apply({}, {}, given)
    assert memory["group"].tolist() == [0, 1, 1]
    assert memory["centres"].tolist() == [[0.0], [5.0]]
    model = algorithm.extend(tiny_vit())
    federation = image_federation()
    federation = replace(federation, clients=federation.clients[:4])
    state, _, _ = play(algorithm, model, federation, rounds=2, work=LocalWork(batch_size=8))
    assert state.memory["server/group_customization"]["group"].tolist() == [0, 1, 1, 0]


def test_an_atlas_may_be_given_as_its_file(tmp_path: Path) -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]])
    atlas = Atlas(names=("a", "b", "c"), halves={"feature": vectors}, sizes=torch.tensor([1, 1, 1]))
    atlas.save(tmp_path / "atlas.safetensors")
    for recipe in (fedgr, fedgc, fedgcr):
        given, read = (
            build_algorithm(recipe.__name__, num_groups=2, atlas=one)
            for one in (atlas, str(tmp_path / "atlas.safetensors"))
        )
        assert given == read
    weighting = fedgr(num_groups=2, method="finch", atlas=atlas).weighting[-1]
    assert isinstance(weighting, GroupLoss)
    assert isinstance(weighting.groups, FixedGroups)
    assert weighting.groups.groups[0] == weighting.groups.groups[2]


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
    model = Customized(mix_in_batch=True)(plain)
    assert isinstance(model, CustomizedClassifier)
    assert model.mix_in_batch
    assert model.prompts is plain.prompts
    assert Customized()(model) is model
    with pytest.raises(UsageError, match=r"need a frozen ViT with prompts, and Norms is none\. Choose the model"):
        Customized()(Norms())


def test_a_missing_half_is_named() -> None:
    with pytest.raises(UsageError, match=r"groups of types need the clients' vectors: add TypeVector\(\)"):
        weigh(GroupLoss(), cohort((1, 2), (10, 20)))
    with pytest.raises(UsageError, match=r"GroupLoss needs the clients' losses: add ReceivedLoss\(\)"):
        play(fedavg().with_weighting(GroupLoss()), Line(), line_federation(([1], [0])))
    with pytest.raises(UsageError, match="needs a model that makes type-specific prompts, got Line"):
        play(fedgc(), Line(), line_federation(([1], [0])))
    with pytest.raises(UsageError, match=r"needs the client's own mean: put TypeVector\(\) before it"):
        play(replace(fedgc(), objective=(GroupCustomization(),)), Typed(), line_federation(([1], [0])))


def test_bases_that_cannot_be_reweighted_are_refused() -> None:
    with pytest.raises(UsageError, match="fedgr over fedgcr: it already weighs by the groups' losses"):
        fedgr(fedgcr())
    with pytest.raises(UsageError, match="ignores weights, so weighing has no effect"):
        fedgr(qffl())


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(UsageError, match=r"GroupLoss\(q\) must be at least -1, got -2"):
        fedgr(q=-2)
    with pytest.raises(UsageError, match=r"GroupLoss\(delta\) must be in \[0, 1\], got 1.5"):
        fedgr(delta=1.5)
    with pytest.raises(UsageError, match=r"GroupLoss\(delay\) must not be negative"):
        GroupLoss(delay=-1)
    with pytest.raises(UsageError, match=r"GroupCustomization\(lambda1\) must not be negative, got -1"):
        fedgc(lambda1=-1)
    with pytest.raises(UsageError, match=r"GroupCustomization\(tau\) must be above 0, got 0"):
        fedgc(tau=0)
    with pytest.raises(UsageError, match=r"TypeGroups\(num_groups\) must be at least 1, got 0"):
        fedgcr(num_groups=0)
    with pytest.raises(UsageError, match=r"unknown method of grouping 'gmmm'. Did you mean 'gmm'"):
        fedgcr(method="gmmm")
    with pytest.raises(UsageError, match="unknown covariance 'full'"):
        TypeGroups(covariance="full")
    with pytest.raises(UsageError, match="unknown preset of fedgcr 'code'"):
        fedgcr(preset="code")
    with pytest.raises(UsageError, match="FixedGroups needs one group a client, got 1 for 2"):
        FixedGroups(clients=("a", "b"), groups=(0,))
