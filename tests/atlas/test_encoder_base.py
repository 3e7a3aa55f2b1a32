from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedatlas.atlas.encoders.base import BatchEncoder, Embeddings
from fedatlas.atlas.encoders.inputs import class_texts, example_texts, shown_batches
from fedatlas.atlas.encoders.projection import to_width
from fedatlas.atlas.encoders.registry import ENCODERS, encoder_options, make_encoder
from fedatlas.data import Client, Dataset, Federation, GaussianNoise, from_arrays, from_texts
from fedatlas.errors import DataError, UsageError
from raising import raises


@dataclass(frozen=True, kw_only=True)
class Brightness(BatchEncoder):
    """One number an image, its mean; one a class, its position."""

    name: ClassVar[str] = "brightness"
    kinds: ClassVar[tuple[str, ...]] = ("image",)
    cache: bool = False

    def identity(self) -> str:
        return "brightness 1"

    def embed(self, data: Dataset, inputs: Tensor) -> Tensor:
        scaled = inputs / 255 if inputs.dtype == torch.uint8 else inputs
        return scaled.mean((1, 2, 3))[:, None]

    def embed_classes(self, data: Dataset) -> Tensor:
        return torch.arange(len(data.classes))[:, None]


@dataclass(frozen=True)
class Add:
    """Adds a number to every pixel."""

    amount: float

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return images + self.amount


def grey(*clients: tuple[list[int], list[int]]) -> Federation:
    """Six images of brightness 0.0, 0.2, ... 1.0, and clients as (training, test) indices."""
    levels = torch.arange(6, dtype=torch.uint8) * 51
    data = from_arrays(levels.view(6, 1, 1, 1).expand(6, 1, 4, 4), [0, 1, 0, 1, 0, 1], name="grey")
    members = [
        Client(name=f"client-{i}", train=torch.tensor(train), test=torch.tensor(test), held_out=i == 1)
        for i, (train, test) in enumerate(clients)
    ]
    return Federation(data=data, clients=tuple(members))


def test_training_examples_of_all_clients_get_vectors_and_others_zeros() -> None:
    """Client 1 is held out and encoded too; examples 2 and 5 are for test only."""
    found = Brightness().encode(grey(([1, 3], [2]), ([4], [5])))
    torch.testing.assert_close(found.examples[:, 0], torch.tensor([0.0, 0.2, 0.0, 0.6, 0.8, 0.0]))
    torch.testing.assert_close(found.classes, torch.tensor([[0.0], [1.0]]))
    assert found.encoder == "brightness 1"


def test_a_client_s_images_are_changed_by_its_transform_before_they_are_encoded() -> None:
    federation = grey(([1, 3], []), ([4], [])).with_transforms([Add(0.5), None])
    found = Brightness().encode(federation)
    torch.testing.assert_close(found.examples[[1, 3, 4], 0], torch.tensor([0.7, 1.1, 0.8]))


def test_random_transforms_give_the_same_images_each_time_and_differ_between_clients() -> None:
    federation = grey(([1, 3], []), ([4, 5], [])).with_transforms([GaussianNoise(variance=0.1)] * 2)
    first, again = (dict(zip("ab", shown_batches(federation, 8), strict=True)) for _ in range(2))
    assert all(torch.equal(first[key].inputs, again[key].inputs) for key in "ab")
    clean = federation.data.inputs.float() / 255
    assert not torch.allclose(first["a"].inputs - clean[[1, 3]], first["b"].inputs - clean[[4, 5]])


def test_an_example_that_two_clients_see_differently_is_refused() -> None:
    shared = grey(([1, 3], []), ([3], []))
    assert Brightness().encode(shared.with_transforms([Add(0.5), Add(0.5)])).examples[3, 0] == pytest.approx(1.1)
    with raises(DataError, "partition-unfit", clients=("client-0", "client-1")):
        Brightness().encode(shared.with_transforms([Add(0.5), None]))


