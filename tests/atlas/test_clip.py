import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from fedatlas.atlas.encoders.clip import MEAN, STD, Clip, fit_square, read_scaling
from fedatlas.atlas.encoders.registry import make_encoder
from fedatlas.data import CACHE_VARIABLE, Client, Dataset, Federation, from_arrays, from_texts
from fedatlas.errors import UsageError
from fedatlas.seeds import generator
from raising import raises

transformers = pytest.importorskip("transformers")

LETTERS = "abcdefghijklmnopqrstuvwxyz."
SCALING = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.4, 0.3]}


def write_clip(folder: Path, seed: int = 0) -> Path:
    """Write a tiny CLIP as ``save_pretrained`` does, with a tokenizer of single letters and room for 40 tokens."""
    vocabulary = ["<|startoftext|>", "<|endoftext|>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    layers = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    text = layers | {"vocab_size": len(vocabulary), "max_position_embeddings": 40, "bos_token_id": 0, "eos_token_id": 1}
    vision = layers | {"image_size": 16, "patch_size": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=6)
        transformers.CLIPModel(config).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    (folder / "preprocessor_config.json").write_text(json.dumps(SCALING))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return transformers.CLIPModel.from_pretrained(folder).eval()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, (5, *shape), dtype=torch.uint8, generator=generator(0, "images"))


def one_client(data: Dataset) -> Federation:
    everything = torch.arange(len(data))
    return Federation(data=data, clients=(Client(name="all", train=everything, test=everything),))


def text_vector(model: Any, folder: Path, text: str) -> Tensor:
    coded = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        pooled = model.text_model(input_ids=coded["input_ids"]).pooler_output
        vector: Tensor = model.text_projection(pooled)[0]
    return vector


def test_images_are_scaled_as_the_model_says_and_not_normalised(folder: Path, model: Any) -> None:
    data = from_arrays(images(3, 16, 16), [0, 1, 0, 1, 0], classes=["cat", "owl"])
    found = make_encoder("clip", model=str(folder)).encode(one_client(data))
    mean, std = (torch.tensor(SCALING[key]).view(1, 3, 1, 1) for key in ("image_mean", "image_std"))
    with torch.no_grad():
        pooled = model.vision_model(pixel_values=(data.inputs / 255 - mean) / std).pooler_output
        expected = model.visual_projection(pooled)
    assert found.examples.shape == (5, 6)
    torch.testing.assert_close(found.examples, expected)
    assert not found.examples.requires_grad


def test_classes_are_prompts_through_the_text_tower(folder: Path, model: Any) -> None:
    data = from_arrays(images(3, 16, 16), [0, 1, 0, 1, 0], classes=["guinea_pig", "owl"])
    found = Clip(model=str(folder)).encode(one_client(data))
    torch.testing.assert_close(found.classes[0], text_vector(model, folder, "a photo of a guinea pig."))
    torch.testing.assert_close(found.classes[1], text_vector(model, folder, "a photo of an owl."))


def test_texts_and_their_next_characters_go_through_the_text_tower(folder: Path, model: Any) -> None:
    data = from_texts(["abcab"], context=3)
    found = Clip(model=str(folder)).encode(one_client(data))
    torch.testing.assert_close(found.examples[1], text_vector(model, folder, "The next character of bca"))
    torch.testing.assert_close(found.classes[2], text_vector(model, folder, "Character c"))


def test_a_text_longer_than_the_model_reads_is_cut(folder: Path) -> None:
    """Of 40 tokens two mark start and end and 18 are the letters of "The next character of": 20 are left."""
    vocabulary = ("", *LETTERS)
    tokens = torch.ones(2, 30, dtype=torch.int64)
    tokens[1, 19:] = 2
    both = Dataset(name="long", inputs=tokens, labels=torch.zeros(2).long(), classes=("a", "b"), vocabulary=vocabulary)
    found = Clip(model=str(folder)).encode(one_client(both)).examples
    assert not torch.allclose(found[0], found[1])
    tokens[1, :20], tokens[1, 20:] = 1, 2
    found = Clip(model=str(folder)).encode(one_client(both)).examples
    torch.testing.assert_close(found[0], found[1])


def test_small_grey_and_oblong_images_are_fitted(folder: Path) -> None:
    grey = images(1, 8, 12)
    found = Clip(model=str(folder)).encode(one_client(from_arrays(grey, [0, 1, 0, 1, 0]))).examples
    colour = one_client(from_arrays(grey.repeat(1, 3, 1, 1), [0, 1, 0, 1, 0]))
    torch.testing.assert_close(found, Clip(model=str(folder)).encode(colour).examples)
    two = one_client(from_arrays(images(2, 16, 16), [0, 1, 0, 1, 0]))
    with raises(UsageError, "kind-mismatch", got=2, what="images"):
        Clip(model=str(folder)).encode(two)


