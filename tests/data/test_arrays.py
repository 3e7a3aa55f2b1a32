import io

import numpy as np
import pytest
import torch
from PIL import Image

from fedatlas.data.dataset import Dataset
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.data.loading.image_folder import from_image_folder
from fedatlas.data.loading.npz import from_npz
from fedatlas.errors import DataError, UsageError
from raising import raises


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_channels_first_and_last_and_grey_images_are_understood():
    last = noise(5, 8, 9, 3)
    assert torch.equal(from_arrays(last, [0] * 5).inputs, torch.from_numpy(last).permute(0, 3, 1, 2))
    first = noise(5, 3, 8, 9)
    assert torch.equal(from_arrays(torch.from_numpy(first), [0] * 5).inputs, torch.from_numpy(first))
    assert from_arrays(noise(5, 8, 9), [0] * 5).inputs.shape == (5, 1, 8, 9)


def test_float_images_become_bytes():
    data = from_arrays(np.array([[[0.0, 0.5], [1.0, 0.2]]]), [0])
    assert data.inputs.flatten().tolist() == [0, 128, 255, 51]


@pytest.mark.parametrize(
    ("value", "code", "fields"),
    [
        (1.5, "out-of-range", {"got": 0.0, "most": 1.5}),
        (-0.1, "out-of-range", {"got": -0.1, "most": 0.0}),
        (np.nan, "not-finite", {"example": 1}),
        (np.inf, "not-finite", {"example": 1}),
    ],
)
def test_float_images_outside_zero_to_one_are_refused(value, code, fields):
    images = np.zeros((2, 4, 4, 3))
    images[1, 2, 2, 0] = value
    with raises(DataError, code, **fields):
        from_arrays(images, [0, 1])


def test_features_and_tokens_keep_their_kind():
    assert from_arrays(np.ones((3, 7)), [0, 1, 0]).kind == "features"
    assert from_arrays(np.ones((3, 7), np.int32), [0, 1, 0]).kind == "tokens"


def test_names_become_numbers():
    data = from_arrays(
        np.ones((4, 2)), ["dog", "cat", "dog", "bee"], domain=["web", "lab", "web", "lab"], owner=[7, 7, 3, 3]
    )
    assert data.classes == ("bee", "cat", "dog")
    assert data.labels.tolist() == [2, 1, 2, 0]
    assert data.domains == ("web", "lab")
    assert data.domain.tolist() == [0, 1, 0, 1]
    assert data.owners == ("7", "3")
    assert data.owner.tolist() == [0, 0, 1, 1]


def test_given_classes_keep_their_order():
    data = from_arrays(np.ones((2, 2)), ["b", "a"], classes=["b", "c", "a"])
    assert data.labels.tolist() == [0, 2]
    assert from_arrays(np.ones((2, 2)), np.array([[1], [0]])).classes == ("0", "1")


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"inputs": np.ones((3, 2)), "labels": [0, 1]}, "wrong-count", {"what": "labels", "got": 2, "wanted": 3}),
        ({"inputs": np.ones((2, 2)), "labels": [0, -1]}, "out-of-range", {"got": -1, "example": 1}),
        (
            {"inputs": np.ones((2, 2)), "labels": [0, 5], "classes": ["a", "b"]},
            "out-of-range",
            {"got": 5, "example": 1},
        ),
        ({"inputs": np.ones((2, 2)), "labels": ["a", "x"], "classes": ["a", "b"]}, "names-unfit", {"got": "x"}),
        ({"inputs": np.ones((2, 2)), "labels": [1, 0.5]}, "wrong-type", {"got": 0.5, "example": 1}),
        ({"inputs": np.ones((2, 2)), "labels": [1, np.nan]}, "wrong-type", {"what": "labels", "example": 1}),
        ({"inputs": np.ones((2, 2)), "labels": [1j, 0]}, "wrong-type", {"got": np.complex128}),
        ({"inputs": np.array([[1.0, np.nan], [0, 0]]), "labels": [0, 1]}, "not-finite", {"example": 0}),
        ({"inputs": np.ones((2, 2), np.uint8), "labels": [0, 1]}, "wrong-shape", {"got": np.uint8}),
        ({"inputs": np.full((2, 2), -1), "labels": [0, 1]}, "out-of-range", {"what": "tokens", "got": -1}),
        (
            {"inputs": np.full((2, 2), 2), "labels": [0, 1], "vocabulary": "ab"},
            "vocabulary",
            {"got": 2, "inputs": "int64"},
        ),
        (
            {"inputs": np.ones((2, 2)), "labels": [0, 1], "vocabulary": "ab"},
            "vocabulary",
            {"got": 2, "inputs": "float32"},
        ),
        (
            {"inputs": np.ones((2, 2)), "labels": [0, 1], "domain": ["a"]},
            "wrong-count",
            {"what": "domain", "got": 1, "wanted": 2},
        ),
        (
            {"inputs": np.ones((2, 2)), "labels": [0, 1], "domain": ["a", ""]},
            "value-missing",
            {"what": "domain", "example": 1},
        ),
        (
            {"inputs": np.ones((2, 2)), "labels": [0, 1], "owner": ["", "a"]},
            "value-missing",
            {"what": "owner", "example": 0},
        ),
        ({"inputs": np.ones((2, 2)), "labels": ["", "a"]}, "value-missing", {"what": "label", "example": 0}),
        ({"inputs": np.full((2, 2), 1e300), "labels": [0, 1]}, "not-finite", {"example": 0}),
        (
            {"inputs": np.ones((2, 2)), "labels": [0, 1], "is_test": [True]},
            "wrong-count",
            {"what": "is_test", "got": 1},
        ),
        ({"inputs": noise(2, 8, 8, 9), "labels": [0, 1]}, "wrong-shape", {"what": "images"}),
        ({"inputs": np.ones((0, 2)), "labels": []}, "data-empty", {}),
    ],
)
def test_unusable_arrays_are_refused(settings, code, fields):
    with raises(DataError, code, **fields):
        from_arrays(**settings)


