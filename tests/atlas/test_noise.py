import math
from dataclasses import replace

import pytest
import torch

from fedatlas.atlas import Atlas
from fedatlas.atlas.noise import clip_rows, delta_for, epsilon, noisy, sigma_for
from fedatlas.errors import UsageError
from raising import raises


def atlas(**changes: object) -> Atlas:
    base = Atlas(
        names=("small", "large"),
        halves={"feature": torch.tensor([[3.0, 4.0], [0.3, 0.4]])},
        sizes=torch.tensor([10, 1000]),
        provenance={"source": "hand"},
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_delta_at_epsilon_zero_is_the_overlap_of_two_bells() -> None:
    """Two bells 2 sigma apart: delta = Phi(1) - Phi(-1) = 0.6827."""
    assert delta_for(0.0, sigma=0.5, sensitivity=1.0) == pytest.approx(0.682689, abs=1e-6)


def test_delta_matches_a_value_worked_out_by_hand() -> None:
    """epsilon = 1, r = 1: delta = Phi(-1/2) - e Phi(-3/2) = 0.3085375 - 2.7182818 * 0.0668072 = 0.1269367."""
    assert delta_for(1.0, sigma=1.0, sensitivity=1.0) == pytest.approx(0.1269367, abs=1e-6)


def test_sigma_matches_a_known_value_and_beats_the_classical_bound() -> None:
    """At (1, 1e-5) the classical mechanism needs sqrt(2 ln(1.25 / 1e-5)) = 4.8448, the analytic one 3.7306."""
    assert sigma_for(1.0, 1e-5, 1.0) == pytest.approx(3.730632, abs=1e-5)
    assert sigma_for(1.0, 1e-5, 1.0) < math.sqrt(2 * math.log(1.25e5))


@pytest.mark.parametrize("wanted", [0.01, 1.0, 8.0, 200.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
@pytest.mark.parametrize("sensitivity", [1e-4, 3.0])
def test_epsilon_and_sigma_are_inverse(wanted: float, delta: float, sensitivity: float) -> None:
    sigma = sigma_for(wanted, delta, sensitivity)
    assert epsilon(sigma, delta, sensitivity) == pytest.approx(wanted, rel=1e-3)
    assert delta_for(wanted, sigma, sensitivity) == pytest.approx(delta, rel=1e-3)


def test_noise_that_hides_everything_costs_no_epsilon() -> None:
    assert epsilon(sigma=1e7, delta=1e-5, sensitivity=1.0) == 0.0


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [((0.0, 1e-5, 1.0), "sigma"), ((1.0, 1.0, 1.0), "delta"), ((1.0, 1e-5, -1.0), "sensitivity")],
)
def test_impossible_noise_is_refused_by_name(arguments: tuple[float, float, float], setting: str) -> None:
    with raises(UsageError, "out-of-range", setting=setting):
        epsilon(*arguments)


def test_clipping_shortens_long_rows_and_leaves_short_ones() -> None:
    rows = clip_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0)
    torch.testing.assert_close(rows, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_noise_for_a_whole_client_states_what_it_buys() -> None:
    """One half clipped to 1: sensitivity 2, so sigma 2 gives what sigma 1 gives at sensitivity 1."""
    promise = atlas().with_noise(clip=1.0, sigma=2.0).provenance["noise"]
    assert promise["sensitivity"] == pytest.approx(2.0)
    assert promise["epsilon"] == pytest.approx(epsilon(1.0, 1e-5, 1.0))
    assert "seed" not in promise


def test_two_halves_have_root_two_times_the_sensitivity_of_one() -> None:
    both = atlas(halves={"feature": torch.ones(2, 3), "label": torch.ones(2, 3)})
    assert both.with_noise(clip=1.0, sigma=2.0).provenance["noise"]["sensitivity"] == pytest.approx(2 * math.sqrt(2))


def test_noise_for_one_example_is_less_for_clients_with_many() -> None:
    """n = 10 and 1000: sensitivities 0.2 and 0.002 at clip 1, so the noise differs a hundredfold."""
    known = atlas(halves={"feature": torch.zeros(2, 20_000)}, provenance={"example_clip": {"feature": 1.0}})
    noised = known.with_noise(epsilon=1.0, protects="example")
    wanted = 3.7306 * torch.tensor([0.2, 0.002])
    torch.testing.assert_close(noised.half().std(dim=1), wanted, rtol=0.03, atol=0)
    assert noised.provenance["noise"]["sigma"] == pytest.approx(3.7306 * 0.2, rel=1e-4)
    assert noised.provenance["noise"]["epsilon"] == 1.0


def test_halves_with_different_clips_add_like_the_sides_of_a_triangle() -> None:
    """Clips 3 and 4 of two halves: one of 10 examples moves the vector by at most 2 * 5 / 10."""
    both = atlas(halves={"feature": torch.ones(2, 3), "label": torch.ones(2, 3)})
    known = replace(both, provenance={"example_clip": {"feature": 3.0, "label": 4.0}})
    assert known.with_noise(sigma=2.0, protects="example").provenance["noise"]["sensitivity"] == pytest.approx(1.0)
    half_known = replace(both, provenance={"example_clip": {"feature": 3.0}})
    with raises(UsageError, "noise-settings", half="label"):
        half_known.with_noise(sigma=2.0, protects="example")


def test_one_sigma_for_all_states_the_epsilon_of_the_smallest_client() -> None:
    known = atlas(provenance={"example_clip": {"feature": 1.0}}).with_noise(sigma=0.2, protects="example")
    assert known.provenance["noise"]["epsilon"] == pytest.approx(epsilon(0.2, 1e-5, 0.2))


def test_a_client_draws_its_own_noise_whoever_else_is_there() -> None:
    both = noisy(["small", "large"], {"feature": torch.zeros(2, 3)}, {"feature": 1.0}, torch.ones(2), seed=5)["feature"]
    alone = noisy(["large"], {"feature": torch.zeros(1, 3)}, {"feature": 1.0}, torch.ones(1), seed=5)["feature"]
    assert torch.equal(both[1], alone[0])
    assert not torch.equal(both[0], both[1])
    other = noisy(["large"], {"feature": torch.zeros(1, 3)}, {"feature": 1.0}, torch.ones(1), seed=6)["feature"]
    assert not torch.equal(alone, other)


def test_noise_leaves_the_first_atlas_as_it_was() -> None:
    first = atlas()
    first.with_noise(clip=100.0, sigma=1.0)
    assert torch.equal(first.half(), atlas().half())


def test_noise_without_a_bound_or_twice_is_refused() -> None:
    with raises(UsageError, "noise-settings", setting="clip"):
        atlas().with_noise(sigma=1.0)
    with raises(UsageError, "noise-settings", setting="protects", half="feature"):
        atlas().with_noise(sigma=1.0, protects="example")
    with raises(UsageError, "noise-settings", got=2.0):
        atlas(provenance={"example_clip": {"feature": 1.0}}).with_noise(clip=2.0, sigma=1.0, protects="example")
    with raises(UsageError, "noise-settings", setting="sigma"):
        atlas().with_noise(clip=1.0)
    with raises(UsageError, "noise-settings", setting="sigma"):
        atlas().with_noise(clip=1.0, sigma=1.0, epsilon=1.0)
    with raises(UsageError, "unknown-name", kind="unit of protection", got="exmple"):
        atlas().with_noise(clip=1.0, sigma=1.0, protects="exmple")
    with raises(UsageError, "noise-repeated"):
        atlas().with_noise(clip=1.0, sigma=1.0).with_noise(clip=1.0, sigma=1.0)


@pytest.mark.parametrize("wanted", [0.1, 1.0, 3.0])
def test_promises_are_rounded_to_the_safe_side(wanted: float) -> None:
    """The noise that is told is enough, and the epsilon that is told holds."""
    sigma = sigma_for(wanted, 1e-5, 1.0)
    assert delta_for(wanted, sigma, 1.0) <= 1e-5
    assert delta_for(epsilon(sigma, 1e-5, 1.0), sigma, 1.0) <= 1e-5


def test_a_client_without_examples_counts_as_one_of_one() -> None:
    """Dividing by none of its examples would make its noise, and the told sensitivity, infinite."""
    empty = Atlas(
        names=("a", "b"),
        halves={"label": torch.tensor([[0.0, 0.0], [0.5, 0.5]])},
        sizes=torch.tensor([0, 4]),
        provenance={"source": "label_histogram", "example_clip": {"label": 1.0}},
    )
    noised = empty.with_noise(epsilon=1.0, protects="example")
    assert noised.provenance["noise"]["sensitivity"] == 2.0
    assert bool(noised.half("label").isfinite().all())
