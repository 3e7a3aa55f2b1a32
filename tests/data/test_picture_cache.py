"""Pictures are decoded once; large ones stay on the disk; a cache that is not as it should be is made again."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedatlas
from fedatlas.data.loading import picture_cache, pictures
from fedatlas.data.loading.image_folder import from_image_folder
from fedatlas.errors import DataError
from raising import raises


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDATLAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pictures"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(24):
        place = tmp_path / "photos" / f"class{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(place / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The files that were decoded."""
    found: list[Path] = []
    real = pictures.read_image
    monkeypatch.setattr(pictures, "read_image", lambda file, size=None: found.append(file) or real(file, size))
    return found  # type: ignore[return-value]


def test_a_folder_is_decoded_once_for_each_size_and_again_when_a_file_changes(
    folder: Path, cache: Path, read: list[Path]
) -> None:
    first = from_image_folder(folder).inputs
    assert len(read) == 24
    assert torch.equal(from_image_folder(folder).inputs, first)
    assert len(read) == 24
    assert from_image_folder(folder, size=4).inputs.shape == (24, 3, 4, 4)
    assert len(read) == 48
    assert len(list(cache.iterdir())) == 2
    file = folder / "class0" / "0.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file)
    os.utime(file, ns=(1, 1))
    again = from_image_folder(folder).inputs
    assert len(read) == 72
    assert not again[0].any()
    # The array of the earlier state is gone; that of the other size is there.
    assert len(list(cache.iterdir())) == 2


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the files that are mapped")
def test_pictures_beyond_a_size_stay_on_the_disk_and_train_to_the_same_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str) -> fedatlas.Run:
        federation = fedatlas.federate(from_image_folder(folder), fedatlas.data.Iid(num_clients=3))
        more = {"folder": tmp_path / name, "progress": False, "workers": 2}
        return fedatlas.train(federation, "fedavg", rounds=2, batch_size=4, **more)

    held = run("memory")
    monkeypatch.setattr(picture_cache, "IN_MEMORY", 100)
    lazy = from_image_folder(folder).inputs
    assert _mapped_file(lazy).endswith(".npy")
    mapped = run("disk")
    assert held.resolved["federation"]["fingerprint"] == mapped.resolved["federation"]["fingerprint"]
    one, two = held.parameters(), mapped.parameters()
    assert all(torch.equal(one[name], two[name]) for name in one)
    # A change of the examples in memory changes no file.
    lazy[:] = 0
    assert from_image_folder(folder).inputs.any()


def _mapped_file(tensor: torch.Tensor) -> str:
    """The file whose map holds a tensor, by Linux's list of them."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, last = line.split()[0].partition("-")
        if int(first, 16) <= tensor.data_ptr() < int(last, 16):
            return line
    return ""


def test_a_broken_cache_is_made_again_and_never_run(folder: Path, cache: Path, read: list[Path]) -> None:
    first = from_image_folder(folder).inputs
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    objects = cache / "objects.npy"
    np.save(objects, np.array([Evil()], dtype=object), allow_pickle=True)
    for broken in (whole[:-1], whole + b"x", b"", b"\x93NUMPY", whole.replace(b"|u1", b"<u2"), objects.read_bytes()):
        read.clear()
        file.write_bytes(broken)
        assert torch.equal(from_image_folder(folder).inputs, first)
        assert len(read) == 24


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os._exit, (3,))  # type: ignore[return-value]


def test_a_cache_that_cannot_be_written_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDATLAS_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="could not be kept"):
        assert len(from_image_folder(folder)) == 24
    monkeypatch.setattr(picture_cache, "IN_MEMORY", 100)
    with raises(DataError, "out-of-memory", got=24 * 3 * 8 * 8):
        from_image_folder(folder)


def test_sizes_are_checked_before_any_picture_is_decoded(folder: Path, read: list[Path]) -> None:
    Image.fromarray(np.zeros((9, 8, 3), np.uint8)).save(folder / "class2" / "last.png")
    with raises(DataError, "pictures-differ", path=str(folder / "class2" / "last.png")):
        from_image_folder(folder)
    assert read == []


def test_a_long_reading_tells_how_far_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedatlas.data.loading.watching.PAUSE", -1.0)
    from_image_folder(folder)
    assert "reading photos: 24 of 24, " in capsys.readouterr().err
