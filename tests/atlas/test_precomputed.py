from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.precomputed import Precomputed
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import generator
from raising import raises
from tiny import blob_federation

FEDERATION = blob_federation()
COUNT = len(FEDERATION.data)
TRAINED = torch.cat([client.train for client in FEDERATION])


def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    rng = generator(0, "precomputed")
    return torch.randn(COUNT, 6, generator=rng), torch.randn(3, 6, generator=rng)


def test_vectors_come_from_an_npz_file_and_only_trained_examples_keep_theirs(tmp_path: Path) -> None:
    examples, classes = vectors()
    np.savez(tmp_path / "mine.npz", examples=examples.double().numpy(), classes=classes.numpy())
    found = Precomputed(path=tmp_path / "mine.npz").encode(FEDERATION)
    torch.testing.assert_close(found.examples[TRAINED], examples[TRAINED])
    torch.testing.assert_close(found.classes, classes)
    tested = torch.ones(COUNT, dtype=torch.bool)
    tested[TRAINED] = False
    assert not bool(found.examples[tested].any())
    assert found.encoder.startswith("precomputed mine.npz (")


def test_saved_embeddings_are_read_again(tmp_path: Path) -> None:
    examples, classes = vectors()
    Embeddings(encoder="any", examples=examples, classes=classes).save(tmp_path / "saved.safetensors")
    found = Precomputed(path=str(tmp_path / "saved.safetensors"), normalize=True).encode(FEDERATION)
    torch.testing.assert_close(found.examples[TRAINED], torch.nn.functional.normalize(examples[TRAINED], dim=1))
    torch.testing.assert_close(found.classes.norm(dim=1), torch.ones(3))


def test_other_vectors_under_the_same_file_name_have_another_name(tmp_path: Path) -> None:
    examples, classes = vectors()
    names = []
    for scale in (1, 2):
        np.savez(tmp_path / "mine.npz", examples=scale * examples.numpy(), classes=classes.numpy())
        names.append(Precomputed(path=tmp_path / "mine.npz").encode(FEDERATION).encoder)
    assert names[0] != names[1]


def test_what_is_missing_for_examples_that_nobody_trains_on_does_not_matter(tmp_path: Path) -> None:
    examples, classes = vectors()
    partly = torch.full_like(examples, float("nan"))
    partly[TRAINED] = examples[TRAINED]
    np.savez(tmp_path / "mine.npz", examples=partly.numpy(), classes=classes.numpy())
    assert bool(Precomputed(path=tmp_path / "mine.npz").encode(FEDERATION).examples.isfinite().all())
    partly[TRAINED[0]] = float("nan")
    np.savez(tmp_path / "mine.npz", examples=partly.numpy(), classes=classes.numpy())
    with raises(DataError, "not-finite", what="examples"):
        Precomputed(path=tmp_path / "mine.npz").encode(FEDERATION)


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        (
            {"examples": np.zeros((3, 6), np.float32)},
            "wrong-shape",
            {"what": "examples", "shape": (3, 6)},
        ),
        ({"classes": np.zeros((2, 6), np.float32)}, "wrong-shape", {"what": "classes", "shape": (2, 6)}),
        ({"examples": np.zeros((COUNT, 6), np.int64)}, "wrong-shape", {"what": "examples", "got": torch.int64}),
        (
            {"examples": np.zeros((COUNT, 2, 3), np.float32)},
            "wrong-shape",
            {"what": "examples", "shape": (COUNT, 2, 3)},
        ),
        ({"classes": None}, "content-unfit", {"missing": "classes", "got": ["examples"]}),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, np.ndarray | None], code: str, fields: dict[str, Any]
) -> None:
    examples, classes = vectors()
    arrays = {"examples": examples.numpy(), "classes": classes.numpy()} | change
    np.savez(tmp_path / "mine.npz", **{key: array for key, array in arrays.items() if array is not None})
    with raises(DataError, code, **fields):
        Precomputed(path=tmp_path / "mine.npz").encode(FEDERATION)


def test_a_file_that_is_not_there_or_not_readable_is_named(tmp_path: Path) -> None:
    with raises(UsageError, "file-missing", path=str(tmp_path / "gone.npz")):
        Precomputed(path=tmp_path / "gone.npz").encode(FEDERATION)
    with raises(UsageError, "file-ending", path=str(tmp_path / "mine.csv")):
        Precomputed(path=tmp_path / "mine.csv").encode(FEDERATION)
    (tmp_path / "broken.safetensors").write_bytes(b"not a tensor")
    with raises(DataError, "file-unreadable", path=str(tmp_path / "broken.safetensors")):
        Precomputed(path=tmp_path / "broken.safetensors").encode(FEDERATION)
