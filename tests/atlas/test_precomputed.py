from pathlib import Path

import numpy as np
import pytest
import torch

from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.precomputed import Precomputed
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import generator
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
    with pytest.raises(DataError, match="examples hold NaN"):
        Precomputed(path=tmp_path / "mine.npz").encode(FEDERATION)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"examples": np.zeros((3, 6), np.float32)},
            rf"examples is torch.float32 of shape \(3, 6\), but .* {COUNT} ex",
        ),
        ({"classes": np.zeros((2, 6), np.float32)}, r"classes is torch.float32 of shape \(2, 6\), but .* 3 classes"),
        ({"examples": np.zeros((COUNT, 6), np.int64)}, "examples is torch.int64 .*one row of floats"),
        ({"examples": np.zeros((COUNT, 2, 3), np.float32)}, r"of shape \(\d+, 2, 3\)"),
        ({"classes": None}, r"has no 'classes' but \['examples'\]"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, np.ndarray | None], message: str
) -> None:
    examples, classes = vectors()
    arrays = {"examples": examples.numpy(), "classes": classes.numpy()} | change
    np.savez(tmp_path / "mine.npz", **{key: array for key, array in arrays.items() if array is not None})
    with pytest.raises(DataError, match=message):
        Precomputed(path=tmp_path / "mine.npz").encode(FEDERATION)


def test_a_file_that_is_not_there_or_not_readable_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.npz: there is no such file"):
        Precomputed(path=tmp_path / "gone.npz").encode(FEDERATION)
    with pytest.raises(UsageError, match=r"must be a file that ends in \.npz or \.safetensors"):
        Precomputed(path=tmp_path / "mine.csv").encode(FEDERATION)
    (tmp_path / "broken.safetensors").write_bytes(b"not a tensor")
    with pytest.raises(DataError, match=r"broken\.safetensors: cannot be read"):
        Precomputed(path=tmp_path / "broken.safetensors").encode(FEDERATION)
