from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedatlas.config import Config
from fedatlas.data import from_arrays
from fedatlas.errors import DataError, UsageError
from raising import raises


def save(path: Path, count: int = 40, num_test: int = 0, **beside: object) -> str:
    """Write a file of small images of two classes, the last of them a test part, and return its path."""
    x = np.random.default_rng(0).integers(0, 256, (count, 8, 8)).astype(np.uint8)
    y = np.arange(count) % 2
    if num_test:
        rest = count - num_test
        np.savez(path, x_train=x[:rest], y_train=y[:rest], x_test=x[rest:], y_test=y[rest:], **beside)  # type: ignore[arg-type]
    else:
        np.savez(path, x=x, y=y, **beside)  # type: ignore[arg-type]
    return str(path)


def test_a_given_test_part_is_not_trained_on_unless_that_is_said(tmp_path: Path) -> None:
    source = save(tmp_path / "mine.npz", 120, num_test=40)
    federation = Config.load(data={"source": source}).federation()
    assert all(client.test.tolist() == list(range(80, 120)) for client in federation)
    assert max(int(client.train.max()) for client in federation) < 80
    assert "test on all" in federation.partition
    mixed = Config.load(data={"source": source, "test": "client"}).federation()
    assert max(int(client.train.max()) for client in mixed) >= 80
    assert "of each client's examples for test" in mixed.partition


def test_folds_are_cut_from_each_clients_own_examples(tmp_path: Path) -> None:
    source = save(tmp_path / "mine.npz", 120, num_test=40)
    federation = Config.load(data={"source": source, "folds": 4}).federation()
    parts = [part for client in federation for part in (client.train, client.test)]
    assert sorted(int(i) for part in parts for i in part) == list(range(120))


def test_folds_of_a_shared_test_part_and_a_fold_of_none_are_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "mine.npz", 120, num_test=40)
    with raises(UsageError, "partition-unfit", setting="test"):
        Config.load(data={"source": source, "test": "all", "folds": 4}).federation()
    with raises(UsageError, "settings-conflict", got=1):
        Config.load(data={"source": source, "fold": 1}).federation()


def test_named_sets_and_files_without_a_test_part_are_split_by_client(tmp_path: Path) -> None:
    save(tmp_path / "mnist.npz", 120, num_test=40)
    named = Config.load(data={"source": "mnist", "folder": str(tmp_path)}).federation()
    assert "of each client's examples for test" in named.partition
    plain = Config.load(data={"source": save(tmp_path / "mine.npz", 120)}).federation()
    assert "of each client's examples for test" in plain.partition


def test_a_file_of_a_test_part_alone_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_test=np.zeros((80, 8, 8), np.uint8), y_test=np.arange(80) % 2)
    with raises(DataError, "split-unfit", missing="training"):
        Config.load(data={"source": str(tmp_path / "mine.npz")}).federation()


def test_a_config_names_the_columns_of_a_table_and_how_it_is_cut(tmp_path: Path) -> None:
    rows = [f"{'ab' * 20},{who},{'good' if i % 2 else 'bad'},{who}land" for who in ("ann", "bob") for i in range(4)]
    source = tmp_path / "talks.csv"
    source.write_text("\n".join(["words,who,mood,place", *rows]) + "\n")
    named = ["data.text=words", "data.client=who", f"data.source={source}"]
    settings = [*named, "data.label=mood", "data.domain=place", "data.context=10"]
    config = Config.load(None, settings)
    federation = config.federation()
    assert [client.name for client in federation] == ["ann", "bob"]
    assert (federation.data.classes, federation.domains) == (("bad", "good"), ("annland", "bobland"))
    assert federation.data.inputs.shape == (8, 10)
    assert Config.from_text(config.to_toml()).values == config.values
    cut = Config.load(None, [*named, "data.context=9", "data.stride=10"]).dataset()
    assert (cut.classes, len(cut)) == ((" ", "a", "b"), 32)
    source.write_text(source.read_text().replace("mood", "label"))
    assert Config.load(None, named).dataset().classes == ("bad", "good")
    unlabelled = Config.load(None, [*named, "data.label=''"]).dataset()
    assert unlabelled.classes == (" ", "a", "b")
    assert Config.load(None, [*named, "data.client=''"]).dataset().owner is None


