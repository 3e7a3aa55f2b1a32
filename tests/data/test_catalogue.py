import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedatlas.config import Config
from fedatlas.data.loading import load as loading
from fedatlas.data.loading.catalogue import DATASETS
from fedatlas.data.loading.load import load_dataset
from fedatlas.errors import DataError, UsageError
from raising import raises


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv("FEDATLAS_DATA", raising=False)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def save_split(path, x: np.ndarray, num_test: int) -> None:
    y = np.arange(len(x)) % 10
    np.savez(path, x_train=x[:-num_test], y_train=y[:-num_test], x_test=x[-num_test:], y_test=y[-num_test:])


def test_every_name_has_a_line_that_describes_it():
    assert {"cifar10", "digits", "digit_five", "mnist", "pacs", "shakespeare"} <= set(DATASETS)
    for name, entry in DATASETS.items():
        assert entry.description, name
        assert "\n" not in entry.description


def test_digits_need_no_folder():
    assert len(load_dataset("digits", seed=1)) == 8000


def test_a_named_set_comes_from_the_folder_with_its_classes_and_scaling(tmp_path, monkeypatch):
    save_split(tmp_path / "cifar10.npz", noise(20, 32, 32, 3), 5)
    data = load_dataset("cifar10", data_folder=tmp_path)
    assert data.name == "cifar10"
    assert data.classes[0] == "airplane"
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert data.is_test.sum() == 5
    monkeypatch.setenv("FEDATLAS_DATA", str(tmp_path))
    assert torch.equal(load_dataset("CIFAR10").inputs, data.inputs)


def test_a_grey_set_is_scaled_by_one_number(tmp_path):
    save_split(tmp_path / "mnist.npz", noise(20, 28, 28), 5)
    assert load_dataset("mnist", data_folder=tmp_path).mean == (0.5,)


def test_classes_in_the_file_win(tmp_path):
    np.savez(tmp_path / "pacs64.npz", photo_x=noise(2, 8, 8, 3), photo_y=[0, 1], classes=["dog", "horse"])
    data = load_dataset("pacs", data_folder=tmp_path)
    assert data.classes == ("dog", "horse")
    assert data.domains == ("photo",)
    assert data.mean == ()


def test_cifar10_is_read_from_three_webp_files_training_first(tmp_path):
    x = noise(12, 32, 32, 3)
    for i in range(3):
        blobs = []
        for image in x[4 * i : 4 * i + 4]:
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "WEBP", lossless=True, exact=True)
            blobs.append(buffer.getvalue())
        offset = np.cumsum([0, *map(len, blobs)])
        labels = np.arange(4 * i, 4 * i + 4) % 10
        np.savez(
            tmp_path / f"cifar10_webp_{i}.npz", webp=np.frombuffer(b"".join(blobs), np.uint8), offset=offset, y=labels
        )
    data = load_dataset("cifar10", data_folder=tmp_path)
    assert torch.equal(data.inputs, torch.from_numpy(x).permute(0, 3, 1, 2))
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.is_test.tolist() == [False] * 10 + [True] * 2


def write_idx(folder, count: int, start: str, packed: bool) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = noise(count, 28, 28), np.arange(count).astype(np.uint8)
    parts = {
        f"{start}-images-idx3-ubyte": b"\0\0\x08\x03" + np.array(images.shape, ">u4").tobytes() + images.tobytes(),
        f"{start}-labels-idx1-ubyte": b"\0\0\x08\x01" + np.array([count], ">u4").tobytes() + labels.tobytes(),
    }
    for name, raw in parts.items():
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(raw) if packed else raw)
    return images


@pytest.mark.parametrize(("name", "inner"), [("mnist", ""), ("mnist", "MNIST/raw"), ("fashion_mnist", "fashion_mnist")])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read(tmp_path, name, inner, packed):
    train = write_idx(tmp_path / inner, 6, "train", packed)
    write_idx(tmp_path / inner, 3, "t10k", packed)
    data = load_dataset(name, data_folder=tmp_path)
    assert torch.equal(data.inputs[:6, 0], torch.from_numpy(train))
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert data.is_test.sum() == 3
    assert len(data.classes) == 10


def test_a_cut_off_idx_file_is_refused(tmp_path):
    write_idx(tmp_path, 6, "train", False)
    write_idx(tmp_path, 3, "t10k", False)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with raises(DataError, "file-unreadable", path=str(file)):
        load_dataset("mnist", data_folder=tmp_path)


def write_cifar10_batches(folder, protocol: int) -> np.ndarray:
    folder.mkdir()
    rows = noise(12, 3072)
    for i in range(5):
        batch = {"data": rows[2 * i : 2 * i + 2], "labels": [2 * i, 2 * i + 1]}
        (folder / f"data_batch_{i + 1}").write_bytes(pickle.dumps(batch, protocol))
    (folder / "test_batch").write_bytes(pickle.dumps({"data": rows[10:], "labels": [3, 4]}, protocol))
    return rows


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar10_python_batches_are_read(tmp_path, protocol):
    rows = write_cifar10_batches(tmp_path / "cifar-10-batches-py", protocol)
    data = load_dataset("cifar10", data_folder=tmp_path)
    assert torch.equal(data.inputs, torch.from_numpy(rows).reshape(-1, 3, 32, 32))
    assert data.labels.tolist() == [*range(10), 3, 4]
    assert data.is_test.tolist() == [False] * 10 + [True] * 2


