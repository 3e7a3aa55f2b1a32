"""Files that are broken, or made to break whoever opens them: one error that names the file, and never a traceback."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from fedatlas import Atlas, load_dataset
from fedatlas.atlas import write_vectors
from fedatlas.config import Config
from fedatlas.data.loading.arrays import MOST_CLASSES, from_arrays
from fedatlas.data.loading.npz import from_npz, read_npz
from fedatlas.errors import DataError, UsageError
from raising import raises

X, Y = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])

ARRAYS: dict[str, tuple[Mapping[str, Any], str]] = {
    "scalar x": ({"x": np.float32(1), "y": Y}, "wrong-shape"),
    "scalar y": ({"x": X, "y": np.int64(1)}, "wrong-shape"),
    "scalar classes": ({"x": X, "y": Y, "classes": np.array("ab")}, "wrong-shape"),
    "scalar mean": ({"x": X, "y": Y, "mean": np.float64(0.5), "std": np.float64(0.5)}, "wrong-shape"),
    "text mean": ({"x": X, "y": Y, "mean": np.array(["a"]), "std": np.array(["b"])}, "wrong-type"),
    "scalar owner": ({"x": X, "y": Y, "owner": np.int64(0)}, "wrong-shape"),
    "scalar is_test": ({"x": X, "y": Y, "is_test": np.bool_(True)}, "wrong-shape"),
    "scalar vocabulary": ({"x": X, "y": Y, "vocabulary": np.array("a")}, "wrong-shape"),
    "scalar domain_x": ({"a_x": np.float32(1), "a_y": Y}, "wrong-shape"),
    "a class twice": ({"x": X, "y": Y, "classes": np.array(["a", "a"])}, "name-repeated"),
    "labels that are ids": ({"x": X, "y": np.array([0, 1, 2, 2 * 10**15])}, "out-of-range"),
    "labels beyond int64": ({"x": X, "y": np.array([0, 1, 2, 2**64 - 1], np.uint64)}, "out-of-range"),
    "labels of 1e300": ({"x": X, "y": np.array([0.0, 1.0, 2.0, 1e300])}, "out-of-range"),
}


@pytest.mark.parametrize("fault", ARRAYS)
def test_an_npz_with_a_strange_array_is_one_error(fault: str, tmp_path: Path) -> None:
    arrays, code = ARRAYS[fault]
    np.savez(tmp_path / "odd.npz", **arrays)
    with raises(DataError, code):
        from_npz(tmp_path / "odd.npz")


def _npy(shape: str, content: bytes = b"", descr: str = "'<f8'") -> bytes:
    """Return an array whose header states this shape."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def _archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


