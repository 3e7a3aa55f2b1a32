import numpy as np
import pytest
import torch

from data.pixels import noise
from fedatlas.data.dataset import Dataset
from fedatlas.data.loading.arrays import from_arrays
from fedatlas.errors import DataError, UsageError
from raising import raises


def test_channels_first_and_last_and_grey_images_are_understood():
    last = noise(5, 8, 9, 3)
    assert torch.equal(from_arrays(last, [0] * 5).inputs, torch.from_numpy(last).permute(0, 3, 1, 2))
    first = noise(5, 3, 8, 9)
    assert torch.equal(from_arrays(torch.from_numpy(first), [0] * 5).inputs, torch.from_numpy(first))
    assert from_arrays(noise(5, 8, 9), [0] * 5).inputs.shape == (5, 1, 8, 9)


def test_float_images_become_bytes_only_where_that_loses_nothing():
    """0.2 is 51 / 255, 0.5 is no shade of 256: a picture with it stays as it is unless kind="image" asks for bytes."""
    for dtype in (np.float16, np.float32, np.float64):
        shades = from_arrays(np.array([[[0.0, 7 / 255], [1.0, 0.2]]], dtype), [0])
        assert (shades.kind, shades.inputs.flatten().tolist()) == ("image", [0, 7, 255, 51])
    odd = np.array([[[0.0, 0.5], [1.0, 0.2]]], np.float32)
    assert torch.equal(from_arrays(odd, [0]).inputs, torch.from_numpy(odd))
    assert from_arrays(odd, [0], kind="image").inputs.flatten().tolist() == [0, 128, 255, 51]


def test_deep_images_get_their_channels_first_as_others_do():
    floats = np.linspace(0, 1, 2 * 5 * 6 * 3, dtype=np.float32).reshape(2, 5, 6, 3)
    assert torch.equal(from_arrays(floats, [0, 1]).inputs, torch.from_numpy(np.moveaxis(floats, 3, 1).copy()))
    assert from_arrays(np.zeros((2, 5, 6), np.uint16), [0, 1]).inputs.shape == (2, 1, 5, 6)
    signals = np.linspace(-1, 1, 2 * 5 * 3).reshape(2, 5, 3)
    assert from_arrays(signals, [0, 1]).inputs.shape == (2, 5, 3)
    assert from_arrays(floats, [0, 1], kind="array").inputs.shape == (2, 5, 6, 3)


def test_features_and_tokens_keep_their_kind():
    assert from_arrays(np.ones((3, 7)), [0, 1, 0]).kind == "features"
    whole = from_arrays(np.array([[63, 1], [41, 0], [57, 300]]), [0, 1, 0])
    assert whole.kind == "features"
    assert whole.inputs.tolist() == [[63.0, 1.0], [41.0, 0.0], [57.0, 300.0]]
    assert from_arrays(np.ones((3, 7), np.uint8), [0, 1, 0]).kind == "features"
    assert from_arrays(np.ones((3, 7), np.int32), [0, 1, 0], kind="tokens").kind == "tokens"
    assert from_arrays(np.ones((3, 7), np.int32), [0, 1, 0], vocabulary="ab").kind == "tokens"


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
        ({"inputs": np.ones((2, 2), complex), "labels": [0, 1]}, "wrong-shape", {"got": np.complex128}),
        ({"inputs": np.ones((2, 2)), "labels": [0, 1], "kind": "tokens"}, "wrong-shape", {"got": np.float64}),
        (
            {"inputs": np.full((2, 2), -1), "labels": [0, 1], "kind": "tokens"},
            "out-of-range",
            {"what": "tokens", "got": -1},
        ),
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


@pytest.mark.parametrize(("labels", "got", "example"), [([0, 2, 3], 3, 2), ([0, -1, 9], -1, 1)])
def test_a_label_without_a_class_is_named_with_its_example(labels: list[int], got: int, example: int) -> None:
    with raises(DataError, "out-of-range", got=got, example=example):
        Dataset(name="wards", inputs=torch.zeros(3, 2), labels=torch.tensor(labels), classes=("a", "b", "c"))
