from dataclasses import replace

import pytest
import torch

from atlas.pairings import by_hand
from fedatlas.atlas.doctor.examination import Examination, examine
from fedatlas.atlas.doctor.inverted import Inversion, find_inverted
from fedatlas.atlas.doctor.noisy import evidence_of, find_noisy, fit_noise, foreign_shares, is_judged
from fedatlas.atlas.doctor.reference import Pairing, expected_counts, pairings
from fedatlas.atlas.doctor.swapped import SURE, renaming_of
from fedatlas.atlas.summary import Summary, summarise
from fedatlas.seeds import generator
from summaries import CLASSES, federation, gaussian, one_dimension

NAMES = [f"client-{i}" for i in range(40)]


def test_the_foreign_share_of_a_label_by_hand() -> None:
    """Of 60, 30, 10 true examples a fifth of the labels go to the other two classes alike.

    Label 0 has 48 of its own and 3 + 1 others, label 1 has 24 and 6 + 1, label 2 has 8 and 6 + 3.
    """
    share, true = foreign_shares(torch.tensor([52, 31, 17]), 0.2)
    assert true.tolist() == pytest.approx([0.6, 0.3, 0.1])
    assert share.tolist() == pytest.approx([4 / 52, 7 / 31, 9 / 17])


def test_a_class_that_noise_alone_explains_is_all_foreign() -> None:
    share, true = foreign_shares(torch.tensor([95, 5, 0]), 0.1)
    assert true.tolist() == [1.0, 0.0, 0.0]
    assert share.tolist() == [0.0, 1.0, 0.0]


def test_the_evidence_of_noise_by_hand() -> None:
    """Two classes at 0 and 4 of variance 1; the client's are at 0.4 and 3.6, as 10 % noise puts them.

    u = 0.1 x 4 = 0.4, so each class gives 10 (0.4 x 0.4 - 0.1 x 0.01) = 1.59, with variance
    100 x 0.16 (1 / 10 + 1 / 100) = 1.76 and, for noise along noise, 100 x 0.1^2 (0.1 x 0.02 + 0.01 x 0.03) = 0.0023,
    taken to be 1.5 times as much. The scatter of each is 12 for 9 expected, with
    variance 10 x 2 (1 + 0.1) = 22. Their sum is taken to have the standard deviation sqrt 3.
    """
    (evidence,) = evidence_of([by_hand([0.4, 3.6], [0.0, 4.0], inside=12.0)])
    shrinking, scatter = 3.18 / (1.5 * 2 * 1.7623) ** 0.5, 6 / 44**0.5
    assert evidence.shrinking == pytest.approx(shrinking)
    assert evidence.scatter == pytest.approx(scatter)
    assert evidence.score == pytest.approx((shrinking + scatter) / 3**0.5)


def test_the_noise_that_fits_best_by_hand() -> None:
    """At c = 0.1 nothing is left but noise: 0 - (0.1 + 0.9^2 x 0.01) a class, by sqrt(2 x 2 x 0.11^2)."""
    fit = fit_noise(by_hand([0.4, 3.6], [0.0, 4.0]))
    assert fit.share == pytest.approx(0.1)
    assert fit.residual == pytest.approx(-2 * 0.1081 / 0.22)
    assert fit.explained == 1.0


def test_evidence_counts_by_what_is_usual() -> None:
    """Seven clients whose own group judges them outvote the six that are assumed."""
    plain = [by_hand([0.4, 3.6], [0.0, 4.0], inside=12.0, among=True) for _ in range(7)]
    alone = evidence_of([by_hand([0.4, 3.6], [0.0, 4.0], inside=12.0)])[0]
    among = evidence_of(plain)[0]
    assert among.shrinking == pytest.approx(0.6745)
    assert among.shrinking < alone.shrinking
    known = range(1)  # all of them have position 0 here
    assert evidence_of(plain, known)[0] == alone


