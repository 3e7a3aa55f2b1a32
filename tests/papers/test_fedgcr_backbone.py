"""The backbone of FedGCR's tables: what it learns from, how it is trained, and what it is worth."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedatlas.data import digits_originals, load_dataset
from fedatlas.errors import DataError, UsageError
from papers.fedgcr import ceiling, pretrain_vit, pretraining_images, probing
from papers.fedgcr.pretrain_vit import Pool, Recipe, Trainer, pooled
from papers.fedgcr.pretraining_images import Source
from papers.fedgcr.variants import backbone
from papers.kept_results import read_numbers, unpack
from papers.options import Options
from papers.report import filled
from papers.tables import render
from raising import raises

TINY = {"patch": 8, "width": 16, "depth": 1, "heads": 2}


def shades(count: int = 64, classes: int = 2, flips: bool = True) -> Source:
    """Noise that is brighter for a higher class."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (count,), generator=rng)
    images = torch.randint(0, 40, (count, 3, 32, 32), generator=rng).to(torch.uint8)
    images += (200 // classes * labels)[:, None, None, None].to(torch.uint8)
    return Source(images, labels, images[:8], labels[:8], classes, flips)


def test_the_networks_that_may_ship_are_small_enough() -> None:
    """The one that ships, and the deeper one that the docs propose."""
    pool = Pool(torch.zeros(1, 3, 32, 32), torch.zeros(1), torch.zeros(1, dtype=torch.bool), 375)
    for depth, most in ((6, 6_000_000), (12, pretrain_vit.MOST_BYTES)):
        trainer = Trainer(Recipe(), pool, {**pretrain_vit.SHAPE, "depth": depth})
        assert sum(value.numel() for value in pretrain_vit.halved(trainer.model).values()) * 2 < most


def test_pretraining_learns_repeats_and_keeps_what_it_tested() -> None:
    source = shades()
    pool = pooled([source], torch.device("cpu"))
    recipe = Recipe(batch_size=32, mixed=0.5, lr=0.01)
    losses = []
    for _ in range(2):
        trainer = Trainer(recipe, pool, TINY)
        losses.append(torch.stack([trainer.epoch(20) for _ in range(10)]))
    assert torch.equal(losses[0], losses[1])
    assert losses[0][-1] < losses[0][0]
    state = pretrain_vit.halved(trainer.model)
    assert all(torch.equal(value, state[name].float()) for name, value in trainer.model.state_dict().items())
    assert 0 <= pretrain_vit.accuracy(trainer.model, source.tests, source.expected) <= 1
    assert "| seed | 0 |" in pretrain_vit.card({"seed": 0})


def test_each_source_has_its_own_classes_and_only_some_may_be_flipped() -> None:
    """Two classes and then three: the second source's are 2, 3 and 4, and its images stay as they are."""
    pool = pooled([shades(8), shades(6, classes=3, flips=False)], torch.device("cpu"), limit=4)
    assert pool.num_classes == 5
    assert pool.flips.tolist() == [True] * 4 + [False] * 4
    assert pool.labels[4:].tolist() == (shades(6, classes=3).labels[:4] + 2).tolist()
    one = torch.zeros(200, 3, 8, 8)
    one[:, :, :, 0] = 1  # a bar at the left
    for may in (True, False):
        turned = pretrain_vit.augment(one, torch.Generator().manual_seed(0), torch.full((200,), may))
        right = (turned[:, :, :, 4:].mean((1, 2, 3)) > turned[:, :, :, :4].mean((1, 2, 3))).float().mean()
        assert (0.3 < right < 0.7) if may else right < 0.15


def test_digits_leave_out_the_target_s_domain_and_the_tested_originals() -> None:
    found = pretraining_images.digits(Path("."), count=200)
    usual = load_dataset("digits")
    assert usual.is_test is not None
    held = digits_originals(0, len(usual) // len(usual.domains))[usual.is_test]
    drawn = digits_originals(1, 200)
    left = ~torch.isin(drawn[: 4 * 200], held[held >= 0])  # scene, the fifth domain, is left out whole
    assert len(found.labels) + len(found.expected) == int(left.sum())
    assert found.num_classes == 10
    assert not found.flips


def test_drawings_are_dark_on_white_with_ten_of_a_kind_for_test(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "drawings"
    folder.mkdir(parents=True)
    for name in ("cat", "axe"):
        ink = np.zeros((28, 28))
        ink[:14] = 1.0 if name == "cat" else 0.0
        with gzip.open(folder / f"{name}.ndjson.gz", "wt") as file:
            file.writelines(json.dumps(ink.ravel().tolist()) + "\n" for _ in range(12))
    found = pretraining_images.drawings(tmp_path)
    assert (len(found.labels), len(found.expected), found.num_classes) == (4, 20, 2)
    assert found.labels.tolist() == [0, 0, 1, 1]  # axe, cat
    assert found.images[2, :, 0, 0].tolist() == [0, 0, 0]
    assert found.images[2, :, -1, 0].tolist() == [255, 255, 255]
    (folder / "axe.ndjson.gz").write_bytes(gzip.compress(b"[1, 2]\n"))
    with raises(DataError, "file-unreadable", path=str(folder / "axe.ndjson.gz")):
        pretraining_images.drawings(tmp_path)
    with raises(DataError, "file-missing", path=str(tmp_path / "src/other")):
        pretraining_images.drawings(tmp_path / "src" / "other")


def test_the_command_writes_weights_that_the_tables_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pretrain_vit, "SOURCES", {"cifar10": lambda _: shades(), "digits": lambda _: shades(32, 3)})
    words = [
        "x",
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "vit"),
        "--sources",
        "cifar10,digits",
        "--epochs",
        "1",
    ]
    words += ["--device", "cpu", *(f"--{name}={value}" for name, value in TINY.items())]
    monkeypatch.setattr(sys, "argv", words)
    pretrain_vit.main()
    file = tmp_path / "vit" / "mixed-vit.safetensors"
    assert load_file(file)["head.weight"].shape == (5, 16)
    assert "test accuracy on digits" in (tmp_path / "vit" / "mixed-vit.md").read_text()
    assert "right on cifar10" in capsys.readouterr().out
    options = Options(out=tmp_path / "out", extra={"weights": str(file), "sets": "digits"})
    assert backbone(options) == {"weights": str(file), **TINY}


def test_a_source_without_its_folder_and_a_broken_file_of_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"no weights")
    with raises(DataError, "file-unreadable", path=str(tmp_path / "broken")):
        backbone(Options(extra={"weights": str(tmp_path / "broken")}))
    assert backbone(Options(extra={"weights": "hf:some/vit"})) == {"backbone": "hf:some/vit"}
    assert backbone(Options(extra={"weights": ""})) == {}
    given = pretrain_vit.argparse.Namespace(data=tmp_path, fashion=None, drawings=None)
    with raises(UsageError, "part-missing", part="fashion"):
        pretrain_vit._folder("fashion", given)


