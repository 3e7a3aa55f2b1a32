from dataclasses import replace

import pytest
import torch

from atlas.pairings import by_hand
from fedatlas.atlas.doctor import noisy as noisy_labels
from fedatlas.atlas.doctor.noisy import Fit, evidence_of, find_noisy, fit_noise, foreign_shares, is_judged
from fedatlas.atlas.doctor.reference import expected_counts
from fedatlas.atlas.doctor.swapped import Renaming


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
    taken to be 1.5 times as much. The scatter of each is 12 for 9 expected, with variance 10 x 2 (1 + 0.1) = 22.
    Noise of 10 % would give a shrinking of 10 x 0.4^2 a class, and scatter of 10 x 0.1 x 4^2 more: a and b.
    """
    (evidence,) = evidence_of([by_hand([0.4, 3.6], [0.0, 4.0], inside=12.0)])
    shrinking, scatter = 3.18 / (1.5 * 2 * 1.7623) ** 0.5, 6 / 44**0.5
    assert evidence.shrinking == pytest.approx(shrinking)
    assert evidence.scatter == pytest.approx(scatter)
    a, b = 3.2 / (1.5 * 2 * 1.7623) ** 0.5, 32 / 44**0.5
    both = a * shrinking + b * scatter
    assert evidence.score == pytest.approx(both / (a * a + a * b + b * b) ** 0.5)
    assert evidence.share == pytest.approx(0.1 * both / (a * a + b * b))


def test_the_noise_that_fits_best_by_hand() -> None:
    """At c = 0.1 nothing is left but noise: 0 - (0.1 + 0.9^2 x 0.01) a class, by sqrt(2 x 2 x 0.11^2).

    Which of ten examples are foreign is chance: (0.1 x 4^2 - 0.1^2 x 4^2) / 10 = 0.144 a class more.
    """
    fit = fit_noise(by_hand([0.4, 3.6], [0.0, 4.0]))
    assert fit.share == pytest.approx(0.1)
    assert fit.residual == pytest.approx(-2 * (0.1081 + 0.144) / 0.22)
    assert fit.explained == 1.0
    assert fit.between == pytest.approx(-1.0), "by sqrt(2 x 2 x 0.2521^2): one direction"


def test_evidence_counts_by_what_is_usual() -> None:
    """Seven clients whose own group judges them outvote the six that are assumed."""
    plain = [by_hand([0.4, 3.6], [0.0, 4.0], inside=12.0, among=True) for _ in range(7)]
    alone = evidence_of([by_hand([0.4, 3.6], [0.0, 4.0], inside=12.0)])[0]
    among = evidence_of(plain)[0]
    assert among.shrinking == pytest.approx(0.6745)
    assert among.shrinking < alone.shrinking
    known = range(1)  # all of them have position 0 here
    assert evidence_of(plain, known)[0] == alone


def test_noise_at_a_rare_client_takes_two_signs_that_are_far_rarer() -> None:
    """Classes at 0 and 4, the client's at 1.6 and 2.4, as 40 % noise puts them.

    z_s = 2 x 10 (0.4 x 1.6 - 0.001) / sqrt(1.5 x 2 x 1.7623) = 5.6. The scatter is 20 or 30 for 9 expected:
    z_d = 2 x 11 / sqrt(44) = 3.3, or 2 x 21 / sqrt(44) = 6.3. An alarm of 0.1 / 2000 is 3.9.
    """
    one, both = (by_hand([1.6, 2.4], [0.0, 4.0], inside=inside, among=True) for inside in (20.0, 30.0))
    assert find_noisy([(one, None)], tests=1).noisy.keys() == {0}
    found = find_noisy([(one, None)], tests=1, rare={0})
    assert (found.noisy.keys(), found.untold.keys()) == (set(), {0})
    assert find_noisy([(both, None)], tests=1, rare={0}).noisy[0].share == pytest.approx(0.4)


@pytest.mark.parametrize(("off", "inside", "noisy"), [(0.93, 20.0, True), (0.93, 14.0, False), (1.0, 20.0, False)])
def test_another_group_calls_a_client_noisy_if_with_this_noise_it_would_be_one_of_it(
    off: float, inside: float, noisy: bool
) -> None:
    """As above, and so far off in a second direction, in which classes do not differ.

    Chance puts each mean off by 0.1 + 0.6^2 x 0.01, and by (0.4 x 4^2 - 0.4^2 x 4^2) / 10 = 0.384, as it has more or
    fewer foreign examples. After the fit 2 (off^2 - 0.4876) is left, by sqrt(2 x 2 x 0.11^2) = 0.22: z = 3.4 or 4.7.
    With a scatter of 14, z_d = 2 x 5 / sqrt(44) = 1.5.
    """
    one = by_hand([1.6, 2.4], [0.0, 4.0], inside=inside)
    wide = replace(
        one,
        own=replace(one.own, means=torch.cat([one.own.means, torch.full((2, 1), off).double()], 1)),
        other=replace(one.other, means=torch.cat([one.other.means, torch.zeros(2, 1).double()], 1)),
        spread=torch.ones(2).double(),
        span=torch.tensor([[1.0], [0.0]]).double(),
    )
    assert fit_noise(wide).residual == pytest.approx(2 * (off**2 - 0.4876) / 0.22)
    assert fit_noise(wide).between == pytest.approx(-1.0), "classes do not differ there"
    found = find_noisy([(wide, None)], tests=1)
    assert (bool(found.noisy), bool(found.untold)) == (noisy, not noisy)


@pytest.mark.parametrize(
    ("apart", "share", "inside", "noisy"), [(4.0, 0.08, 16.0, False), (4.0, 0.08, 20.0, True), (2.0, 0.1, 17.0, True)]
)
def test_light_noise_takes_a_far_rarer_alarm(apart: float, share: float, inside: float, noisy: bool) -> None:
    """Five classes in a row, of which each moves so far to the mean of the others, against six clients.

    The score is 3.2, 4.9 and 3.5; an alarm for one of 20 clients is 2.6, and one that is 400 times rarer 4.2. Means and
    scatter together say noise of 0.008, 0.012 and 0.036: the farther classes are apart, the more it would scatter them.
    """
    places = [apart * k for k in range(5)]
    moved = [place + share * ((sum(places) - place) / 4 - place) for place in places]
    pairing = by_hand(moved, places, inside=inside, among=True)
    known = replace(pairing, other=replace(pairing.other, cells=6 * torch.ones(5).double()))
    assert fit_noise(known).share == pytest.approx(share)
    assert bool(find_noisy([(known, None)], tests=20).noisy) == noisy


@pytest.mark.parametrize(("share", "inside", "noisy"), [(0.2, 10.0, True), (0.2, 8.0, False), (0.3, 8.0, True)])
def test_classes_that_overlap_less_than_usual_take_a_far_rarer_alarm(share: float, inside: float, noisy: bool) -> None:
    """Classes 2 apart, whose scatter is so uneven that it says little: z_d is a little above or below 0.

    The score is about z_s, 3.5 or 5.2; an alarm for one of 20 clients is 2.6, and one that is 2,000 times rarer 4.6.
    """
    places = [2.0 * k for k in range(5)]
    moved = [place + share * ((sum(places) - place) / 4 - place) for place in places]
    pairing = replace(by_hand(moved, places, inside=inside, among=True), unevenness=2000 * torch.ones(5).double())
    known = replace(pairing, other=replace(pairing.other, cells=6 * torch.ones(5).double()))
    assert (evidence_of([known])[0].scatter > 0) == (inside > 9)
    assert bool(find_noisy([(known, None)], tests=20).noisy) == noisy


def test_a_client_without_a_deviation_to_explain_is_not_acquitted() -> None:
    """Two examples that it calls the last lie at the first, and the others a little farther out than they should.

    Noise that explains the last puts the others farther from where they are: it explains less than nothing of these.
    Noise of 4 % is that of four examples. Other names for the two that it calls the last are no better, however much
    they explain; those for 48 are.
    """
    whole = by_hand([-0.3, 4.0, 0.0], [0.0, 4.0, 8.0], inside=60.0, among=True)
    own = replace(whole.own, counts=torch.tensor([50, 48, 2]), variances=torch.tensor([0.02, 0.02, 0.5]).double())
    pairing = replace(whole, own=own)
    assert fit_noise(pairing).explained < -0.3
    assert find_noisy([(pairing, None)], tests=1).noisy.keys() == {0}
    for renamed, noisy in ((2, True), (1, False)):
        names = Renaming(((renamed, 0),), explained=0.31, residual=0.0, along=9.0, way=1.0, sure=False)
        assert bool(find_noisy([(pairing, names)], tests=1).noisy) == noisy


@pytest.mark.parametrize(
    ("residual", "between", "inside", "noisy"),
    [(1.9, 2.9, 20.0, True), (2.1, 2.9, 20.0, False), (1.9, 3.1, 20.0, False), (2.1, 3.1, 300.0, True)],
)
def test_where_much_is_left_both_signs_must_speak_for_noise(
    residual: float, between: float, inside: float, noisy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for rare clients, with scatter so uneven that it hardly counts: z_d = 2 x 11 / sqrt(44,000) = 0.1 or 2.8."""
    monkeypatch.setattr(noisy_labels, "fit_noise", lambda pairing: Fit(0.1, residual, 0.4, between))
    whole = by_hand([1.6, 2.4], [0.0, 4.0], inside=inside, among=True)
    one = replace(whole, unevenness=2000 * torch.ones(2).double())
    assert bool(find_noisy([(one, None)], tests=1).noisy) == noisy


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