def test_a_renaming_by_hand() -> None:
    """Classes at 0, 10, 20, 30; the client's lie 2 higher, and it swaps the first two; noise is 0.1 + 0.01 a class.

    By equal names 12^2 + 8^2 + 2^2 + 2^2 = 216, matched 4 x 2^2 = 16. Of the way of 10 to the other name the first goes
    12 and the second 8: 120 + 80 less the noise of the reference twice. Its variance is 100 (1/10 + 1/100) for each,
    and 0.1 x 0.02 + 0.01 x 0.03 more by the noise of the direction.
    """
    renaming = renaming_of(by_hand([12.0, 2.0, 22.0, 32.0], [0.0, 10.0, 20.0, 30.0]), tests=1)
    assert renaming.classes == ((0, 1), (1, 0))
    assert renaming.explained == pytest.approx(1 - (16 - 0.44) / (216 - 0.44))
    deviation = (2 * 4 * 0.11**2) ** 0.5
    assert renaming.residual == pytest.approx((16 - 0.44) / deviation)
    assert renaming.along == pytest.approx((200 - 0.02) / (2 * (11 + 0.0023)) ** 0.5)
    assert renaming.way == pytest.approx((200 - 0.02) / (200 - 0.04))
    assert not renaming.sure, "far more than noise is left, and two classes only keep their names"


def test_which_names_are_swapped_for_sure() -> None:
    """The first two of six classes, 10 apart; what is left decides, and how far they went."""
    others = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert renaming_of(by_hand([10.0, 0.0, *others[2:]], others), tests=1).sure
    nearly = [11.0, 1.0, *(place + 1 for place in others[2:])]
    assert renaming_of(by_hand(nearly, others), tests=1).explained > 0.8
    assert renaming_of(by_hand(nearly, others), tests=1).sure, "four classes keep their names"
    assert not renaming_of(by_hand([7.0, 3.0, *others[2:]], others), tests=1).sure, "it went 0.7 of the way"
    assert not renaming_of(by_hand([10.0, 0.0, 26.0, 36.0, 46.0, 56.0], others), tests=1).sure, "others moved as far"


def test_a_pair_that_is_hard_to_tell_by_hand() -> None:
    """Two of four classes are 1.2 apart: with 10 examples against 100, z of a swap is about 3.6.

    Each of the two goes 1.2 x 1.2 - 0.01, of a whole of 1.44 - 0.02, with variance 1.44 x 0.11 + 0.0023. The log
    likelihood ratio is 2 (1.42 x 1.43 - 1.42^2 / 2) / 0.1607 = 12.7, and 6 pairs at 20 clients need log(480) = 6.2.
    """
    others = [0.0, 1.2, 20.0, 30.0]
    swapped = by_hand([1.2, 0.0, 20.0, 30.0], others, among=True)
    found = renaming_of(swapped, tests=20)
    assert found.sure
    assert found.classes == ((0, 1), (1, 0))
    assert found.along == pytest.approx(2.86 / 0.3214**0.5, abs=0.01)
    assert found.along < SURE
    assert not renaming_of(swapped, tests=20_000).sure, "6 pairs at 20,000 clients need log(480,000) = 13.1"
    assert not renaming_of(by_hand([1.2, 0.9, 20.0, 30.0], others, among=True), tests=20).sure, "one stays"


def test_a_client_that_left_its_group_has_swapped_names_if_all_else_agrees() -> None:
    """The pair above: 12.7 are more than log(480) + 5 at 20 clients, and less than log(4,800) + 5 at 200."""
    others = [0.0, 1.2, 20.0, 30.0]
    left = by_hand([1.2, 0.0, 20.0, 30.0], others)
    assert renaming_of(left, tests=20).sure
    assert not renaming_of(left, tests=200).sure
    assert not renaming_of(by_hand([1.2, 0.0, 21.5, 28.5], others), tests=20).sure, "others moved, too"
    assert not renaming_of(by_hand([1.2, 0.0, 20.0], others[:3]), tests=20).sure, "one class is too few to agree"


def _of_two(first: int, second: int, place: float = 20.0) -> Pairing:
    """Return a client among three others with so many examples that it calls 0 and 1, which the others call 1 and 0."""
    whole = by_hand([place, 0.0, 40.0, 60.0], [0.0, 20.0, 40.0, 60.0], among=True)
    counts = torch.tensor([first, second, 10, 10])
    noise = torch.where(counts > 0, 1 / counts.double(), torch.inf)
    own = replace(whole.own, counts=counts, variances=noise)
    return replace(whole, own=own, other=replace(whole.other, cells=3 * torch.ones(4).double()))


