import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.builtin import Builtin, hashed_ngrams, token_hashes
from fedatlas.atlas.encoders.projection import signs, to_width
from fedatlas.data import (
    ByDomain,
    Client,
    Dataset,
    Federation,
    GaussianNoise,
    Rotate,
    federate,
    from_arrays,
    from_texts,
    load_digits_domains,
)
from fedatlas.errors import UsageError
from fedatlas.seeds import generator
from raising import raises


def all_in_one(data: Dataset) -> Federation:
    everything = torch.arange(len(data))
    return Federation(data=data, clients=(Client(name="all", train=everything, test=everything),))


@pytest.fixture(scope="module")
def digits() -> Federation:
    return federate(load_digits_domains(per_domain=400), ByDomain(clients_per_domain=10))


@pytest.fixture(scope="module")
def found(digits: Federation) -> Embeddings:
    return Builtin().encode(digits)


def test_the_clients_of_the_five_digit_domains_fall_into_five_groups(digits: Federation, found: Embeddings) -> None:
    means = torch.stack([found.examples[client.train].mean(0) for client in digits])
    groups = KMeans(5, n_init=10, random_state=0).fit(means.numpy()).labels_
    assert adjusted_rand_score([client.domain for client in digits], groups) == 1.0


def test_the_vectors_say_something_of_the_label(digits: Federation, found: Embeddings) -> None:
    """Nearest class centre over all five domains at once: chance is 10 %."""
    rows = torch.cat([client.train for client in digits])
    vectors, labels = found.examples[rows], digits.data.labels[rows]
    fitted = torch.arange(len(rows)) % 2 == 0
    centres = torch.stack([vectors[fitted & (labels == digit)].mean(0) for digit in range(10)])
    right = torch.cdist(vectors[~fitted], centres).argmin(1) == labels[~fitted]
    assert float(right.float().mean()) > 0.5


def test_vectors_are_about_as_long_as_clip_s_and_as_wide(found: Embeddings, digits: Federation) -> None:
    rows = torch.cat([client.train for client in digits])
    assert found.examples.shape == (2000, 512)
    assert 9 < float(found.examples[rows].norm(dim=1).mean()) < 11
    torch.testing.assert_close(found.classes.norm(dim=1), torch.full((10,), 10.0))


def test_the_same_images_give_the_same_bits_whatever_the_batch(digits: Federation, found: Embeddings) -> None:
    rows = digits.clients[3].train
    alone = Federation(data=digits.data, clients=(digits.clients[3],))
    torch.testing.assert_close(Builtin().encode(alone).examples[rows], found.examples[rows], rtol=1e-4, atol=1e-4)
    assert torch.equal(Builtin().encode(digits).examples, found.examples)


@pytest.mark.parametrize("transform", [GaussianNoise(variance=0.05), Rotate(degrees=90)])
def test_a_degraded_client_stands_apart_from_its_domain(
    digits: Federation, found: Embeddings, transform: GaussianNoise | Rotate
) -> None:
    changed = Builtin().encode(digits.with_transforms([transform, *[None] * 49]))
    means = torch.stack([changed.examples[client.train].mean(0) for client in digits.clients[:10]])
    cosines = F.normalize(means, dim=1) @ F.normalize(means, dim=1).T
    among_others = cosines[1:, 1:][~torch.eye(9, dtype=torch.bool)]
    assert float(cosines[0, 1:].max()) < float(among_others.min())


def test_images_may_be_grey_and_of_any_size_but_not_of_four_channels() -> None:
    images = torch.randint(0, 256, (2, 1, 20, 28), dtype=torch.uint8, generator=generator(0))
    grey, colour = (all_in_one(from_arrays(x, [0, 1])) for x in (images, images.repeat(1, 3, 1, 1)))
    assert torch.equal(Builtin().encode(grey).examples, Builtin().encode(colour).examples)
    with raises(UsageError, "kind-mismatch", got=4, what="images"):
        Builtin().encode(all_in_one(from_arrays(images.repeat(1, 4, 1, 1), [0, 1])))