def test_a_probe_finds_what_features_tell() -> None:
    """Features that are the class, and features that are noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    telling, noise = labels[:, None] + 0.1 * rng.normal(size=(200, 4)), rng.normal(size=(200, 4))
    assert probing.probe(telling[:100], labels[:100], telling[100:], labels[100:]) == 1.0
    assert probing.probe(noise[:100], labels[:100], noise[100:], labels[100:]) < 0.75


def test_the_ceiling_is_written_by_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--quick", "--out", str(tmp_path)])
    ceiling.main()
    assert "| | handwritten | printed | thin | photo | scene | mean |" in capsys.readouterr().out
    assert (tmp_path / "ceiling-the-embedded-digits.md").exists()


def test_class_tokens_are_those_of_a_pass_without_prompts(tmp_path: Path) -> None:
    """A file of weights and the network made from it give the same token as a pass by hand."""
    pool = pooled([shades(4)], torch.device("cpu"))
    trainer = Trainer(Recipe(), pool, TINY)
    file = tmp_path / "own.safetensors"
    save_file(trainer.model.state_dict(), file, metadata={name: str(value) for name, value in TINY.items()})
    model = probing.build_model(
        "prompted_vit", num_classes=2, input_shape=(3, 32, 32), **backbone(Options(extra={"weights": str(file)}))
    )
    expected = trainer.model.eval()(pool.images.float() / 127.5 - 1)[0].detach().numpy()
    assert isinstance(model, probing.PromptedClassifier)
    np.testing.assert_allclose(probing.class_tokens(model, pool.images), expected, atol=1e-5)


def test_the_ceiling_in_the_docs_is_the_one_that_its_numbers_give(tmp_path: Path) -> None:
    evidence = Path(__file__).parents[2] / "docs" / "evidence"
    unpack(evidence / "fedgcr.json", tmp_path)
    text = (evidence / "fedgcr.md").read_text(encoding="utf-8")
    options = Options(out=tmp_path, extra={"weights": ""})
    shown = {}
    for data, place in (("digit-five", "ceiling-digit-five"), ("pacs", "ceiling-pacs")):
        one = ceiling.ceiling_variant(options, data)
        numbers = [found for seed in (0, 1, 2) if (found := read_numbers(tmp_path, one.key, seed)) is not None]
        domains = [key.removesuffix(" 300") for key in numbers[0] if key.endswith(" 300") and key != "mean 300"]
        shown[place] = render(ceiling.ceiling_table(one, options, domains), {one.name: numbers})
    assert filled(text, shown) == text