def test_two_examples_tell_a_swap_and_one_may_be_odd() -> None:
    """Classes are 20 apart, and examples scatter by 1."""
    for counts, classes in (((2, 0), ((0, 1),)), ((1, 1), ((0, 1), (1, 0))), ((1, 2), ((0, 1), (1, 0)))):
        found = renaming_of(_of_two(*counts), tests=20)
        assert (found.sure, found.classes) == (True, classes)
        assert not renaming_of(_of_two(*counts), tests=20, rare=True).sure, "a rare client needs several of both"
    assert not renaming_of(_of_two(1, 0), tests=20).sure, "one example"
    assert not renaming_of(_of_two(2, 0, 12.0), tests=20).sure, "0.6 of the way, and no other class speaks"
    two = _of_two(2, 0)
    fewer = replace(two, other=replace(two.other, cells=2 * torch.ones(4).double()))
    assert not renaming_of(fewer, tests=20).sure, "a third client must know the name that it lacks"


def test_a_class_may_be_called_by_a_name_that_the_client_lacks() -> None:
    """The client has four classes of five, and calls by 3 what the others call 4."""
    pairing = by_hand([0.0, 10.0, 20.0, 40.0, 0.0], [0.0, 10.0, 20.0, 30.0, 40.0])
    own = replace(pairing.own, counts=torch.tensor([10, 10, 10, 10, 0]))
    assert renaming_of(replace(pairing, own=own), tests=1).classes == ((3, 4),)


def test_a_name_that_the_client_lacks_is_judged_by_three_others_or_cannot_be_told() -> None:
    """It calls by 3 what the others call 4, and lacks 4: z = 99.99 / sqrt(11.0023), and nothing is left.

    With the class 4 at the place of 3 it is a ring, and any group can tell.
    """
    places = [0.0, 10.0, 20.0, 30.0, 40.0]
    whole = by_hand([*places[:3], 40.0, 0.0], places, among=True)
    open_ended = replace(whole, own=replace(whole.own, counts=torch.tensor([10, 10, 10, 10, 0])))
    few = renaming_of(open_ended, tests=1)
    assert (few.sure, few.untold) == (False, True)
    assert few.along == pytest.approx(99.99 / 11.0023**0.5)
    three = replace(open_ended, other=replace(whole.other, cells=3 * torch.ones(5).double()))
    assert renaming_of(three, tests=1).sure
    rare = renaming_of(three, tests=1, rare=True)
    assert (rare.sure, rare.untold) == (False, True)
    ring = renaming_of(by_hand([*places[:3], 40.0, 30.0], places, among=True), tests=1, rare=True)
    assert (ring.sure, ring.untold) == (True, False)


def test_noise_at_a_rare_client_takes_two_signs_that_are_far_rarer() -> None:
    """Classes at 0 and 4, the client's at 1.6 and 2.4, as 40 % noise puts them.

    z_s = 2 x 10 (0.4 x 1.6 - 0.001) / sqrt(1.5 x 2 x 1.7623) = 5.6. The scatter is 12 or 30 for 9 expected:
    z_d = 2 x 3 / sqrt(44) = 0.9, or 2 x 21 / sqrt(44) = 6.3. An alarm of 0.02 / 400 is 3.9.
    """
    one, both = (by_hand([1.6, 2.4], [0.0, 4.0], inside=inside) for inside in (12.0, 30.0))
    among = replace(one, among=True)
    assert find_noisy([(among, 0.0)], tests=1).noisy.keys() == {0}
    for pairing, rare in ((among, {0}), (one, ())):
        found = find_noisy([(pairing, 0.0)], tests=1, rare=rare)
        assert (found.noisy.keys(), found.untold.keys()) == (set(), {0})
    assert find_noisy([(both, 0.0)], tests=1, rare={0}).noisy[0].share == pytest.approx(0.4)


