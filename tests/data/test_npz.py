import io

import numpy as np
import pytest
import torch
from PIL import Image

from data.pixels import noise
from fedatlas.data.loading.npz import from_npz
from fedatlas.errors import DataError, UsageError
from raising import raises


def test_npz_with_a_train_and_a_test_part(tmp_path):
    x, y = noise(6, 4, 4), np.arange(6) % 3
    np.savez(tmp_path / "set.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    data = from_npz(tmp_path / "set.npz")
    assert data.name == "set"
    assert data.is_test.tolist() == [False] * 4 + [True] * 2
    assert torch.equal(data.inputs[:, 0], torch.from_numpy(x))
    assert data.labels.tolist() == y.tolist()


def test_npz_with_x_and_y_and_what_stands_beside(tmp_path):
    np.savez(
        tmp_path / "set.npz",
        x=np.ones((3, 2), np.float32),
        y=[0, 1, 0],
        classes=["no", "yes"],
        owner=["ann", "bob", "ann"],
        domain=["a", "a", "b"],
        is_test=[False, True, False],
    )
    data = from_npz(tmp_path / "set.npz")
    assert (data.classes, data.owners, data.domains) == (("no", "yes"), ("ann", "bob"), ("a", "b"))
    assert data.is_test.tolist() == [False, True, False]


def test_npz_with_domains_keeps_their_order(tmp_path):
    arrays = {"web_x": noise(2, 4, 4), "web_y": [0, 1], "lab_x": noise(3, 4, 4), "lab_y": [1, 1, 0]}
    np.savez(tmp_path / "set.npz", classes=["cat", "dog"], **arrays)
    data = from_npz(tmp_path / "set.npz")
    assert data.domains == ("web", "lab")
    assert data.domain.tolist() == [0, 0, 1, 1, 1]
    assert data.is_test is None


def pack(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    blobs = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "WEBP", lossless=True, exact=True)
        blobs.append(buffer.getvalue())
    return np.frombuffer(b"".join(blobs), np.uint8), np.cumsum([0, *map(len, blobs)])


def test_packed_webp_pictures_are_read_bit_for_bit(tmp_path):
    x = noise(5, 8, 8, 3)
    (train, train_offset), (test, test_offset) = pack(x[:3]), pack(x[3:])
    np.savez(
        tmp_path / "set.npz",
        train_webp=train,
        train_offset=train_offset,
        train_y=[0, 1, 2],
        test_webp=test,
        test_offset=test_offset,
        test_y=[0, 1],
    )
    data = from_npz(tmp_path / "set.npz")
    assert torch.equal(data.inputs, torch.from_numpy(x).permute(0, 3, 1, 2))
    assert data.is_test.tolist() == [False] * 3 + [True] * 2
    np.savez(tmp_path / "one.npz", webp=train, offset=train_offset, y=[0, 1, 2])
    assert torch.equal(from_npz(tmp_path / "one.npz").inputs, data.inputs[:3])


def test_a_broken_packed_picture_is_named(tmp_path):
    blob, offset = pack(noise(3, 8, 8, 3))
    broken = blob.copy()
    broken[offset[1] : offset[2]] = 7
    np.savez(tmp_path / "set.npz", webp=broken, offset=offset, y=[0, 1, 2])
    with raises(DataError, "file-unreadable", picture=1):
        from_npz(tmp_path / "set.npz")


@pytest.mark.parametrize(
    ("arrays", "code", "fields"),
    [
        ({"a": [1]}, "content-unfit", {"got": ["a"]}),
        ({"x": noise(2, 4, 4)}, "content-unfit", {"missing": "y"}),
        ({"web_webp": noise(4), "web_y": [0]}, "content-unfit", {"missing": "web_offset"}),
        (
            {"x": noise(2, 4, 4), "y": [0, 1], "web_x": noise(1, 4, 4), "web_y": [0]},
            "content-unfit",
            {"got": ["all", "web"]},
        ),
        ({"a_x": noise(1, 4, 4), "a_y": [0], "b_x": noise(1, 5, 5), "b_y": [0]}, "pictures-differ", {}),
        ({"x": noise(1, 4, 4), "y": np.array([{}], dtype=object)}, "file-unreadable", {}),
    ],
)
def test_npz_files_of_another_form_are_refused(tmp_path, arrays, code, fields):
    np.savez(tmp_path / "set.npz", **arrays)
    with raises(DataError, code, **fields):
        from_npz(tmp_path / "set.npz")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("owners", "owner"), ("Domains", "domain"), ("domian", "domain"), ("istest", "is_test"), ("x_tset", "x_test")],
)
def test_an_array_of_a_misspelt_name_is_refused(tmp_path, wrong, right):
    np.savez(tmp_path / "set.npz", x=noise(2, 4, 4), y=[0, 1], **{wrong: ["a", "b"]})
    with raises(DataError, "content-unfit", got=wrong, nearest=right):
        from_npz(tmp_path / "set.npz")


def test_other_arrays_of_an_npz_are_left_out_with_a_warning(tmp_path):
    arrays = {"x": noise(2, 4, 4), "y": [0, 1], "domain": [0, 1]}
    np.savez(tmp_path / "set.npz", domains=["web", "lab"], meta=[1], x_val=noise(1, 4, 4), lab_y=[0], **arrays)
    with pytest.warns(UserWarning, match=r"set.npz: left out arrays of unknown name: domains, meta, x_val, \.\.\."):
        assert from_npz(tmp_path / "set.npz").domains == ("0", "1")


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    for content in (b"", b"hello", (tmp_path / "one.npy").read_bytes()):
        (tmp_path / "set.npz").write_bytes(content)
        with raises(DataError, "file-unreadable", path=str(tmp_path / "set.npz")) as caught:
            from_npz(tmp_path / "set.npz")
        assert "pickle" not in str(caught.value)
    with raises(UsageError, "file-missing", path=str(tmp_path / "other.npz")):
        from_npz(tmp_path / "other.npz")
