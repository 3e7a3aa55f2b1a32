import pytest
import torch
from sklearn.datasets import load_digits

from fedatlas.data.loading.digits import DOMAINS, digits_originals, generate_digits, load_digits_domains
from fedatlas.errors import UsageError
from raising import raises


@pytest.fixture(scope="module")
def digits():
    return load_digits_domains()


def test_digits_are_five_domains_of_colour_images_scaled_by_half(digits):
    assert digits.name == "digits"
    assert digits.domains == DOMAINS == ("handwritten", "printed", "thin", "photo", "scene")
    assert digits.inputs.shape == (8000, 3, 32, 32)
    assert digits.inputs.dtype == torch.uint8
    assert digits.mean == digits.std == (0.5, 0.5, 0.5)
    assert digits.domain.bincount().tolist() == [1600] * 5


@pytest.mark.parametrize("per_domain", [1600, 103])
def test_every_domain_is_balanced_and_a_quarter_is_for_test(per_domain):
    data = load_digits_domains(per_domain=per_domain)
    for domain in range(5):
        own = data.domain == domain
        counts = data.labels[own].bincount(minlength=10)
        assert counts.max() - counts.min() <= 1
        assert data.is_test[own].float().mean().item() == pytest.approx(0.25, abs=0.05)
        assert (data.labels[own & data.is_test].bincount(minlength=10) > 0).all()


def test_the_same_seed_gives_the_same_bits_and_another_seed_other_ones():
    first = load_digits_domains(seed=3, per_domain=200)
    assert torch.equal(first.inputs, load_digits_domains(seed=3, per_domain=200).inputs)
    other = load_digits_domains(seed=4, per_domain=200)
    for domain in range(5):
        own = first.domain == domain
        assert not torch.equal(first.inputs[own], other.inputs[own])


def test_the_bits_do_not_depend_on_the_number_of_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    one = load_digits_domains(per_domain=60).inputs
    torch.set_num_threads(2)
    two = load_digits_domains(per_domain=60).inputs
    torch.set_num_threads(before)
    assert torch.equal(one, two)


@pytest.mark.parametrize("per_domain", [1600, 4000])
def test_no_original_is_in_training_and_in_test(per_domain):
    data_labels = torch.arange(per_domain).repeat(5) % 10
    originals = digits_originals(per_domain=per_domain)
    is_test = load_digits_domains(per_domain=per_domain).is_test
    shown = originals >= 0
    assert shown.reshape(5, -1).all(1).tolist() == [True, False, True, True, False]
    assert not set(originals[shown & is_test].tolist()) & set(originals[shown & ~is_test].tolist())
    targets = torch.from_numpy(load_digits().target)
    assert torch.equal(targets[originals[shown]], data_labels[shown])


def test_no_original_is_used_twice_inside_a_domain():
    for part in digits_originals().reshape(5, -1):
        shown = part[part >= 0]
        assert len(shown.unique()) == len(shown)


def test_handwritten_images_are_the_originals_that_are_claimed(digits):
    """An image shrunk to 8x8 is nearer to its own original than to nearly all others."""
    small = torch.nn.functional.adaptive_avg_pool2d(digits.inputs[:200, :1].float() / 255, 8).flatten(1)
    bank = torch.from_numpy(load_digits().data).float() / 16
    ranks = (torch.cdist(small, bank).argsort(1) == digits_originals()[:200, None]).float().argmax(1)
    assert ranks.float().median() < 40


def test_domains_look_different(digits):
    brightness = {
        name: digits.inputs[digits.domain == i].float().mean().item() for i, name in enumerate(digits.domains)
    }
    assert brightness["handwritten"] < 80 < 170 < brightness["printed"] < brightness["thin"]
    colour = digits.inputs.float().std(1).flatten(1).mean(1)
    assert colour[digits.domain == 0].max() == 0
    assert colour[digits.domain == 3].mean() > 10
    assert colour[digits.domain == 4].mean() > 10


def test_generated_digits_are_balanced_and_repeatable():
    images, labels = generate_digits(120, seed=1)
    assert images.shape == (120, 3, 32, 32)
    assert labels.bincount().tolist() == [12] * 10
    assert torch.equal(images, generate_digits(120, seed=1)[0])


def test_too_few_images_a_domain_are_refused():
    with raises(UsageError, "out-of-range", setting="per_domain"):
        load_digits_domains(per_domain=10)
