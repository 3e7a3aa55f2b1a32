import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedatlas import check_algorithm
from fedatlas.algorithms import build_algorithm, fedavg, feddyn, qffl, scaffold
from fedatlas.algorithms.fedgc import GroupCentres, fedgc
from fedatlas.algorithms.fedgcr import fedgcr
from fedatlas.algorithms.fedgr import FixedGroups, GroupLoss, TypeGroups, TypeVector, fedgr
from fedatlas.atlas import Atlas
from fedatlas.client import LocalWork
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Assignment, ByExamples, ClientInfo, Cohort, Memory, ReceivedLoss, Upload, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits
from typed_clients import Typed, image_federation, tiny_vit


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


def test_fedgr_without_its_exponent_is_its_base_bit_for_bit() -> None:
    for base in (fedavg(), scaffold()):
        plain, _, _ = play(base, Norms(), blob_federation(), rounds=3)
        without, _, _ = play(fedgr(base, q=-1.0), Norms(), blob_federation(), rounds=3)
        assert same_bits(plain.shared, without.shared)
        assert same_bits(plain.buffers, without.buffers)
    weighed, _, _ = play(fedgr(), Norms(), blob_federation(), rounds=3)
    assert not same_bits(plain.shared, weighed.shared)


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
    assert words(algorithm.disclosures()) == words(ReceivedLoss.discloses)
    play(algorithm, Norms(), blob_federation(num_clients=4), rounds=2)
    with raises(UsageError, "client-missing", client="client-4"):
        play(algorithm, Norms(), blob_federation(num_clients=5), rounds=1)


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


def test_bases_that_cannot_be_reweighted_are_refused() -> None:
    with raises(UsageError, "base-unfit", base="fedgcr", part="GroupLoss"):
        fedgr(fedgcr())
    with raises(UsageError, "base-unfit", base="qffl", part="FairStep"):
        fedgr(qffl())


def test_what_the_reweighting_needs_is_named() -> None:
    with raises(UsageError, "part-missing", part="TypeVector"):
        weigh(GroupLoss(), cohort((1, 2), (10, 20)))
    with raises(UsageError, "part-missing", part="ReceivedLoss"):
        play(fedavg().with_weighting(GroupLoss()), Line(), line_federation(([1], [0])))


def test_held_out_clients_need_no_group() -> None:
    """They never train, so nothing of theirs is weighed: an atlas of the training clients is enough."""
    play(fedgr(atlas=Towns()), Norms(), blob_federation(num_clients=5, held_out=1))


def test_the_group_s_loss_does_not_count_before_a_long_delay_is_over() -> None:
    """delay 3, delta 1, gamma 0.5: beta is 0 up to round 3, then 1/2."""
    weighting = GroupLoss(delay=3, delta=1.0, gamma=0.5)
    assert [weighting.beta(number) for number in (1, 2, 3, 4)] == [0, 0, 0, 0.5]


def test_the_run_s_seed_draws_the_starts_only_where_asked() -> None:
    """Five vectors in a row and one start of k-means for two groups: where it ends depends on where it begins."""
    given = cohort((1,) * 5, (1,) * 5, [(float(i),) for i in range(5)])

    def found(by_run: bool) -> set[tuple[int, ...]]:
        groups = TypeGroups(num_groups=2, method="kmeans", n_init=1, by_run=by_run)
        return {tuple(groups.labels(replace(given, seed=seed)).tolist()) for seed in range(12)}

    assert len(found(by_run=False)) == 1
    assert len(found(by_run=True)) > 1