@pytest.mark.parametrize("source", ["digits", "mine.npz", "photos"])
def test_settings_of_a_table_are_refused_with_other_sources(source: str) -> None:
    with raises(UsageError, "option-unfit", settings=("label", "context"), source=source):
        Config.load(None, ["data.label=mood", "data.context=8"], data={"source": source}).dataset()


def test_the_model_suits_the_data_where_none_is_named(tmp_path: Path) -> None:
    images = Config.load(data={"source": save(tmp_path / "images.npz")})
    assert images.model(images.dataset()) == ("cnn", {})
    assert images.run_settings().model == "cnn"
    np.savez(tmp_path / "features.npz", x=np.ones((8, 3), np.float32), y=np.arange(8) % 2)
    features = Config.load(None, ["model.hidden=[4]"], data={"source": str(tmp_path / "features.npz")})
    assert features.model(features.dataset()) == ("mlp", {"hidden": [4]})
    assert features.run_settings(features.dataset()).model == "mlp"
    assert Config.from_text(features.to_toml()).values == features.values
    np.savez(tmp_path / "tokens.npz", x=np.ones((8, 3), np.int64), y=np.arange(8) % 2, vocabulary=["a", "b"])
    tokens = Config.load(data={"source": str(tmp_path / "tokens.npz")})
    assert tokens.model(tokens.dataset())[0] == "char_lstm"
    assert tokens.dataset().vocabulary == ("a", "b")
    named = Config.load(data={"source": "digits"}, model={"name": "resnet18"})
    assert named.model(features.dataset())[0] == "resnet18"


def test_options_of_the_usual_model_carry_over_to_its_name() -> None:
    config = Config.load(None, ["model.width=4", "model.name=cnn"])
    assert config.values["model"] == {"width": 4, "name": "cnn"}
    assert Config.load(None, ["model.width=4", "model.name=mlp"]).values["model"] == {"name": "mlp"}


def test_whole_numbers_are_features_and_tokens_without_a_vocabulary_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "counts.npz", x=np.ones((8, 3), np.int64), y=np.arange(8) % 2)
    config = Config.load(data={"source": str(tmp_path / "counts.npz")})
    assert config.run_settings(config.dataset()).model == "mlp"
    tokens = from_arrays(np.ones((8, 3), np.int64), np.arange(8) % 2, kind="tokens")
    with raises(DataError, "vocabulary-missing"):
        config.run_settings(tokens)


def test_without_a_partition_owners_are_the_clients_else_domains(tmp_path: Path) -> None:
    domain = np.array(["north", "south"])[np.arange(40) // 30]
    source = save(tmp_path / "mine.npz", domain=domain)
    federation = Config.load(data={"source": source}).federation()
    assert [(client.name, len(client.train) + len(client.test)) for client in federation] == [
        ("north-0", 30),
        ("south-0", 10),
    ]
    source = save(
        tmp_path / "owned.npz", domain=domain, owner=np.array(["ann", "bob", "cy", "di"])[np.arange(40) // 10]
    )
    assert [client.name for client in Config.load(data={"source": source}).federation()] == ["ann", "bob", "cy", "di"]
    assert "DomainImbalance(factor=5)" in Config.load(data={"source": "digits"}).federation().partition
    with raises(DataError, "too-few-examples", got=0) as caught:
        Config.load(None, ["data.partition=domain-imbalance"], data={"source": source}).federation()
    assert "data.partition=by-domain" in str(caught.value)


def test_a_config_resizes_the_pictures_of_a_folder(tmp_path: Path) -> None:
    for side in (6, 8):
        folder = tmp_path / "photos" / f"class {side}"
        folder.mkdir(parents=True)
        Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(folder / "1.png")
    settings = [f"data.source={tmp_path / 'photos'}"]
    with raises(DataError, "pictures-differ"):
        Config.load(None, settings).dataset()
    assert Config.load(None, [*settings, "data.size=7"]).dataset().inputs.shape == (2, 3, 7, 7)
    assert Config.load(None, [*settings, "data.size=[6, 9]"]).dataset().inputs.shape == (2, 3, 6, 9)
    for source in ("digits", "talks.csv", "mine.npz"):
        with raises(UsageError, "option-unfit", settings=("size",), source=source):
            Config.load(None, ["data.size=7"], data={"source": source}).dataset()
