"""Configs and data files with random damage: they are read, or refused in one error; nothing else may come out.

A few by default; ``make test-faults`` tries a thousand of each. Seeds are fixed, so that a failure comes again.
"""

import io
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from campaign import HANG, REFUSED, RIGHT, TRACEBACK, HangError, limited
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fedatlas import Atlas, load_dataset
from fedatlas.config import Config
from fedatlas.errors import FedatlasError

FEW, MANY = 40, 1000
SECONDS = 60
"""Reading such a file takes milliseconds; what takes longer hangs."""
Tally = Callable[[str, Counter[str]], None]
COUNTS = [FEW, pytest.param(MANY, marks=pytest.mark.faults)]

CONFIG = b"""seed = 3
[data]
source = "digits"
partition = { name = "dirichlet", alpha = 0.5, num_clients = 10 }
held_out = ["a", "b"]
[model]
name = "cnn"
width = 16
[algorithm]
name = "feddisco"
base = { name = "fedprox", mu = 0.1 }
[atlas]
make = { source = "client2vec", strategy = "federated", epochs = 2 }
use = ["sample", "aggregate"]
[optimizer]
name = "sgd"
lr = 0.05
momentum = 0.9
[training]
rounds = 5
cohort = 0.5
augment = { padding = 2, flip = true }
metrics = ["accuracy"]
[flower]
clients = 3
minimum = 0.5
"""
NASTY = (b"-1", b"0", b"nan", b"inf", b"9" * 30, b"1e999", b"[]", b"{}", b'""', b"[[", b"true", b'"\\u0000"')
NASTY += (b"'x:y'", b"\xff", b"1979-05-27", b'["a", 1]', b"-0.0", b"2.5", b'{ name = "fedavg" }')
"""What is put in place of a value."""


def _npz() -> bytes:
    buffer = io.BytesIO()
    x, y = np.arange(640, dtype=np.uint8).reshape(10, 8, 8), np.arange(10) % 3
    np.savez_compressed(buffer, x=x, y=y, classes=np.array(["a", "b", "c"]), owner=np.arange(10) % 2)
    return buffer.getvalue()


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, "png")
    return buffer.getvalue()


def _atlas() -> bytes:
    atlas = Atlas(names=("a", "b"), halves={"feature": torch.eye(2)}, sizes=torch.ones(2, dtype=torch.int64))
    path = Path(tempfile.mkdtemp()) / "whole.safetensors"
    atlas.save(path)
    return path.read_bytes()


CSV = b"age,sex,label,client\n" + b"".join(
    b"%d,%s,%d,c%d\n" % (i, b"fm"[i % 2 : i % 2 + 1], i % 2, i % 3) for i in range(30)
)
JSONL = b"".join(b'{"age": %d, "sex": "f", "label": %d, "client": "c%d"}\n' % (i, i % 2, i % 3) for i in range(30))
WHOLE: dict[str, tuple[Callable[[], bytes], Callable[[Path], object]]] = {
    "a.npz": (_npz, load_dataset),
    "a.csv": (lambda: CSV, load_dataset),
    "a.jsonl": (lambda: JSONL, load_dataset),
    "pictures/a/0.png": (_png, lambda path: load_dataset(path.parents[1])),
    "a.safetensors": (_atlas, Atlas.load),
}


@st.composite
def damages(draw: st.DrawFn, content: bytes, pieces: tuple[bytes, ...] = NASTY) -> bytes:
    """Return some content with a few bytes changed, cut, doubled or replaced by something nasty."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(found) - 1)))
        length = draw(st.integers(0, 12))
        kind = draw(st.sampled_from(["flip", "cut", "double", "nasty", "end"]))
        if kind == "flip" and found:
            found[start] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del found[start : start + length]
        elif kind == "double":
            found[start:start] = found[start : start + length] * draw(st.integers(1, 50))
        elif kind == "nasty":
            found[start : start + length] = draw(st.sampled_from(pieces))
        else:
            del found[start:]
    return bytes(found)


@st.composite
def odd_values(draw: st.DrawFn) -> bytes:
    """Return the config with the values of some lines replaced."""
    lines = CONFIG.splitlines()
    for place in draw(st.lists(st.integers(0, len(lines) - 1), min_size=1, max_size=3)):
        key, sign, _ = lines[place].partition(b" = ")
        if sign:
            lines[place] = key + sign + draw(st.sampled_from(NASTY))
    return b"\n".join(lines)


def read_config(path: Path) -> None:
    """Read a config, and build all that needs no data."""
    config = Config.load(path)
    config.seeds(), config.plan(), config.work(), config.run_settings(), config.atlas_settings()
    config.client_algorithm(Atlas(names=("a",), halves={"feature": torch.ones(1, 2)}, sizes=torch.tensor([1])))


class Trials:
    """Reads damaged files, and counts how that ends; what neither reads nor refuses raises an error of its own."""

    def __init__(self, path: Path, read: Callable[[Path], object]) -> None:
        self.path, self.read, self.outcomes = path, read, Counter[str]()
        path.parent.mkdir(parents=True, exist_ok=True)

    def play(self, content: bytes) -> None:
        self.path.write_bytes(content)
        outcome = TRACEBACK
        try:
            with warnings.catch_warnings(), limited(SECONDS):
                warnings.simplefilter("ignore")  # a note to the user is not a fault
                self.read(self.path)
            outcome = RIGHT
        except FedatlasError:
            outcome = REFUSED
        except HangError:
            outcome = HANG
            raise
        finally:
            self.outcomes[outcome] += 1


def tried(count: int) -> settings:
    """Return how often, and the same each time."""
    health = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=health)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("way", ["bytes", "values"])
def test_a_damaged_config_is_read_or_refused(way: str, count: int, tmp_path: Path, tally: Tally) -> None:
    contents = damages(CONFIG) if way == "bytes" else odd_values()
    trials = Trials(tmp_path / "run.toml", read_config)
    try:
        tried(count)(given(contents)(trials.play))()
    finally:
        tally("a config is mutated", trials.outcomes)
    assert sum(trials.outcomes.values()) >= count


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_file_is_read_or_refused(name: str, count: int, tmp_path: Path, tally: Tally) -> None:
    make, read = WHOLE[name]
    whole = make()
    is_whole = read(_written(tmp_path / "whole" / name, whole))
    assert is_whole is not None
    trials = Trials(tmp_path / name, read)
    try:
        tried(count)(given(damages(whole))(trials.play))()
    finally:
        tally("a data file is mutated", trials.outcomes)
    assert sum(trials.outcomes.values()) >= count


def _written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
