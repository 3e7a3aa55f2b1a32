import colorsys

import pytest
import torch

from fedatlas.data.transforms import Augment, Blur, ColorShift, GaussianNoise, Rotate
from fedatlas.errors import UsageError
from fedatlas.seeds import generator
from raising import raises

TRANSFORMS = [
    GaussianNoise(variance=0.1),
    Rotate(degrees=30),
    Blur(sigma=1.5),
    ColorShift(brightness=0.7, contrast=1.3, saturation=1.2, hue=0.1),
    Augment(rotate=0.5, erase=0.5),
]


def pictures(count: int = 6, height: int = 16, width: int = 20) -> torch.Tensor:
    return torch.rand((count, 3, height, width), generator=generator(0, "pictures"))


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: type(t).__name__)
def test_a_transform_keeps_the_shape_repeats_from_the_seed_and_leaves_its_input_alone(transform):
    images = pictures()
    before = images.clone()
    first = transform(images, generator(1))
    assert first.shape == images.shape
    assert first.isfinite().all()
    assert not torch.equal(first, images)
    assert torch.equal(first, transform(images, generator(1)))
    assert torch.equal(images, before)


def test_noise_has_the_stated_variance_and_is_not_clipped():
    images = torch.full((64, 3, 32, 32), 0.5)
    noisy = GaussianNoise(variance=0.25)(images, generator(0))
    assert noisy.var().item() == pytest.approx(0.25, rel=0.02)
    assert noisy.min() < 0
    assert noisy.max() > 1


def test_a_quarter_turn_is_counter_clockwise_and_exact_on_squares():
    images = pictures(height=16, width=16)
    turned = Rotate(degrees=90)(images, generator(0))
    assert torch.allclose(turned, torch.rot90(images, 1, (2, 3)), atol=1e-4)


def test_a_turn_keeps_distances_in_an_oblong_picture():
    """Two pixels right of the middle become two pixels above it."""
    image = torch.zeros(1, 1, 9, 17)
    image[0, 0, 4, 10] = 1
    turned = Rotate(degrees=90)(image, generator(0))[0, 0]
    assert turned[2, 8].item() == pytest.approx(1, abs=1e-3)


def test_half_a_turn_of_an_oblong_picture_flips_both_axes():
    images = pictures()
    assert torch.allclose(Rotate(degrees=180)(images, generator(0)), images.flip((2, 3)), atol=1e-4)


def test_blur_keeps_a_plain_picture_and_spreads_a_point_as_a_gaussian():
    """A point blurred with sigma 1 has at distance 1 exp(-1/2) of its height, along both axes."""
    plain = torch.full((2, 3, 9, 9), 0.3)
    assert torch.allclose(Blur(sigma=1.0)(plain, generator(0)), plain, atol=1e-6)
    point = torch.zeros(1, 1, 9, 9)
    point[0, 0, 4, 4] = 1
    spread = Blur(sigma=1.0)(point, generator(0))[0, 0]
    assert (spread[4, 5] / spread[4, 4]).item() == pytest.approx(0.60653, abs=1e-4)
    assert (spread[5, 4] / spread[4, 4]).item() == pytest.approx(0.60653, abs=1e-4)


def test_hue_turns_agree_with_the_standard_library():
    images = pictures(2, 4, 4)
    turned = ColorShift(hue=0.3)(images, generator(0))
    for image, result in zip(images, turned, strict=True):
        for pixel, got in zip(image.flatten(1).T, result.flatten(1).T, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
            wanted = colorsys.hsv_to_rgb((hue + 0.3) % 1, saturation, value)
            assert got.tolist() == pytest.approx(wanted, abs=1e-5)


def test_color_shift_with_neutral_factors_changes_nothing():
    images = pictures()
    assert torch.allclose(ColorShift()(images, generator(0)), images, atol=1e-5)


def test_saturation_zero_gives_grey_and_brightness_scales():
    images = pictures()
    grey = ColorShift(saturation=0.0)(images, generator(0))
    assert torch.allclose(grey[:, 0], grey[:, 2], atol=1e-5)
    assert torch.allclose(ColorShift(brightness=0.5)(images, generator(0)), images * 0.5, atol=1e-5)


def test_color_shift_draws_an_order_for_each_image():
    image = pictures(1).expand(64, -1, -1, -1)
    changed = ColorShift(brightness=1.4, contrast=0.6)(image, generator(0))
    assert len({tuple(row.tolist()) for row in changed[:, :, 0, 0].mul(1e4).round()}) == 2


def test_augment_with_nothing_switched_on_changes_nothing():
    images = pictures()
    assert torch.equal(Augment(padding=0, flip=0.0)(images, generator(0)), images)


def test_a_certain_flip_mirrors_every_image():
    images = pictures()
    assert torch.equal(Augment(padding=0, flip=1.0)(images, generator(0)), images.flip(3))


def test_crops_are_shifts_by_at_most_the_padding_drawn_for_each_image():
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 4] = 1
    moved = Augment(padding=2, flip=0.0)(image.expand(400, -1, -1, -1), generator(0))
    places = {tuple(place) for place in moved[:, 0].nonzero()[:, 1:].tolist()}
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}


