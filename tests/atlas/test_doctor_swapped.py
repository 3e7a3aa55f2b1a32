from dataclasses import replace

import pytest
import torch

from atlas.pairings import by_hand
from fedatlas.atlas.doctor.reference import Pairing
from fedatlas.atlas.doctor.swapped import SURE, renaming_of


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
    likelihood ratio is 2 (1.42 x 1.43 - 1.42^2 / 2) / 0.1607 = 12.7, and 6 pairs at 20 clients need log(120 / 4) = 3.4.
    """
    others = [0.0, 1.2, 20.0, 30.0]
    swapped = by_hand([1.2, 0.0, 20.0, 30.0], others, among=True)
    found = renaming_of(swapped, tests=20)
    assert found.sure
    assert found.classes == ((0, 1), (1, 0))
    assert found.along == pytest.approx(2.86 / 0.3214**0.5, abs=0.01)
    assert found.along < SURE
    assert not renaming_of(swapped, tests=800_000).sure, "6 pairs at 800,000 clients need log(1,200,000) = 14.0"
    assert not renaming_of(by_hand([1.2, 0.9, 20.0, 30.0], others, among=True), tests=20).sure, "one stays"


def test_a_client_that_left_its_group_has_swapped_names_if_all_else_agrees() -> None:
    """The pair above: 12.7 are more than log(120) + 6.4 at 80 clients, and less than log(1,200) + 6.4 at 800."""
    others = [0.0, 1.2, 20.0, 30.0]
    left = by_hand([1.2, 0.0, 20.0, 30.0], others)
    assert renaming_of(left, tests=80).sure
    assert not renaming_of(left, tests=800).sure
    assert not renaming_of(by_hand([1.2, 0.0, 21.5, 28.5], others), tests=20).sure, "others moved, too"
    assert not renaming_of(by_hand([1.2, 0.0, 20.0], others[:3]), tests=20).sure, "one class is too few to agree"


@pytest.mark.parametrize(("off", "among", "sure"), [(0.33, False, True), (0.38, False, False), (0.38, True, True)])
def test_in_another_group_two_names_must_explain_most_of_a_difference(off: float, among: bool, sure: bool) -> None:
    """Two classes of 42 are 1.25 apart and swapped, and forty others a little off.

    2 x 1.25^2 + 40 off^2 less 42 x 0.11 is to explain. Exchanged, 40 off^2 - 4.62 is left: nothing, or 1.16 of 4.3, so
    0.73 is explained; both are less than 1.64 standard deviations of 0.98.
    """
    others = [0.0, 1.25, *(20.0 * k for k in range(1, 41))]
    own = [1.25, 0.0, *(place + off for place in others[2:])]
    found = renaming_of(by_hand(own, others, among=among), tests=1)
    assert found.along < SURE
    assert found.explained == pytest.approx(min(1 - (40 * off**2 - 4.62) / (3.125 + 40 * off**2 - 4.62), 1.0), abs=1e-3)
    assert found.sure == sure


def test_a_class_of_few_examples_says_little_of_what_is_explained() -> None:
    """Excesses of 1 and of 3 by noise of 0.1 + 0.01 and of 0.5 + 0.01; only the first goes away.

    By their deviations they are 1 / 0.11 = 9.09 and 3 / 0.51 = 5.88, so 9.09 of 14.97 is explained, and not 1 of 4.
    """
    whole = by_hand([1.11**0.5, 4.0 + 3.51**0.5], [0.0, 4.0])
    counts = torch.tensor([10, 3])
    pairing = replace(whole, own=replace(whole.own, counts=counts, variances=torch.tensor([0.1, 0.5]).double()))
    assert pairing.excess().tolist() == pytest.approx([1.0, 3.0])
    assert pairing.explained(torch.tensor([0.0, 3.0])) == pytest.approx(9.0909 / 14.973, rel=1e-4)
    assert pairing.explained(pairing.excess()) == 0.0


def _of_two(first: int, second: int, place: float = 20.0) -> Pairing:
    """Return a client among five others with so many examples that it calls 0 and 1, which the others call 1 and 0."""
    whole = by_hand([place, 0.0, 40.0, 60.0], [0.0, 20.0, 40.0, 60.0], among=True)
    counts = torch.tensor([first, second, 10, 10])
    noise = torch.where(counts > 0, 1 / counts.double(), torch.inf)
    own = replace(whole.own, counts=counts, variances=noise)
    return replace(whole, own=own, other=replace(whole.other, cells=5 * torch.ones(4).double()))


@pytest.mark.parametrize(("apart", "sure"), [(0.9, False), (1.1, True)])
def test_one_class_tells_no_swap_if_it_is_hardly_apart_from_the_other(apart: float, sure: bool) -> None:
    """A thousand examples lie where the class should that the client lacks: z = apart / sqrt(1 / 1000 + 1 / 100)."""
    places = [0.0, apart, 40.0, 60.0]
    whole = by_hand([apart, 0.0, *places[2:]], places, among=True)
    counts = torch.tensor([1000, 0, 10, 10])
    noise = torch.where(counts > 0, 1 / counts.double(), torch.inf)
    own = replace(whole.own, counts=counts, variances=noise)
    found = renaming_of(replace(whole, own=own, other=replace(whole.other, cells=5 * torch.ones(4).double())), tests=1)
    assert (found.sure, found.classes) == (sure, ((0, 1),))


def test_two_examples_tell_a_swap_and_one_may_be_odd() -> None:
    """Classes are 20 apart, and examples scatter by 1."""
    for counts, classes in (((2, 0), ((0, 1),)), ((1, 1), ((0, 1), (1, 0))), ((1, 2), ((0, 1), (1, 0)))):
        found = renaming_of(_of_two(*counts), tests=20)
        assert (found.sure, found.classes) == (True, classes)
        assert not renaming_of(_of_two(*counts), tests=20, rare=True).sure, "a rare client needs several of both"
    assert not renaming_of(_of_two(1, 0), tests=20).sure, "one example"
    assert not renaming_of(_of_two(2, 0, 12.0), tests=20).sure, "0.6 of the way, and no other class speaks"
    two = _of_two(2, 0)
    fewer = replace(two, other=replace(two.other, cells=4 * torch.ones(4).double()))
    assert not renaming_of(fewer, tests=20).sure, "a fifth client must know the name that it lacks"


@pytest.mark.parametrize(
    ("way", "others", "tests", "sure"),
    [
        (0.45, 5, 1, True),
        (0.45, 4, 1, False),
        (0.2, 5, 1, False),
        (0.45, 5, 4 * 10**9, False),
        (1.0, 4, 4 * 10**9, True),
    ],
)
def test_a_class_with_two_examples_may_hardly_speak(way: float, others: int, tests: int, sure: bool) -> None:
    """Ten examples went all the way of 2.5 to another class, whose two examples went a part of it.

    The ratios are 2.5^2 / 2 / 0.11 = 28 and 2.5^2 (way - 0.5) / 0.51 = -0.6 or 6.1. Four billion clients and six
    pairs need log(24 billion / 4) = 22.5, and 6.4 more where one class hardly speaks. Together they went (1 + way) / 2,
    of which five others ask for 0.7 and fewer for 0.8.
    """
    whole = by_hand([2.5, 2.5 * (1 - way), 40.0, 60.0], [0.0, 2.5, 40.0, 60.0], among=True)
    counts = torch.tensor([10, 2, 10, 10])
    own = replace(whole.own, counts=counts, variances=1 / counts.double())
    pairing = replace(whole, own=own, other=replace(whole.other, cells=others * torch.ones(4).double()))
    assert renaming_of(pairing, tests=tests).sure == sure


@pytest.mark.parametrize(("apart", "rare", "sure"), [(4.0, False, True), (4.0, True, False), (8.0, True, True)])
def test_two_names_of_a_rare_client_take_a_surer_z(apart: float, rare: bool, sure: bool) -> None:
    """Two examples of each of two classes lie where the other should: z = 2 apart / sqrt(2 x 0.51) = 7.9 or 15.8."""
    places = [0.0, apart, 40.0, 60.0]
    whole = by_hand([apart, 0.0, *places[2:]], places, among=True)
    counts = torch.tensor([2, 2, 10, 10])
    own = replace(whole.own, counts=counts, variances=1 / counts.double())
    pairing = replace(whole, own=own, other=replace(whole.other, cells=5 * torch.ones(4).double()))
    assert renaming_of(pairing, tests=1, rare=rare).sure == sure


@pytest.mark.parametrize(("off", "apart", "sure"), [(0.5, 4.0, True), (0.65, 4.0, False), (0.65, 8.0, True)])
def test_a_class_that_speaks_alone_is_believed_where_all_else_agrees(off: float, apart: float, sure: bool) -> None:
    """Two examples lie where the others' second class does, which the client lacks; its other two classes are off.

    z of a swap is apart / sqrt(1 / 2 + 1 / 100) = 5.6 or 11.2, and 2 (off^2 - 0.11) / 0.22 = 1.3 or 2.8 are left.
    """
    places = [0.0, apart, 40.0, 60.0]
    whole = by_hand([apart, 0.0, 40.0 + off, 60.0 + off], places, among=True)
    counts = torch.tensor([2, 0, 10, 10])
    own = replace(whole.own, counts=counts, variances=torch.where(counts > 0, 1 / counts.double(), torch.inf))
    found = renaming_of(replace(whole, own=own, other=replace(whole.other, cells=5 * torch.ones(4).double())), tests=1)
    assert found.sure == sure


def test_a_class_may_be_called_by_a_name_that_the_client_lacks() -> None:
    """The client has four classes of five, and calls by 3 what the others call 4."""
    pairing = by_hand([0.0, 10.0, 20.0, 40.0, 0.0], [0.0, 10.0, 20.0, 30.0, 40.0])
    own = replace(pairing.own, counts=torch.tensor([10, 10, 10, 10, 0]))
    assert renaming_of(replace(pairing, own=own), tests=1).classes == ((3, 4),)


def test_a_name_that_the_client_lacks_is_judged_by_five_others_or_cannot_be_told() -> None:
    """It calls by 3 what the others call 4, and lacks 4: z = 99.99 / sqrt(11.0023), and nothing is left.

    With the class 4 at the place of 3 it is a ring, and any group can tell.
    """
    places = [0.0, 10.0, 20.0, 30.0, 40.0]
    whole = by_hand([*places[:3], 40.0, 0.0], places, among=True)
    open_ended = replace(whole, own=replace(whole.own, counts=torch.tensor([10, 10, 10, 10, 0])))
    few = renaming_of(open_ended, tests=1)
    assert (few.sure, few.untold) == (False, True)
    assert few.along == pytest.approx(99.99 / 11.0023**0.5)
    five = replace(open_ended, other=replace(whole.other, cells=5 * torch.ones(5).double()))
    assert renaming_of(five, tests=1).sure
    assert not renaming_of(five, tests=10**40).alone, "the matching tells, for any number of clients"
    rare = renaming_of(five, tests=1, rare=True)
    assert (rare.sure, rare.untold) == (False, True)
    ring = renaming_of(by_hand([*places[:3], 40.0, 30.0], places, among=True), tests=1, rare=True)
    assert (ring.sure, ring.untold) == (True, False)


@pytest.mark.parametrize(("apart", "sure"), [(2.5, False), (3.0, True)])
def test_a_name_that_the_client_lacks_takes_a_surer_matching(apart: float, sure: bool) -> None:
    """The last two classes are so far apart, and the client calls by 3 what the others call 4.

    z = (apart^2 - 0.01) / sqrt(0.11 apart^2 + 0.0023) = 7.5 or 9.0; so many clients that one pair alone tells nothing.
    """
    places = [0.0, 10.0, 20.0, 30.0, 30.0 + apart]
    whole = by_hand([*places[:3], places[4], 0.0], places, among=True)
    own = replace(whole.own, counts=torch.tensor([10, 10, 10, 10, 0]))
    pairing = replace(whole, own=own, other=replace(whole.other, cells=5 * torch.ones(5).double()))
    found = renaming_of(pairing, tests=10**40)
    assert found.along == pytest.approx((apart**2 - 0.01) / (0.11 * apart**2 + 0.0023) ** 0.5)
    assert (found.sure, found.untold) == (sure, not sure)
