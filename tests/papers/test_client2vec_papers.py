"""What Client2Vec's scripts are made of: encoded files, qualities of an atlas, variants."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import fedatlas
from fedatlas.atlas import Atlas, Embeddings, label_histogram
from fedatlas.config import Config
from fedatlas.data import Federation
from papers import report
from papers.client2vec import effect, figure_9, published, shakespeare, table_5, table_11
from papers.client2vec.indexing import atlas_file, index_spec, limited, read_embeddings, write_embeddings
from papers.client2vec.quality import quality, sample_quality
from papers.client2vec.settings import SETTINGS, domains_of, sections
from papers.client2vec.variants import measure_all, training, with_index, without_labels, without_scale
from papers.options import Options

EXTRA = {"encoder": "conse", "embeddings": "", "index_epochs": 100, "length": "short", "model": "resnet18"}


@pytest.fixture(scope="module")
def federation() -> Federation:
    return fedatlas.federate(fedatlas.load_dataset("digits"), fedatlas.data.ByDomain(clients_per_domain=2))


def test_settings_are_configs() -> None:
    options = Options(extra=EXTRA)
    for name in SETTINGS:
        config = Config.load(None, (), **sections(name, options))
        assert config.plan().rounds == 100
        assert config.work().epochs == 5
        assert config.seeds().partition == 0
    assert sections("cifar10", replace(options, quick=True))["data"]["source"] == "digits"


def test_a_limited_federation_keeps_some_of_each_clients_examples(federation: Federation) -> None:
    small = limited(federation, 7)
    assert [len(client.train) for client in small] == [7] * len(federation)
    for before, after in zip(federation, small, strict=True):
        assert set(after.train.tolist()) <= set(before.train.tolist())
        assert torch.equal(after.test, before.test)
    assert torch.equal(small.clients[0].train, limited(federation, 7).clients[0].train)


def test_embeddings_of_some_examples_travel_in_half_precision(tmp_path: Path) -> None:
    rows = torch.tensor([1, 3])
    examples = torch.zeros(5, 2)
    examples[rows] = torch.tensor([[1.5, -2.0], [0.25, 4.0]])
    file = tmp_path / "some.safetensors"
    write_embeddings(file, Embeddings(encoder="e", examples=examples, classes=torch.eye(2)), rows)
    found = read_embeddings(file, 5)
    assert found.encoder == "e"
    assert torch.equal(found.examples, examples)


def test_quality_finds_domains_and_labels(federation: Federation) -> None:
    """One direction for each domain: the groups are the domains, cosine 1 inside and 0 between."""
    known = sorted({str(client.domain) for client in federation})
    rows = torch.eye(len(known))[[known.index(str(client.domain)) for client in federation]]
    plain = label_histogram(federation)
    atlas = replace(plain, halves={"feature": rows, "label": plain.halves["label"]})
    numbers = quality(atlas, federation)
    assert numbers["feature_ari"] == 1
    assert (numbers["feature_same"], numbers["feature_other"]) == (1, 0)
    assert numbers["label_label_rank"] == pytest.approx(1)
    assert numbers["label_neighbours"] == 1
    assert numbers["feature_neighbours"] < 1


def test_label_information_of_samples_is_that_of_held_out_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    telling = torch.eye(4)[labels.roll(0)] + 0.1 * torch.randn(400, 4, generator=generator)
    silent = torch.randn(400, 4, generator=generator)
    # Neighbours share a label, so that both halves of the examples have all of them.
    order = torch.argsort(labels, stable=True)
    numbers = sample_quality(silent[order], telling[order], labels[order])
    assert numbers["d_label"] == 1
    assert numbers["u_label"] < 0.4
    assert numbers["chance"] == 0.25


def test_label_free_vectors_do_not_follow_the_labels() -> None:
    options = Options(quick=True, extra=EXTRA)
    spec = index_spec("cifar10", "global", options)
    federation = Config.load(None, (), **sections("cifar10", options)).federation()
    counts = torch.stack([federation.label_counts(i) for i in range(len(federation))])
    shares = counts / counts.sum(1, keepdim=True)
    other = torch.randn(len(federation), 6, generator=torch.Generator().manual_seed(1))
    rows = torch.cat([shares @ torch.randn(10, 6, generator=torch.Generator().manual_seed(0)), other], 1)
    atlas = replace(label_histogram(federation), halves={"feature": rows})
    left = without_labels(atlas, spec, options).halves["feature"]
    # The first six columns were functions of the labels alone: only their mean is left.
    assert torch.allclose(left[:, :6], rows[:, :6].mean(0).expand_as(left[:, :6]), atol=1e-4)
    assert float(left[:, 6:].std()) > 0.3


def test_images_without_scale_are_read_as_bytes(federation: Federation) -> None:
    data = federation.data
    mean, std = torch.tensor(data.mean), torch.tensor(data.std)
    changed = without_scale(federation).data
    pixels = torch.full((len(data.mean),), 51.0)
    read = (pixels / 255 - torch.tensor(changed.mean)) / torch.tensor(changed.std)
    assert torch.allclose(read, (pixels - mean) / std, rtol=1e-4)


def test_variants_train_with_the_atlas_they_name(tmp_path: Path) -> None:
    options = Options(quick=True, rounds=1, out=tmp_path, workers=1, extra=EXTRA)
    changes = {"model": {"name": "mlp", "hidden": [8]}}
    plain = training("original", options, changes=changes)
    weak = {"lambda_o": 0.1, "lambda_d": 0.1}
    both = with_index("all", options, strategy="global", cases="i+ii+iii", changes=changes, uses=weak, label_free=True)
    results = measure_all([plain, both], options)
    assert set(results["original"][0]) == set(results["all"][0])
    atlas = Atlas.load(atlas_file(both.settings["index"], options))
    assert atlas.provenance["epochs"] == 3
    assert both.settings["uses"] == weak
    assert with_index("paper's", options, strategy="global", cases="iii").settings["uses"]["lambda_o"] == 5


def test_the_parts_of_the_effect_name_each_variant_once() -> None:
    options = Options(extra={**EXTRA, "bases": "FedAvg,FedAvgM", "part": "main"})
    assert len(effect.main_part(options)) == 18
    for part in (effect.main_part, effect.search_part, effect.pacs_part):
        names = [variant.name for variant in part(options)]
        assert len(set(names)) == len(names)
    keys = {variant.name: variant.key for variant in effect.search_part(options)}
    assert keys["clean: i+ii+iii"] == {v.name: v.key for v in effect.main_part(options)}["FedAvg, GLOBAL i+ii+iii"]


TABLES = [f"table_{number}" for number in range(1, 12)]


@pytest.mark.parametrize("script", [*TABLES, "figure_4", "figure_5", "effect"])
def test_every_table_is_there_before_it_is_trained(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is trained (no variant has an empty name), so all our cells are empty and the paper's are shown."""
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--only", "^$", "--out", str(tmp_path)])
    importlib.import_module(f"papers.client2vec.{script}").main()
    printed = capsys.readouterr().out
    assert "| – (" in printed
    assert "With `--quick` all images are the embedded digits" in printed
    assert "encoder conse" not in printed
    assert list(tmp_path.glob("*.md"))
    assert not (tmp_path / "runs").exists()