def test_augment_flips_about_half_of_the_images():
    image = torch.zeros(1, 1, 4, 4)
    image[..., 0] = 1
    changed = Augment(padding=0, flip=0.5)(image.expand(400, -1, -1, -1), generator(0))
    assert 150 < (changed[:, 0, 0, 3] == 1).sum() < 250


def test_erasing_blacks_out_one_rectangle_of_the_stated_area():
    images = torch.ones(200, 3, 32, 32)
    erased = Augment(padding=0, flip=0.0, erase=1.0)(images, generator(0))
    holes = erased[:, 0] == 0
    areas = holes.sum((1, 2))
    assert areas.min() >= 10
    assert areas.max() <= 290
    for hole in holes:
        assert hole.any(1).sum() * hole.any(0).sum() == hole.sum()
    some = Augment(padding=0, flip=0.0, erase=0.3)(images, generator(0))
    assert 0.2 < (some == 0).flatten(1).any(1).float().mean() < 0.4


@pytest.mark.parametrize(
    ("build", "fields"),
    [
        (lambda: GaussianNoise(variance=-1.0), {"setting": "variance", "got": -1.0}),
        (lambda: Blur(sigma=0.0), {"setting": "sigma", "got": 0.0}),
        (lambda: ColorShift(hue=0.7), {"hue": 0.7}),
        (lambda: Augment(flip=2.0), {"setting": "flip", "got": 2.0}),
        (lambda: Augment(padding=-1), {"padding": -1}),
    ],
)
def test_wrong_settings_are_refused(build, fields):
    with raises(UsageError, "out-of-range", **fields):
        build()


def test_color_shift_refuses_grey_images():
    with raises(UsageError, "wrong-shape", got=1):
        ColorShift()(torch.zeros(2, 1, 4, 4), generator(0))


def test_a_blur_reaches_three_sigma_far():
    """At distance 2 a Gaussian of sigma 1 has exp(-2) = 0.135335 of its height, at 3 exp(-4.5) = 0.011109."""
    point = torch.zeros(1, 1, 9, 9)
    point[0, 0, 4, 4] = 1
    row = Blur(sigma=1.0)(point, generator(0))[0, 0, 4]
    assert (row[6:8] / row[4]).tolist() == pytest.approx([0.135335, 0.011109], abs=1e-5)


def test_grey_has_the_weights_of_the_eye():
    """Red, green and blue without saturation: 0.299, 0.587 and 0.114."""
    pure = torch.eye(3).view(3, 3, 1, 1)
    grey = ColorShift(saturation=0.0)(pure, generator(0))
    assert grey[:, 0, 0, 0].tolist() == pytest.approx([0.299, 0.587, 0.114], abs=1e-6)


def test_rotations_come_as_often_as_stated_and_both_ways():
    """Of 1000 images a quarter turn by up to 90 degrees: 250 +- 5 sqrt(250 * 3/4). A line from the middle to the right
    ends above the middle where it was turned counter-clockwise, below it else."""
    images = torch.zeros(1000, 1, 9, 9)
    images[:, :, 4, 5:] = 1
    changed = Augment(padding=0, flip=0, degrees=90, rotate=0.25)(images, generator(0))
    turned = (changed - images).abs().amax((1, 2, 3)) > 1e-3
    assert 180 < int(turned.sum()) < 320
    up, down = changed[turned, 0, :4].sum((1, 2)), changed[turned, 0, 5:].sum((1, 2))
    assert 80 < int((up > down).sum()) < 0.7 * int(turned.sum())


def test_a_rectangle_may_lie_at_any_place_where_it_fits_and_never_outside():
    """One pixel of four by four: each is blacked out now and then. One larger than the image takes it all."""
    images = torch.ones(400, 1, 4, 4)
    erased = Augment(padding=0, flip=0, erase=1, erase_pixels=(1, 1))(images, generator(0))
    assert bool((erased == 0).any(0).all())
    erased = Augment(padding=0, flip=0, erase=1, erase_pixels=(400, 400))(images, generator(0))
    assert float(erased.abs().max()) == 0