@pytest.mark.parametrize(("share", "inside", "noisy"), [(0.08, 16.0, False), (0.08, 20.0, True), (0.1, 16.0, True)])
def test_light_noise_takes_a_rarer_alarm(share: float, inside: float, noisy: bool) -> None:
    """Five classes at 0 to 16, of which each moves so far to the mean of the others, against six clients.

    The score is 3.4, 4.4 and 3.8; an alarm for one of 20 clients is 3.1, and one that is 20 times rarer 3.9.
    """
    places = [0.0, 4.0, 8.0, 12.0, 16.0]
    moved = [place + share * ((40 - place) / 4 - place) for place in places]
    pairing = by_hand(moved, places, inside=inside, among=True)
    known = replace(pairing, other=replace(pairing.other, cells=6 * torch.ones(5).double()))
    assert fit_noise(known).share == pytest.approx(share)
    assert bool(find_noisy([(known, 0.0)], tests=20).noisy) == noisy


def test_a_client_without_a_deviation_to_explain_is_not_acquitted() -> None:
    """Two examples that it calls the last lie at the first, and the others a little farther out than they should.

    Noise that explains the last puts the others farther from where they are: it explains less than nothing of these.
    No other names are looked at, so they explain nothing, and do not speak against noise.
    """
    whole = by_hand([-0.3, 4.0, 0.0], [0.0, 4.0, 8.0], inside=60.0, among=True)
    own = replace(whole.own, counts=torch.tensor([50, 48, 2]), variances=torch.tensor([0.02, 0.02, 0.5]).double())
    pairing = replace(whole, own=own)
    assert fit_noise(pairing).explained < -0.3
    assert find_noisy([(pairing, 0.0)], tests=1).noisy.keys() == {0}
    assert not find_noisy([(pairing, 0.31)], tests=1).noisy, "these names explain more"


def _two_classes(*ways: float) -> Summary:
    """Return clients with 100 examples of variance 1 of both classes, the means so far apart, in one direction."""
    count = len(ways)
    flat = one_dimension(
        [[100, 100]] * count, [[0.0, way] for way in ways], [[99.0, 99.0]] * count, [[1.0, 1.0]] * count
    )
    wide = replace(flat.whitening, spread=torch.ones(1).double(), examples=torch.tensor(10**9))
    return replace(flat, whitening=wide)


def test_inverted_labels_by_hand() -> None:
    """Ways of 2 and -2 with variance 0.02 each: g = -4, var = 2 x 4 x 0.02 - 0.02^2, summed over two others."""
    found = find_inverted(_two_classes(2.0, 2.0, -2.0))
    assert found.disagree is None
    assert found.inverted == {2: pytest.approx(8 / (2 * 0.1596) ** 0.5, rel=1e-4)}


def test_two_sides_of_one_size_disagree_and_none_is_named() -> None:
    assert find_inverted(_two_classes(2.0, 2.0, -2.0, -2.0)) == Inversion({}, ((0, 1), (2, 3)))


def test_a_way_that_may_be_noise_is_not_called_inverted() -> None:
    assert find_inverted(_two_classes(2.0, 2.0, 2.0, -0.05)) == Inversion({}, None)
    assert find_inverted(_two_classes(2.0, -2.0)) == Inversion({}, None)


def _examined(kinds: list[str], noise: dict[int, float] | None = None, seed: int = 0) -> Examination:
    """Return what is found among clients of Gaussian classes, of which some have noisy labels."""
    whole, embeddings = gaussian(kinds, examples=120, seed=seed)
    labels = whole.data.labels.clone()
    rng = generator(seed, "noisy")
    for i, share in (noise or {}).items():
        own = whole.clients[i].train
        drawn = torch.rand(len(own), generator=rng) < share
        moved = torch.randint(1, CLASSES, (len(own),), generator=rng)
        labels[own] = torch.where(drawn, (labels[own] + moved) % CLASSES, labels[own])
    rows = [embeddings.examples[client.train] for client in whole]
    spoilt, encoded = federation(rows, [labels[client.train] for client in whole])
    return examine(summarise(spoilt, encoded.examples), [client.name for client in spoilt], spoilt.data.classes)