def test_table_11_shows_what_the_index_took() -> None:
    assert table_11.timed({"best": 0.5, "seconds": 20.0}, 1.5) == {
        "best": 0.5,
        "seconds": 20.0,
        "index, s": 1.5,
        "training, s": 20.0,
        "both, s": 21.5,
    }
    assert table_11.timed({"broken": "nan"}, 1.5) == {"broken": "nan"}
    assert published.TABLE_11.keys() == table_11.variants(Options(extra=EXTRA)).keys()


def test_a_base_that_a_table_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for bases, message in (("FedIIR", "the table has FedAvg, FedAvgM, MOON."), ("Fedavg", "Did you mean 'FedAvg'?")):
        monkeypatch.setattr(sys, "argv", ["table_5", "--bases", bases, "--only", "^$"])
        with pytest.raises(SystemExit, match="2"):
            table_5.main()
        assert message in capsys.readouterr().err


def test_pictures_of_atlases_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["figure_9", "--quick", "--settings", "pacs", "--out", str(tmp_path)])
    figure_9.main()
    assert len(list(tmp_path.glob("*.png"))) == 2
    assert "| GLOBAL |" in (tmp_path / "figure-9-pacs.md").read_text()


def test_speeches_are_those_of_roles_that_speak_twice() -> None:
    text = """THE TRAGEDY\n\nACT I.\n\nSCENE I. A hall.\n\n[Enter FIRST LORD.]\n\nFIRST LORD.
Who's there?\nNay, answer me.\n\nFran.\nLong live the King! [Bows.]\n\nFirst Lord.\nHe.\n
End of the Project Gutenberg text\n\nSMALL PRINT.\nNo speech.\n"""
    assert shakespeare.speeches(text) == [("FIRST LORD", "Who's there? Nay, answer me."), ("FIRST LORD", "He.")]
    without = "ACT I.\n\nEGEUS\nHappy be Theseus!\n\nTHESEUS\n  Go,\nStir up\n\nEGEUS\nI come.\n\nTHESEUS\nThanks.\n"
    assert [role for role, _ in shakespeare.speeches(without)] == ["EGEUS", "THESEUS"] * 2


def test_measured_tables_go_between_their_marks() -> None:
    page = "Text.\n<!-- begin one -->\nold\n<!-- end one -->\nMore.\n<!-- begin two -->\nkept\n<!-- end two -->\n"
    tables = {"one": "### Table\n\nSetting.\n\n| a |\n|---|\n| 1 |\n", "three": "| b |\n"}
    expected = page.replace("old", "| a |\n|---|\n| 1 |")
    assert report.filled(page, tables) == expected
    assert report.filled(expected, tables) == expected


def test_domainnet_and_pretrained_weights_are_used_where_they_are(tmp_path: Path) -> None:
    """Two domains of two classes of small pictures in the data folder; without them, PACS."""
    options = Options(data_folder=str(tmp_path), extra={**EXTRA, "pretrained": "some/weights"})
    assert domains_of(options).data == "pacs"
    for place, (domain, kind) in enumerate((d, k) for d in ("real", "sketch") for k in ("bird", "cat")):
        folder = tmp_path / "domainnet" / domain / kind
        folder.mkdir(parents=True)
        for number in range(30):
            Image.new("RGB", (8, 8), (number, 60 * place, 0)).save(folder / f"{number}.png")
    assert domains_of(options).data == "domainnet"
    assert domains_of(replace(options, quick=True)).data == "pacs"
    made = sections("domainnet", options)
    assert made["model"] == {"name": "mobilenet_v2", "pretrained": "some/weights"}
    assert sections("cifar10", options)["model"] == SETTINGS["cifar10"]["model"]
    config = Config.load(None, (), **{**made, "data": {**made["data"], "folder": str(tmp_path)}})
    found = config.federation()
    assert (len(found), found.domains, found.data.inputs.shape[2:]) == (20, ("real", "sketch"), (64, 64))
    sizes = [one.settings["data"].get("size") for one in table_11.variants(options).values()]
    assert sizes[-2:] == [64, 64]