def test_scaling_must_fit_the_channels():
    with raises(UsageError, "wrong-count", got=1, wanted=3):
        from_arrays(noise(2, 4, 4, 3), [0, 1], mean=[0.5], std=[0.5])
    with raises(UsageError, "out-of-range", setting="std"):
        from_arrays(noise(2, 4, 4), [0, 1], mean=[0.5], std=[0.0])


def test_labels_that_look_like_ids_are_told_of():
    with pytest.warns(UserWarning, match=r"3 of 2,001 classes occur, .* look like ids. Number them from 0, or give cl"):
        assert len(from_arrays(np.ones((3, 2)), [0, 1000, 2000]).classes) == 2001
    from_arrays(np.ones((3, 2)), [0, 1000, 2000], classes=[str(i) for i in range(2001)])
    from_arrays(np.ones((25, 2)), 4 * np.arange(25))
    from_arrays(np.ones((1, 2)), [19])


def test_a_test_part_of_other_classes_is_told_of():
    tested = np.arange(40) >= 30
    with pytest.warns(UserWarning, match="no class of the test part occurs in the training part"):
        from_arrays(np.ones((40, 2)), tested.astype(int), is_test=tested)
    from_arrays(np.ones((40, 2)), np.arange(40) // 30, is_test=np.arange(40) >= 29)
    from_arrays(np.ones((40, 2)), np.arange(40) % 2, is_test=np.ones(40))
    from_arrays(np.ones((3, 2)), [0, 0, 1], is_test=[False, False, True])


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


def write(path, side: int = 6) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = noise(side, side, 3) // 2 + len(path.parent.name)
    Image.fromarray(pixels).save(path)
    return pixels


def test_a_picture_folder_with_domains(tmp_path):
    first = write(tmp_path / "web" / "cat" / "1.png")
    write(tmp_path / "web" / "dog" / "1.png")
    write(tmp_path / "lab" / "dog" / "1.png")
    (tmp_path / "lab" / "dog" / "notes.txt").write_text("not a picture")
    with pytest.warns(UserWarning, match=r"left out 1 file beside the pictures: 1 \.txt\."):
        data = from_image_folder(tmp_path)
    assert data.domains == ("lab", "web")
    assert data.classes == ("cat", "dog")
    assert [(data.domain_of(i), data.classes[data.labels[i]]) for i in range(3)] == [
        ("lab", "dog"),
        ("web", "cat"),
        ("web", "dog"),
    ]
    assert torch.equal(data.inputs[1], torch.from_numpy(first).permute(2, 0, 1))


def test_a_picture_folder_without_domains_and_one_with_a_split(tmp_path):
    write(tmp_path / "flat" / "cat" / "1.png")
    write(tmp_path / "flat" / "dog" / "1.webp")
    data = from_image_folder(tmp_path / "flat")
    assert (data.name, data.domain, data.labels.tolist()) == ("flat", None, [0, 1])
    write(tmp_path / "split" / "train" / "cat" / "1.png")
    write(tmp_path / "split" / "test" / "cat" / "2.png")
    data = from_image_folder(tmp_path / "split")
    assert data.domain is None
    assert data.is_test.tolist() == [True, False]


def test_pictures_of_different_sizes_need_a_size(tmp_path):
    write(tmp_path / "cat" / "1.png", side=6)
    write(tmp_path / "cat" / "2.png", side=8)
    with raises(DataError, "pictures-differ", path=str(tmp_path / "cat" / "2.png")) as caught:
        from_image_folder(tmp_path)
    assert "data.size" in str(caught.value)
    assert from_image_folder(tmp_path, size=5).inputs.shape == (2, 3, 5, 5)
    assert from_image_folder(tmp_path, size=(5, 7)).inputs.shape == (2, 3, 5, 7)
    for size in (0, "5", (5,), [5, 2.5], True):
        with raises(UsageError, "out-of-range", setting="size", got=size):
            from_image_folder(tmp_path, size=size)


def test_a_broken_picture_file_is_named(tmp_path):
    write(tmp_path / "cat" / "1.png")
    (tmp_path / "cat" / "2.png").write_bytes(b"no picture")
    with raises(DataError, "file-unreadable", path=str(tmp_path / "cat" / "2.png")):
        from_image_folder(tmp_path)


def test_of_sixteen_bits_the_upper_eight_are_kept(tmp_path):
    (tmp_path / "scan").mkdir()
    deep = np.array([[0, 255, 256], [0x1234, 0xFFFF, 40_000]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "scan" / "deep.png")
    found = from_image_folder(tmp_path).inputs
    assert found[0, 0].tolist() == [[0, 0, 1], [0x12, 255, 156]]
    assert torch.equal(found[0, 0], found[0, 2])
    for values, said in ((np.full((2, 3), 0.5, np.float32), "fractions"), (np.full((2, 3), 70_000, np.int32), "70000")):
        Image.fromarray(values).save(tmp_path / "scan" / "odd.tif")
        with raises(DataError, "file-unreadable", path=str(tmp_path / "scan" / "odd.tif")) as caught:
            from_image_folder(tmp_path)
        assert said in str(caught.value)


def test_huge_pictures_are_refused(tmp_path, monkeypatch):
    write(tmp_path / "cat" / "1.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with raises(DataError, "file-unreadable", path=str(tmp_path / "cat" / "1.png")) as caught:
        from_image_folder(tmp_path)
    assert "20 pixels" in str(caught.value)


def test_names_and_modes_of_pictures_may_differ(tmp_path):
    pixels = write(tmp_path / "groß tal" / "kleine Möwe" / "bild 1 ä.PNG")
    Image.fromarray(pixels[:, :, 0]).save(tmp_path / "groß tal" / "kleine Möwe" / "grey.png")
    Image.fromarray(pixels).convert("RGBA").save(tmp_path / "groß tal" / "kleine Möwe" / "z.png")
    data = from_image_folder(tmp_path)
    assert (data.domains, data.classes) == (("groß tal",), ("kleine Möwe",))
    assert torch.equal(data.inputs[0], data.inputs[2])
    assert torch.equal(data.inputs[1], data.inputs[0][:1].expand(3, -1, -1))


def test_a_folder_without_pictures_is_named_and_left_out(tmp_path):
    write(tmp_path / "web" / "cat" / "1.png")
    (tmp_path / "web" / "dog").mkdir()
    (tmp_path / "web" / "dog" / "1.dcm").write_text("not read")
    (tmp_path / "lab" / "cat").mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"2 folders hold no pictures .* left out: lab.cat, web.dog\."):
        data = from_image_folder(tmp_path)
    assert (data.domains, data.classes) == (("web",), ("cat",))


def test_files_that_are_no_pictures_are_counted_once_by_their_endings(tmp_path):
    for kind in ("cat", "dog"):
        write(tmp_path / "web" / kind / "1.png")
        for name in ("2.GIF", ".DS_Store", "3.gif"):
            (tmp_path / "web" / kind / name).write_bytes(b"not read")
    (tmp_path / "web" / "cat" / "notes.txt").write_text("not read")
    (tmp_path / "web" / "cat" / "LICENSE").write_text("not read")
    (tmp_path / "web" / "cat" / "more").mkdir()
    with pytest.warns(UserWarning, match="beside") as told:
        data = from_image_folder(tmp_path)
    assert len(data) == 2
    said = "left out 6 files beside the pictures: 4 .gif, 1 .txt, 1 without an ending. Pictures are .png, .jpg, "
    assert [said in str(one.message) for one in told] == [True]


def test_hidden_files_beside_pictures_are_not_told(tmp_path):
    write(tmp_path / "cat" / "1.png")
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"not read")
    assert len(from_image_folder(tmp_path)) == 1  # a warning would be an error


@pytest.mark.parametrize("outer", [("train", "val", "test"), ("Train", "Test"), ("train", "validation")])
def test_folders_that_look_like_a_split_are_no_domains(tmp_path, outer):
    for name in outer:
        write(tmp_path / name / "cat" / "1.png")
    with raises(DataError, "split-unfit", got=sorted(outer)):
        from_image_folder(tmp_path)


def test_folders_of_another_form_are_refused(tmp_path):
    with raises(UsageError, "file-missing"):
        from_image_folder(tmp_path / "none")
    with raises(DataError, "data-empty"):
        from_image_folder(tmp_path)
    write(tmp_path / "a" / "b" / "c" / "1.png")
    with raises(DataError, "data-empty") as caught:
        from_image_folder(tmp_path)
    assert "1.png" in str(caught.value)
    write(tmp_path / "cat" / "1.png")
    write(tmp_path / "web" / "cat" / "1.png")
    with raises(DataError, "content-unfit", path=str(tmp_path)):
        from_image_folder(tmp_path)


@pytest.mark.parametrize(("labels", "got", "example"), [([0, 2, 3], 3, 2), ([0, -1, 9], -1, 1)])
def test_a_label_without_a_class_is_named_with_its_example(labels: list[int], got: int, example: int) -> None:
    with raises(DataError, "out-of-range", got=got, example=example):
        Dataset(name="wards", inputs=torch.zeros(3, 2), labels=torch.tensor(labels), classes=("a", "b", "c"))