def test_the_middle_of_an_oblong_picture_is_kept() -> None:
    picture = torch.rand(2, 3, 8, 14, generator=generator(0))
    assert torch.equal(fit_square(picture, 8), picture[:, :, :, 3:11])
    assert torch.equal(fit_square(picture.mT, 8), picture.mT[:, :, 3:11])


def test_pictures_are_resized_as_pillow_does() -> None:
    """Pillow rounds to bytes after each axis, so a byte and a half of difference is allowed.

    It also clips after each axis, which bright noise would show.
    """
    pixels = torch.randint(64, 192, (3, 20, 20), dtype=torch.uint8, generator=generator(1))
    picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    for size in (12, 32):
        expected = torch.tensor(np.array(picture.resize((size, size), Image.Resampling.BICUBIC)))
        found = fit_square(pixels[None] / 255, size)[0].permute(1, 2, 0) * 255
        assert float((found - expected).abs().max()) < 1.5


def test_without_a_processor_s_file_the_scaling_is_clip_s(folder: Path, tmp_path: Path) -> None:
    assert read_scaling(str(tmp_path)) == (MEAN, STD)
    assert read_scaling(str(folder)) == tuple(tuple(SCALING[key]) for key in ("image_mean", "image_std"))


def test_the_name_tells_weights_apart_and_the_cache_knows_it(folder: Path, tmp_path: Path) -> None:
    federation = one_client(from_arrays(images(3, 16, 16), [0, 1, 0, 1, 0]))
    first = Clip(model=str(folder)).encode(federation)
    other = Clip(model=str(write_clip(tmp_path / "tiny", seed=1))).encode(federation)
    assert first.encoder.startswith("clip tiny (")
    assert other.encoder != first.encoder
    assert not torch.allclose(first.examples, other.examples)
    assert Clip(model=f"{folder}/").encode(federation).encoder == first.encoder
    assert len(list((tmp_path / "cache" / "embeddings").iterdir())) == 2


def test_normalize_is_a_switch(folder: Path) -> None:
    data = from_arrays(images(3, 16, 16), [0, 1, 0, 1, 0])
    plain, unit = (Clip(model=str(folder), normalize=on).encode(one_client(data)) for on in (False, True))
    torch.testing.assert_close(unit.examples, F.normalize(plain.examples, dim=1))
    torch.testing.assert_close(unit.classes, F.normalize(plain.classes, dim=1))


def test_a_client_s_degradation_is_encoded(folder: Path) -> None:
    federation = one_client(from_arrays(images(3, 16, 16), [0, 1, 0, 1, 0]))
    dark = federation.with_transforms([lambda pictures, generator: 0 * pictures])
    black = replace(federation, data=replace(federation.data, inputs=torch.zeros_like(federation.data.inputs)))
    encoder = Clip(model=str(folder))
    torch.testing.assert_close(encoder.encode(dark).examples, encoder.encode(black).examples)


WAYS = "Two ways to have one"


def test_a_model_that_cannot_be_had_names_both_ways(tmp_path: Path, folder: Path) -> None:
    federation = one_client(from_arrays(images(3, 16, 16), [0, 1, 0, 1, 0]))
    with raises(UsageError, "pretrained-unusable", got=str(tmp_path)) as caught:
        Clip(model=str(tmp_path)).encode(federation)
    assert WAYS in str(caught.value)
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)
    config.save_pretrained(tmp_path / "bert")
    with raises(UsageError, "pretrained-unusable", got=str(tmp_path / "bert")) as caught:
        Clip(model=str(tmp_path / "bert")).encode(federation)
    assert "type 'bert'" in str(caught.value)
    bare = write_clip(tmp_path / "bare")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (bare / name).unlink()
    with raises(UsageError, "pretrained-unusable", got=str(bare)) as caught:
        Clip(model=str(bare)).encode(federation)
    assert "tokenizer" in str(caught.value)
    assert WAYS in str(caught.value)


def test_without_transformers_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with raises(UsageError, "package-missing", package="transformers") as caught:
        Clip().encode(one_client(from_arrays(images(3, 16, 16), [0, 1, 0, 1, 0])))
    assert "fedatlas[hub]" in str(caught.value)
    assert WAYS in str(caught.value)