def _named(found: Examination) -> dict[str, str]:
    return {own.client: own.kind for own in found.suspects}


@pytest.mark.parametrize("seed", range(3))
def test_noisy_clients_are_named_and_rare_ones_are_not(seed: int) -> None:
    kinds = ["plain"] * 10 + ["few"] * 2 + ["shifted"]
    found = _examined(kinds, {0: 0.3, 5: 0.2}, seed)
    assert _named(found) == {"client-0": "labels-noisy", "client-5": "labels-noisy"}
    assert [own.client for own in found.different] == ["client-12"]
    assert 20 <= int(found.suspects[0].reason.split()[1]) <= 40, "about 30 % of its labels look random"


@pytest.mark.parametrize("seed", range(3))
def test_clean_clients_of_every_kind_are_not_accused(seed: int) -> None:
    for kinds in (["plain"] * 12, ["plain", "few"] * 6, ["plain", "shifted"] * 6):
        assert _named(_examined(kinds, seed=seed)) == {}


@pytest.mark.parametrize("seed", range(3))
def test_one_client_with_swapped_names_is_named_with_the_classes(seed: int) -> None:
    found = _examined(["plain"] * 10 + ["swapped"], seed=seed)
    assert _named(found) == {"client-10": "labels-swapped"}
    assert "its 'a' is the others' 'b', its 'b' is the others' 'a'" in found.suspects[0].reason
    assert found.labelling.found
    assert found.labelling.strength == pytest.approx(2 / CLASSES)
    assert not found.inputs.found


def test_two_examples_with_another_name_are_named() -> None:
    """The client has no 'b', but two examples of it that it calls 'a'."""
    whole, embeddings = gaussian(["plain"] * 12, examples=120)
    rows, labels = ([table[client.train] for client in whole] for table in (embeddings.examples, whole.data.labels))
    chosen = torch.cat([(labels[0] == 1).nonzero().flatten()[:2], (labels[0] > 1).nonzero().flatten()])
    spoilt, encoded = federation(
        [rows[0][chosen], *rows[1:]], [torch.where(labels[0] == 1, 0, labels[0])[chosen], *labels[1:]]
    )
    found = examine(summarise(spoilt, encoded.examples), [client.name for client in spoilt], spoilt.data.classes)
    assert _named(found) == {"client-0": "labels-swapped"}
    assert found.suspects[0].reason == "its labels look swapped: its 'a' is the others' 'b', far beyond chance"


def test_a_wrong_label_is_not_another_input() -> None:
    """A client of 60 % noise has a group of its own at first; without it, inputs are alike."""
    found = _examined(["plain"] * 10, {3: 0.6})
    assert _named(found) == {"client-3": "labels-noisy"}
    assert not found.inputs.found
    assert len({*found.groups}) <= 2


def test_a_small_client_that_looks_noisy_is_different_and_not_wrong() -> None:
    """A tenth of its labels is wrong: of 120 examples, as others have, that is noisy, and of 25 it cannot be told.

    A sixth is told even so.
    """
    whole, embeddings = gaussian(["plain"] * 12, examples=120)
    rows, labels = ([table[client.train] for client in whole] for table in (embeddings.examples, whole.data.labels))

    def examined(size: int, every: int) -> Examination:
        own = labels[0][:size].clone()
        own[::every] = (own[::every] + 1) % CLASSES
        spoilt, encoded = federation([rows[0][:size], *rows[1:]], [own, *labels[1:]])
        return examine(summarise(spoilt, encoded.examples), [client.name for client in spoilt], spoilt.data.classes)

    assert _named(examined(120, 10)) == _named(examined(25, 6)) == {"client-0": "labels-noisy"}
    small = examined(25, 10)
    assert _named(small) == {}
    (own,) = small.different
    assert (own.client, own.kind) == ("client-0", "labels-untold")
    assert own.reason.startswith("few examples")
    assert own.reason.endswith("this cannot be told")


def test_what_cannot_be_told_apart_is_said() -> None:
    """Three clients lack classes, and one is unlike all others."""
    found = _examined(["plain"] * 10 + ["few"] * 3 + ["shifted"])
    assert found.remarks == (
        "Whether a client with other inputs names classes otherwise.",
        "Noisy labels at a client that is unlike all others.",
        "Swapped names of classes that a client lacks.",
    )
    assert _examined(["plain"] * 10).remarks == ()


