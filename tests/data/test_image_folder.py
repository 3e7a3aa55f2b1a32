import numpy as np
import pytest
import torch
from PIL import Image

from data.pixels import noise
from fedatlas.data.loading.image_folder import from_image_folder
from fedatlas.errors import DataError, UsageError
from raising import raises


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


def test_deep_pictures_keep_all_their_shades(tmp_path):
    """16 bits become x / 65535, fractions stay; an 8-bit picture among them, and 32 bits, are refused by name."""
    (tmp_path / "scan").mkdir()
    deep = np.array([[0, 255, 256], [0x1234, 0xFFFF, 40_000]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "scan" / "deep.png")
    found = from_image_folder(tmp_path)
    assert found.kind == "array"
    assert torch.equal(found.inputs[0, 0], torch.from_numpy(deep.astype(np.float32) / 65535))
    shades = np.array([[-1.5, 0.25, 0.5], [1e-6, 3.0, 7.0]], np.float32)
    Image.fromarray(shades).save(tmp_path / "scan" / "deep.tif")
    with raises(DataError, "pictures-differ", path=str(tmp_path / "scan" / "deep.tif")):
        from_image_folder(tmp_path)
    (tmp_path / "scan" / "deep.png").unlink()
    assert torch.equal(from_image_folder(tmp_path).inputs[0, 0], torch.from_numpy(shades))
    Image.fromarray(np.full((2, 3), 70_000, np.int32)).save(tmp_path / "scan" / "deep.tif")
    with raises(DataError, "file-unreadable", path=str(tmp_path / "scan" / "deep.tif")):
        from_image_folder(tmp_path)


def test_pictures_with_masks(tmp_path):
    """A mask's pixels are classes, whatever its palette shows; resized, a pixel takes the nearest one's class."""
    for domain in ("lab", "web"):
        for name in ("1", "2"):
            write(tmp_path / domain / "images" / f"{name}.jpg", side=4)
            (tmp_path / domain / "masks").mkdir(exist_ok=True)
            mask = Image.fromarray(np.kron([[0, 1], [2, 0]], np.ones((2, 2))).astype(np.uint8)).convert("P")
            mask.save(tmp_path / domain / "masks" / f"{name}.png")
    data = from_image_folder(tmp_path, task="segmentation")
    assert (data.inputs.shape, data.domains, data.classes) == ((4, 3, 4, 4), ("lab", "web"), ("0", "1", "2"))
    assert data.labels[3].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 0, 0], [2, 2, 0, 0]]
    assert from_image_folder(tmp_path, task="segmentation", size=2).labels[0].tolist() == [[0, 1], [2, 0]]
    (tmp_path / "web" / "masks" / "2.png").rename(tmp_path / "web" / "masks" / "3.png")
    with raises(DataError, "file-missing", path=str(tmp_path / "web" / "images" / "2.jpg")):
        from_image_folder(tmp_path, task="segmentation")
    write(tmp_path / "web" / "masks" / "2.png", side=4)
    (tmp_path / "web" / "masks" / "3.png").unlink()
    with raises(DataError, "content-unfit", path=str(tmp_path / "web" / "masks" / "2.png")):
        from_image_folder(tmp_path, task="segmentation")
    with raises(UsageError, "task-unfit", got="regression"):
        from_image_folder(tmp_path, task="regression")


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