BOMBS: dict[str, bytes] = {
    "8 PB in the header": _npy("(10**15,)".replace("10**15", str(10**15))),
    "a negative axis": _npy("(-1,)"),
    "axes without end": _npy("(" + "9" * 30 + ",)"),
    "a header of text": _npy("('a',)"),
    "an expression in the header": _npy("(__import__('os').getpid(),)"),
    "a header nested deeply": _npy("(" * 5000 + ")" * 5000),
    "an unknown type": _npy("(1,)", b"12345678", "'<q17'"),
    "objects": _npy("(1,)", b"12345678", "'|O'"),
    "half of the content": _npy("(100,)", b"1234"),
    "no array at all": b"hello",
    "nothing": b"",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_header_is_read_before_memory_is_taken(bomb: str, tmp_path: Path) -> None:
    with raises(DataError, "file-unreadable"):
        read_npz(_archive(tmp_path / "bomb.npz", x=BOMBS[bomb]))


def test_an_archive_larger_than_the_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of zeros packs into a kilobyte."""
    monkeypatch.setattr("fedatlas.data.memory.physical_memory", lambda: 10**6)
    path = _archive(tmp_path / "zeros.npz", x=_npy("(125000,)", bytes(10**6)), y=_npy("(1,)", bytes(8)))
    assert path.stat().st_size < 3000
    with raises(DataError, "out-of-memory", got=3 * (10**6 + 8), most=10**6):
        read_npz(path)


def test_a_corrupt_stream_is_one_error(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=1000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[200:260] = b"\xff" * 60
    (tmp_path / "a.npz").write_bytes(content)
    with raises(DataError, "file-unreadable"):
        read_npz(tmp_path / "a.npz")


def _picture(width: int, height: int) -> bytes:
    """Return a PNG that states a size, and holds next to nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_picture_of_ten_gigapixels_is_not_decoded(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / name / "0.png")
    (tmp_path / "pictures" / "b" / "1.png").write_bytes(_picture(100_000, 100_000))
    with raises(DataError, "file-unreadable"):
        load_dataset(tmp_path / "pictures")
    blob = np.frombuffer(_picture(100_000, 100_000), np.uint8)
    np.savez(tmp_path / "packed.npz", webp=blob, offset=np.array([0, len(blob)]), y=np.array([0]))
    with raises(DataError, "file-unreadable"):
        from_npz(tmp_path / "packed.npz")


TABLES: dict[str, tuple[str, str]] = {
    "nested deeply": ("a.jsonl", '{"label": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}\n"),
    "a number of 5,000 digits": ("a.jsonl", '{"label": 1, "x": ' + "9" * 5000 + "}\n"),
    "a number beyond floats": ("a.jsonl", '{"label": 1, "x": 1' + "0" * 400 + "}\n"),
    "a list in place of a row": ("a.jsonl", "[1, 2]\n"),
    "a header of a megabyte": ("a.csv", '"' + "a" * 10**6 + '",b\n1,2\n'),
    "a cell of a megabyte": ("a.csv", "a,label\n" + '"' + "a" * 10**6 + '",2\n'),
    "null bytes": ("a.csv", "a,label\n\0,2\n"),
}


@pytest.mark.parametrize("fault", TABLES)
def test_a_table_made_to_break_readers_is_one_error(fault: str, tmp_path: Path) -> None:
    name, text = TABLES[fault]
    (tmp_path / name).write_text(text)
    with pytest.raises((DataError, UsageError)):
        load_dataset(tmp_path / name)


def _words(**changes: Any) -> dict[str, Any]:
    whole = {"names": ["a", "b"], "halves": ["feature"], "domains": [None, None], "provenance": {}, "labelled": None}
    return {key: value for key, value in {**whole, **changes}.items() if value != "left out"}


ATLASES: dict[str, Callable[[], tuple[dict[str, torch.Tensor], dict[str, Any]]]] = {
    "no names": lambda: (_tensors(), _words(names="left out")),
    "no halves": lambda: (_tensors(), _words(halves="left out")),
    "names without end": lambda: (_tensors(), _words(names=7)),
    "names of lists": lambda: (_tensors(), _words(names=[["a"], ["b"]])),
    "a half that is missing": lambda: (_tensors(), _words(halves=["label"])),
    "a half of width 0": lambda: (_tensors(0), _words()),
    "a provenance of text": lambda: (_tensors(), _words(provenance="x")),
    "no sizes": lambda: ({"half/feature": torch.zeros(2, 3)}, _words()),
}


def _tensors(width: int = 3) -> dict[str, torch.Tensor]:
    return {"half/feature": torch.zeros(2, width), "sizes": torch.ones(2, dtype=torch.int64)}


@pytest.mark.parametrize("fault", ATLASES)
def test_an_atlas_with_a_right_checksum_and_wrong_content_is_one_error(fault: str, tmp_path: Path) -> None:
    tensors, words = ATLASES[fault]()
    write_vectors(tmp_path / "a.safetensors", tensors, words)
    with pytest.raises((DataError, UsageError)):
        Atlas.load(tmp_path / "a.safetensors")


def test_an_atlas_that_states_more_than_it_holds_is_not_allocated(tmp_path: Path) -> None:
    header = json.dumps(
        {"half/feature": {"dtype": "F32", "shape": [2, 10**15], "data_offsets": [0, 8 * 10**15]}}
    ).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with raises(DataError, "file-unreadable"):
        Atlas.load(tmp_path / "a.safetensors")
    (tmp_path / "a.safetensors").write_bytes(save({"x": torch.zeros(1)}, {"form": "fedatlas.atlas/1"}))
    with raises(DataError, "file-altered"):
        Atlas.load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "text",
    [
        "[optimizer]\nlr = 99999999999999999999999",
        "[training]\nrounds = 99999999999999999999999",
        "[training]\nepochs = -99999999999999999999999",
        "seed = 99999999999999999999999",
        "[model]\nname = 'mlp'\nwidth = 99999999999999999999999",
        "x = " + "[" * 5000,
        "[data]\nclasses = " + "[" * 5000 + "]" * 5000,
        "x = " + "9" * 5000,
    ],
)
def test_a_config_made_to_break_readers_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(UsageError):
        Config.load(tmp_path / "run.toml")
    with pytest.raises(UsageError):
        Config.load(None, [text.replace("[optimizer]\n", "optimizer.").replace("[training]\n", "training.")])


def test_as_many_classes_as_are_possible_are_read_at_once() -> None:
    labels = np.array([0, MOST_CLASSES - 1])
    with pytest.warns(UserWarning, match="look like ids"):
        assert len(from_arrays(np.zeros((2, 2)), labels).classes) == MOST_CLASSES
    with raises(DataError, "out-of-range", got=MOST_CLASSES):
        from_arrays(np.zeros((2, 2)), labels + 1)


def test_what_is_whole_is_read_as_before(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=X, y=Y, classes=np.array(["a", "b"]), mean=np.array([0.5]), std=np.array([0.5]))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    assert from_npz(tmp_path / "a.npz").classes == ("a", "b")