def test_normalize_gives_length_one_and_leaves_zeros() -> None:
    found = Brightness(normalize=True).encode(grey(([1, 3], []), ([4], [])))
    torch.testing.assert_close(found.examples[:, 0], torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0, 0.0]))
    torch.testing.assert_close(found.classes, torch.tensor([[0.0], [1.0]]))


def test_inputs_that_an_encoder_cannot_read_are_refused() -> None:
    federation = grey(([1], []))
    rows = from_arrays(torch.rand(6, 3), [0, 1, 0, 1, 0, 1], name="rows")
    with raises(UsageError, "kind-mismatch", encoder="brightness", got="features"):
        Brightness().encode(replace(federation, data=rows))


def test_a_bar_counts_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    Brightness().encode(grey(([1, 3], []), ([4], [])), progress=True)
    assert "encode brightness: 3 of 3, " in capsys.readouterr().err


def test_embeddings_refuse_what_would_train_to_nonsense() -> None:
    good = torch.ones(2, 3)
    with raises(DataError, "not-finite", what="examples", row=1):
        Embeddings(encoder="x", examples=torch.tensor([[0.0, 1.0], [2.0, float("nan")]]), classes=good)
    with raises(DataError, "wrong-shape", what="classes", got=torch.float64):
        Embeddings(encoder="x", examples=good, classes=good.double())


def test_embeddings_are_saved_only_as_safetensors(tmp_path: Path) -> None:
    with raises(UsageError, "file-ending", got=".npz"):
        Embeddings(encoder="x", examples=torch.ones(1, 2), classes=torch.ones(1, 2)).save(tmp_path / "x.npz")


def test_prompts_have_the_right_article_and_no_underscores() -> None:
    data = from_arrays(torch.zeros(3, 4, 4), [0, 1, 2], classes=["alarm_clock", "bus", "Ox"])
    assert class_texts(data) == ["a photo of an alarm clock.", "a photo of a bus.", "a photo of an Ox."]


def test_texts_are_put_as_the_next_character_or_as_they_are() -> None:
    following = from_texts(["abcab"], context=3)
    assert class_texts(following) == ["Character a", "Character b", "Character c"]
    assert example_texts(following, following.inputs) == ["The next character of abc", "The next character of bca"]
    rated = from_texts(["good", "bad"], labels=["5", "1"], context=6)
    assert class_texts(rated) == ["1", "5"]
    assert example_texts(rated, rated.inputs) == ["good", "bad"]
    nameless = from_arrays(
        torch.zeros(2, 3, dtype=torch.int64), [0, 1], classes=["a", "b"], name="codes", kind="tokens"
    )
    with raises(DataError, "vocabulary", data="codes"):
        example_texts(nameless, nameless.inputs)


def test_every_encoder_says_in_one_line_what_it_is() -> None:
    assert sorted(ENCODERS) == ["builtin", "clip", "conse", "precomputed"]
    for name, encoder in ENCODERS.items():
        assert encoder.name == name
        assert 40 < len(encoder.__doc__.split("\n")[0]) < 120


def test_encoders_are_made_by_name_and_say_what_is_wrong() -> None:
    encoder = make_encoder("conse", features=False, image_size=64)
    assert encoder.name == "conse"
    assert encoder_options("clip")["model"] == "openai/clip-vit-base-patch32"
    with raises(UsageError, "unknown-name", kind="encoder", got="klip"):
        make_encoder("klip")
    with raises(UsageError, "unknown-name", kind="option of encoder 'clip'", got="modle"):
        make_encoder("clip", modle="x")
    with raises(UsageError, "missing-option", option="path"):
        make_encoder("precomputed")
    with raises(UsageError, "out-of-range", got=100, setting="image_size"):
        make_encoder("conse", image_size=100)


@pytest.mark.parametrize("entries", [5, 8])
def test_up_to_the_width_angles_and_lengths_stay_exactly(entries: int) -> None:
    mapped = to_width(torch.eye(entries), "a test", width=8)
    torch.testing.assert_close(mapped @ mapped.T, torch.eye(entries))
