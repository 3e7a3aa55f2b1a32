from atlas.pairings import by_hand
from papers.tools.plain_swaps import swapped

PLACES = [0.0, 3.0, 20.0, 40.0]


def test_the_plain_rule_by_hand() -> None:
    """Two classes 3 apart are exchanged: D is 2 x 3^2 - 4 x 0.11, and -4 x 0.11 by the matching.

    z before is 17.56 / sqrt(2 x 4 x 0.11^2) = 56, and rho 1.03.
    """
    assert swapped(by_hand([3.0, 0.0, 20.0, 40.0], PLACES), tests=20) == {0, 1}
    assert swapped(by_hand(PLACES, PLACES), tests=20) == set()


def test_the_plain_rule_asks_that_most_is_explained() -> None:
    """The others moved by 4: by the matching 2 x 16 - 0.44 of 2 x 9 + 2 x 16 - 0.44 is left, so rho = 0.36."""
    assert swapped(by_hand([3.0, 0.0, 24.0, 44.0], PLACES), tests=20) == set()


def test_the_plain_rule_asks_for_a_difference_beyond_noise() -> None:
    """Two classes 0.5 apart are exchanged: z = (2 x 0.25 - 0.44) / 0.311 = 0.2."""
    places = [0.0, 0.5, 20.0, 40.0]
    assert swapped(by_hand([0.5, 0.0, 20.0, 40.0], places), tests=20) == set()