def test_cifar100_python_files_are_read_with_their_class_names(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for part, labels in (("train", [0, 1, 1]), ("test", [1])):
        batch = {"data": noise(len(labels), 3072), "fine_labels": labels, "coarse_labels": labels}
        (folder / part).write_bytes(pickle.dumps(batch))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple", "bear"]}))
    data = load_dataset("cifar100", data_folder=tmp_path)
    assert data.classes == ("apple", "bear")
    assert data.labels.tolist() == [0, 1, 1, 1]


class Evil:
    def __reduce__(self):
        return (eval, ("__import__('pathlib').Path('ran').touch()",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar10_batches(tmp_path / "cifar-10-batches-py", 4)
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    batch.write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    with raises(DataError, "file-unreadable", path=str(batch)) as caught:
        load_dataset("cifar10", data_folder=tmp_path)
    assert "builtins.eval" in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def digit_five_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "GENERATED_TRAIN", 20)
    monkeypatch.setattr(loading, "GENERATED_TEST", 10)
    save_split(tmp_path / "mnist.npz", np.full((20, 28, 28), 90, np.uint8), 4)
    save_split(tmp_path / "usps.npz", noise(12, 16, 16), 2)
    save_split(tmp_path / "mnistm.npz", noise(14, 32, 32, 3), 3)
    save_split(tmp_path / "svhn.npz", noise(16, 32, 32, 3), 5)
    return tmp_path


def test_digit_five_puts_the_sets_to_one_form_as_domains(digit_five_folder):
    data = load_dataset("digit-five", data_folder=digit_five_folder)
    assert data.domains == ("mnist", "usps", "generated", "mnistm", "svhn")
    assert data.domain.bincount().tolist() == [20, 12, 30, 14, 16]
    assert [int(data.is_test[data.domain == i].sum()) for i in range(5)] == [4, 2, 10, 3, 5]
    assert data.inputs.shape == (92, 3, 32, 32)
    assert (data.inputs[:20] == 90).all()
    assert data.mean == (0.5, 0.5, 0.5)


def test_some_domains_of_digit_five_need_their_own_files_only(digit_five_folder):
    wanted = ["svhn", "mnist", "generated"]
    chosen = load_dataset("digit_five", data_folder=digit_five_folder, seed=3).of_domains(wanted)
    for other in ("mnistm", "usps"):
        (digit_five_folder / f"{other}.npz").unlink()
    data = Config.load(seed=3, data={"source": "digit_five", "domains": wanted, "folder": digit_five_folder}).dataset()
    assert (data.name, data.domains, data.classes) == ("digit_five", ("svhn", "mnist", "generated"), chosen.classes)
    for part in ("inputs", "labels", "domain", "is_test"):
        assert torch.equal(getattr(data, part), getattr(chosen, part)), part


def test_an_unknown_domain_of_digit_five_is_named_before_anything_is_loaded(tmp_path):
    with raises(UsageError, "unknown-name", kind="domain", got="mnist-m"):
        load_dataset("digit_five", data_folder=tmp_path, domains=["usps", "mnist-m"])


def test_domains_of_any_set_are_chosen_when_it_is_loaded(tmp_path):
    np.savez(tmp_path / "pacs64.npz", photo_x=noise(2, 8, 8, 3), photo_y=[0, 1], art_x=noise(1, 8, 8, 3), art_y=[0])
    assert load_dataset("pacs", data_folder=tmp_path, domains=["art"]).domains == ("art",)
    save_split(tmp_path / "mnist.npz", noise(20, 28, 28), 5)
    with raises(UsageError, "domains-missing", got=["art"]):
        load_dataset("mnist", data_folder=tmp_path, domains=["art"])


def test_shakespeare_comes_from_a_table_of_lines_and_keeps_a_tenth(tmp_path):
    lines = [f"speaker {i},{'to be or not to be ' * 10}" for i in range(40)]
    (tmp_path / "shakespeare.csv").write_text("client,text\n" + "\n".join(lines) + "\n")
    data = load_dataset("shakespeare", data_folder=tmp_path)
    assert len(data.owners) == 4
    assert data.inputs.shape[1] == 80
    assert data.classes == data.vocabulary == (" ", "b", "e", "n", "o", "r", "t")


def test_shakespeare_comes_from_a_table_of_leaf_pairs(tmp_path):
    lines = [f"play_{i},{'x' * 79}{'yz'[i % 2]},{'ab'[i % 2]}" for i in range(20)]
    (tmp_path / "shakespeare.csv").write_text("character_id,x,y\n" + "\n".join(lines) + "\n")
    data = load_dataset("shakespeare", data_folder=tmp_path)
    assert len(data) == 2
    assert set(data.classes) <= {"a", "b"}
    assert data.vocabulary[0] == ""


def test_an_unknown_name_is_answered_with_the_nearest():
    with raises(UsageError, "unknown-name", kind="data set", got="cifar11") as caught:
        load_dataset("cifar11")
    assert "mean 'cifar10'" in str(caught.value)


def test_paths_are_read_by_their_ending(tmp_path):
    np.savez(tmp_path / "mine.npz", x=noise(4, 8, 8), y=[0, 1, 0, 1])
    assert load_dataset(tmp_path / "mine.npz").name == "mine"
    (tmp_path / "lines.csv").write_text(f"client,text\nann,{'a' * 90}\n")
    assert load_dataset(str(tmp_path / "lines.csv")).kind == "tokens"
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    Image.fromarray(noise(8, 8, 3)).save(tmp_path / "pictures" / "cat" / "1.png")
    assert load_dataset(str(tmp_path / "pictures")).kind == "image"
    (tmp_path / "notes.txt").write_text("none")
    with raises(UsageError, "file-ending", path=str(tmp_path / "notes.txt")):
        load_dataset(tmp_path / "notes.txt")


@pytest.mark.parametrize("name", ["photos/", "photos/cats", "photos.zip", Path("photos"), "~/photos"])
def test_a_path_to_nothing_is_not_taken_for_a_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with raises(UsageError, "file-missing", path=str(name)):
        load_dataset(name)


def hub_with(monkeypatch, answer):
    """Let the hub answer as ``answer(repository, config)`` does."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", answer)
    return datasets


def test_without_folder_and_hub_the_error_says_both_ways(tmp_path, monkeypatch):
    def fail(repository, config):
        raise ConnectionError("no route to the hub")

    hub_with(monkeypatch, fail)
    with raises(UsageError, "source-unavailable", source="cifar10") as caught:
        load_dataset("cifar10", data_folder=tmp_path)
    message = str(caught.value)
    for words in (str(tmp_path), "cifar10.npz", "cifar-10-batches-py", "fedatlas[hub]", "uoft-cs/cifar10", "no route"):
        assert words in message
    with raises(UsageError, "source-unavailable", source="cifar10") as caught:
        load_dataset("cifar10")
    assert "FEDATLAS_DATA" in str(caught.value)


def test_a_missing_hub_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with raises(UsageError, "source-unavailable", source="mnist") as caught:
        load_dataset("mnist")
    assert "datasets" in str(caught.value).split("it said")[1]


def picture_set(datasets, pictures, columns, names):
    features = {"image": datasets.Image()} | {column: datasets.Value("string") for column in columns}
    features["label"] = datasets.ClassLabel(names=names)
    values = {"image": pictures, "label": [i % len(names) for i in range(len(pictures))]} | columns
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


def test_a_set_of_the_hub_with_a_split(monkeypatch):
    asked = []

    def answer(repository, config):
        asked.append((repository, config))
        train, test = ([Image.fromarray(p) for p in noise(n, 32, 32, 3)] for n in (6, 3))
        digits = list("0123456789")
        return datasets.DatasetDict(
            train=picture_set(datasets, train, {}, digits), test=picture_set(datasets, test, {}, digits)
        )

    datasets = hub_with(monkeypatch, answer)
    data = load_dataset("svhn")
    assert asked == [("ufldl-stanford/svhn", "cropped_digits")]
    assert torch.equal(data.inputs[:6], torch.from_numpy(noise(6, 32, 32, 3)).permute(0, 3, 1, 2))
    assert data.is_test.tolist() == [False] * 6 + [True] * 3
    assert data.mean == (0.5, 0.5, 0.5)


def test_a_set_of_the_hub_with_domains(monkeypatch):
    def answer(repository, config):
        pictures = [Image.fromarray(p) for p in noise(4, 16, 16, 3)]
        domains = {"domain": ["photo", "photo", "sketch", "sketch"]}
        return datasets.DatasetDict(train=picture_set(datasets, pictures, domains, ["dog", "horse"]))

    datasets = hub_with(monkeypatch, answer)
    data = load_dataset("pacs")
    assert (data.domains, data.classes, data.is_test) == (("photo", "sketch"), ("dog", "horse"), None)
    assert data.domain.tolist() == [0, 0, 1, 1]


def test_a_text_set_of_the_hub(monkeypatch):
    def answer(repository, config):
        rows = {"character_id": [f"c{i // 5}" for i in range(100)], "x": ["ab" * 40] * 100, "y": list("ab" * 50)}
        return datasets.DatasetDict(train=datasets.Dataset.from_dict(rows))

    datasets = hub_with(monkeypatch, answer)
    data = load_dataset("shakespeare")
    assert data.inputs.shape == (10, 80)
    assert len(data.owners) == 2
    assert data.classes == ("a", "b")


def test_a_set_of_the_hub_with_other_columns_is_refused(monkeypatch):
    def answer(repository, config):
        return datasets.DatasetDict(train=datasets.Dataset.from_dict({"picture": [1]}))

    datasets = hub_with(monkeypatch, answer)
    with raises(DataError, "content-unfit"):
        load_dataset("mnist")
