"""Data files made to fill the memory, to hang a reader, to lose rows in silence or to steer a terminal."""

import gzip
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas import from_arrays, load_dataset
from fedatlas.atlas import check
from fedatlas.data import ByDomain, federate
from fedatlas.data.loading import cells, published_files
from fedatlas.data.loading.npz import from_npz, read_npz
from fedatlas.data.loading.published_files import read_cifar10_batches, read_idx_folder
from fedatlas.errors import DataError
from raising import raises

pytestmark = pytest.mark.attack("a data file means harm")


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 10 MB."""
    monkeypatch.setattr("fedatlas.data.memory.physical_memory", lambda: 10**7)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_a_table_larger_than_the_memory_is_not_read(name: str, tmp_path: Path) -> None:
    """A terabyte of zeros takes no room on a disk, nor in an archive."""
    (tmp_path / name).write_text("client,a,label\n")
    os.truncate(tmp_path / name, 2**40)
    with raises(DataError, "out-of-memory", path=str(tmp_path / name)):
        load_dataset(tmp_path / name)


def test_equal_cells_without_end_in_a_small_parquet_file_are_not_unpacked(tmp_path: Path, small_memory: None) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = arrow.array(np.zeros(10**6, np.int8))
    parquet.write_table(arrow.table({"a": zeros, "label": zeros}), tmp_path / "rows.parquet")
    names = arrow.array(["x" * 10**4]).take(arrow.array(np.zeros(2000, np.int32)))
    parquet.write_table(arrow.table({"client": names, "label": zeros[:2000]}), tmp_path / "names.parquet")
    for name in ("rows.parquet", "names.parquet"):
        assert (tmp_path / name).stat().st_size < 20_000
        with raises(DataError, "out-of-memory"):
            load_dataset(tmp_path / name)


def test_small_numbers_that_become_floats_are_counted_as_floats(tmp_path: Path, small_memory: None) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000), np.int8), y=np.zeros(1000, np.int64))
    with raises(DataError, "out-of-memory"):
        from_npz(tmp_path / "a.npz")


def test_a_line_of_jsonl_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "MOST_LINE", 1000)
    (tmp_path / "a.jsonl").write_text(json.dumps({"client": "a", "x": 1, "label": 0}) + "\n" + "[" * 2000)
    with raises(DataError, "wrong-count", what="characters", row=2):
        load_dataset(tmp_path / "a.jsonl")


def test_a_quote_that_is_never_closed_does_not_swallow_the_rows_after_it(tmp_path: Path) -> None:
    rows = [f"h{i % 3},{i},{i % 2}" for i in range(60)]
    rows[40] = 'h1,40,"0'
    (tmp_path / "a.csv").write_text("\n".join(["client,a,label", *rows]))
    with raises(DataError, "file-unreadable", row=41):
        load_dataset(tmp_path / "a.csv")
    (tmp_path / "t.csv").write_text('client,text,label\na,"one,1\nb,two,0\n')
    with raises(DataError, "file-unreadable"):
        load_dataset(tmp_path / "t.csv")


def test_null_bytes_after_the_first_pages_are_found(tmp_path: Path) -> None:
    rows = [f"h{i % 3},{i},{i % 2}" for i in range(20_000)]
    (tmp_path / "a.csv").write_text("\n".join(["client,a,label", *rows, "h\0,1,1"]))
    with raises(DataError, "file-unreadable", what="binary"):
        load_dataset(tmp_path / "a.csv")
    (tmp_path / "t.csv").write_text("client,text,label\n" + "a,word,1\n" * 20_000 + "a,w\0rd,1\n")
    with raises(DataError, "file-unreadable", what="binary"):
        load_dataset(tmp_path / "t.csv")


def test_a_wide_table_is_read_and_one_without_end_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 12_000
    head = ",".join(["client", "label", *(f"measurement {i}" for i in range(count))])
    lines = [f"h{i % 2},{i % 2}," + ",".join(["1.5"] * count) for i in range(2)]
    (tmp_path / "a.csv").write_text("\n".join([head, *lines]))
    assert len(cells.read_cells(tmp_path / "a.csv").columns) == count + 2
    monkeypatch.setattr(cells, "MOST_COLUMNS", 1000)
    with raises(DataError, "wrong-count", what="columns", got=count + 2):
        load_dataset(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\rb", "\ud800", "a\u202eb", "a\0"])
def test_a_name_that_would_steer_a_terminal_is_refused(name: str, tmp_path: Path) -> None:
    rows = [{"client": name if i % 2 else "b", "a": i, "label": i % 2} for i in range(8)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with raises(DataError, "names-unfit", what="owner", got=name):
        load_dataset(tmp_path / "a.jsonl")
    with raises(DataError, "names-unfit", what="class"):
        from_arrays(np.zeros((2, 2)), [0, 1], classes=["b", name])


def test_a_class_named_twice_among_very_many_is_found_at_once(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(300_000)]
    with raises(DataError, "name-repeated", got="c299999"):
        from_arrays(np.zeros((2, 2)), [0, 1], classes=[*names, names[-1]])
    (tmp_path / "a.csv").write_text(",".join([*names, names[-1]]) + "\n1\n")
    with raises(DataError, "name-repeated", column="c299999"):
        load_dataset(tmp_path / "a.csv")


def test_classes_without_examples_cost_a_check_nothing() -> None:
    rng, labels = np.random.default_rng(0), np.arange(60) % 2
    inputs = (rng.normal(size=(60, 3)) + labels[:, None]).astype(np.float32)
    domain = [f"h{i % 3}" for i in range(60)]
    data = from_arrays(inputs, labels, classes=[f"c{i}" for i in range(20_000)], domain=domain)
    assert check(federate(data, ByDomain(), seed=0), progress=False).status in (0, 1, 4)


def test_a_corrupt_stream_of_lzma_is_one_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", x=np.random.default_rng(0).normal(size=1000))
    path = tmp_path / "packed.npz"
    with zipfile.ZipFile(tmp_path / "plain.npz") as plain, zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as packed:
        packed.writestr("x.npy", plain.read("x.npy"))
    content = bytearray(path.read_bytes())
    content[1000:1100] = b"\xff" * 100
    path.write_bytes(content)
    with raises(DataError, "file-unreadable"):
        read_npz(path)


def test_a_gzip_file_without_end_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_files, "MOST_IDX", 1000)
    (tmp_path / f"{published_files.IDX_FILES[0]}.gz").write_bytes(gzip.compress(bytes(10**7)))
    largest = 0

    class Watched(gzip.GzipFile):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal largest
            content = super().read(size)
            largest = max(largest, len(content))
            return content

    monkeypatch.setattr(gzip, "open", Watched)
    monkeypatch.setattr(gzip, "decompress", None)
    with raises(DataError, "file-unreadable"):
        read_idx_folder(tmp_path, "mnist")
    assert 0 < largest <= 1001


BATCHES: dict[str, Callable[[], Any]] = {
    "no labels": lambda: {"data": np.zeros((1, 3072), np.uint8)},
    "no images": lambda: {"labels": [1]},
    "images of another size": lambda: {"data": np.zeros((1, 9), np.uint8), "labels": [1]},
    "a text for images": lambda: {"data": "x", "labels": [1]},
}


@pytest.mark.parametrize("fault", [*BATCHES, "an array without end", "bytes"])
def test_a_batch_of_cifar_that_holds_something_else_is_one_error(fault: str, tmp_path: Path) -> None:
    content = pickle.dumps(BATCHES[fault]()) if fault in BATCHES else b"\x80\x04K\x01\x85R."
    if fault == "an array without end":
        content = b"cnumpy\nndarray\n((L1000000000000000L\nltR."
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (tmp_path / name).write_bytes(content)
    with raises(DataError, "file-unreadable"):
        read_cifar10_batches(tmp_path)