def test_half_of_the_clients_with_other_names_are_groups_and_not_suspects() -> None:
    found = _examined(["plain", "swapped"] * 6)
    assert _named(found) == {}
    assert found.labelling.found
    assert found.groups == (0, 1) * 6


def test_a_client_is_compared_with_others_and_not_with_suspects() -> None:
    whole, embeddings = gaussian(["plain"] * 6)
    summary = summarise(whole, embeddings.examples)
    assert summary is not None
    groups = torch.zeros(6, dtype=torch.int64)
    counts = summary.counts.sum(0)
    every = {pairing.client: pairing for pairing in pairings(summary, groups)}
    assert torch.equal(every[0].other.counts, counts - summary.counts[0])
    apart = {pairing.client: pairing for pairing in pairings(summary, groups, {5})}
    assert torch.equal(apart[0].other.counts, counts - summary.counts[0] - summary.counts[5])
    assert torch.equal(apart[5].other.counts, counts - summary.counts[5])
    kept = torch.arange(1, 5)
    inside = summary.inside[kept].sum(0)
    assert torch.allclose(apart[0].other.inside, inside)
    assert list(pairings(summary.take(torch.tensor([0])), groups[:1])) == []


def test_the_verdict_on_too_few_examples_is_that_there_are_too_few() -> None:
    found = examine(None, NAMES[:2], ["a", "b"])
    assert found.groups == (0, 0)
    assert not found.inputs.found
    assert "too few" in found.inputs.evidence


def test_a_reference_with_few_examples_does_not_judge_noise() -> None:
    """Four classes must be known by 15 examples, and by as many as the client has."""
    pairing = by_hand([0.0, 10.0, 20.0, 30.0], [0.0, 10.0, 20.0, 30.0])
    assert is_judged(pairing)
    assert not is_judged(replace(pairing, other=replace(pairing.other, counts=torch.tensor([100, 100, 100, 14]))))
    assert not is_judged(replace(pairing, own=replace(pairing.own, counts=torch.tensor([10, 10, 10, 101]))))


def test_shares_of_all_clients_stand_beside_a_clients_own() -> None:
    """Of 100 labels 2 are of class 1, where 10 in 100 are usual: with 100 examples' worth of trust, about 6 in 100.

    By its own labels alone class 1 is all foreign at 10 % noise of two classes; true are 0.9 and 0 beside 0.9 and 0.1.
    """
    counts = torch.tensor([98, 2])
    assert foreign_shares(counts, 0.1)[0][1] == 1.0
    share, true = foreign_shares(counts, 0.1, torch.tensor([90.0, 10.0]).double())
    assert true.tolist() == pytest.approx([1.78 / 1.88, 0.1 / 1.88])
    assert float(share[1]) == pytest.approx(0.1 * 1.78 / (0.1 * 1.78 + 0.9 * 0.1))


def test_clients_with_alike_shares_are_worth_more_than_different_ones() -> None:
    alike, apart = torch.tensor([[50, 50]] * 4), torch.tensor([[100, 0], [0, 100]] * 2)
    assert expected_counts(alike).tolist() == [500.0, 500.0], "the most"
    assert float(expected_counts(apart).sum()) < 1


def test_a_single_example_of_a_class_speaks_for_noise() -> None:
    """Of three classes the client has one example of the last, which lies where the first is."""
    whole = by_hand([0.0, 4.0, 0.0], [0.0, 4.0, 8.0], among=True)
    own = replace(whole.own, counts=torch.tensor([50, 49, 1]), variances=torch.tensor([0.02, 0.02, 1.0]).double())
    one = replace(whole, own=own)
    none = replace(whole, own=replace(own, counts=torch.tensor([50, 50, 0])))
    assert one.shared.tolist() == [0, 1]
    assert one.seen.tolist() == [0, 1, 2]
    assert evidence_of([one])[0].shrinking > 2 > evidence_of([none])[0].shrinking