def test_a_plain_image_has_a_finite_vector() -> None:
    black = all_in_one(from_arrays(torch.zeros(2, 3, 32, 32), [0, 1]))
    assert bool(Builtin().encode(black).examples.isfinite().all())


def test_a_class_has_the_same_code_in_every_data_set() -> None:
    """The code of a name is fixed for ever: a change here makes atlases of different versions differ."""
    assert signs("class cat", 8).tolist() == [1, 1, 1, -1, -1, -1, 1, 1]
    images = torch.zeros(3, 3, 8, 8)
    first = Builtin().encode(all_in_one(from_arrays(images, [0, 1, 2], classes=["cat", "dog", "7"]))).classes
    second = Builtin().encode(all_in_one(from_arrays(images, [0, 1, 2], classes=["bus", "7", "cat"]))).classes
    assert torch.equal(first[0], second[2])
    assert torch.equal(first[2], second[1])
    cosines = F.normalize(first, dim=1) @ F.normalize(first, dim=1).T
    assert float((cosines - torch.eye(3)).abs().max()) < 0.2


def test_ngrams_are_counted_and_padding_is_not() -> None:
    """The text "aa" holds "a" twice and "aa" once: two entries, 2 and 1, scaled to length 10."""
    hashes = token_hashes(("", "a", "b"), 3)
    vector = hashed_ngrams(torch.tensor([[1, 1, 0, 0]]), hashes)[0]
    entries = sorted(vector[vector != 0].abs().tolist())
    assert entries == pytest.approx([10 / math.sqrt(5), 20 / math.sqrt(5)], rel=1e-5)
    torch.testing.assert_close(vector, hashed_ngrams(torch.tensor([[1, 1]]), hashes)[0])
    torch.testing.assert_close(hashed_ngrams(torch.tensor([[0, 0]]), hashes), torch.zeros(1, 512))


def test_a_text_has_the_same_vector_under_another_numbering_of_the_characters() -> None:
    first = from_texts(["to be or not"], labels=["x"], context=12)
    second = from_texts(["to be or not", "zebra, quickly"], labels=["x", "y"], context=12)
    assert not torch.equal(first.inputs[0], second.inputs[0])
    vectors = [Builtin().encode(all_in_one(data)).examples[0] for data in (first, second)]
    torch.testing.assert_close(vectors[0], vectors[1])


def test_texts_alike_have_vectors_alike() -> None:
    data = from_texts(["the cat sat on the mat", "the cat sat on a mat", "XYZZY 12345 QQQQQ 67890"], labels=list("abc"))
    vectors = F.normalize(Builtin().encode(all_in_one(data)).examples, dim=1)
    assert float(vectors[0] @ vectors[1]) > 0.7
    assert abs(float(vectors[0] @ vectors[2])) < 0.3


def test_features_keep_their_angles_and_tokens_without_vocabulary_are_read() -> None:
    rows = 0.01 * torch.randn(5, 40, generator=generator(0))
    vectors = Builtin().encode(all_in_one(from_arrays(rows, [0, 1, 0, 1, 0]))).examples
    torch.testing.assert_close(vectors @ vectors.T, rows @ rows.T, rtol=1e-3, atol=1e-5)
    tokens = torch.tensor([[3, 1, 4], [1, 5, 9]])
    vectors = Builtin().encode(all_in_one(from_arrays(tokens, [0, 1], kind="tokens"))).examples
    torch.testing.assert_close(vectors.norm(dim=1), torch.full((2,), 10.0))


def test_wide_vectors_are_projected_with_their_cosines() -> None:
    rows = F.normalize(torch.randn(20, 1280, generator=generator(0)) + 0.7, dim=1)
    narrow = F.normalize(to_width(rows, "test"), dim=1)
    assert float((narrow @ narrow.T - rows @ rows.T).abs().max()) < 5 / math.sqrt(512)
