from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedatlas.atlas.encoders.base import BatchEncoder
from fedatlas.atlas.encoders.cache import cache_file
from fedatlas.data import CACHE_VARIABLE, DEFAULT_FOLDER, Client, Dataset, Federation, GaussianNoise, from_arrays
from fedatlas.seeds import generator

SEEN: list[int] = []
"""The batches that were computed, by their numbers of examples."""


@dataclass(frozen=True, kw_only=True)
class Counted(BatchEncoder):
    """Means of channels; remembers what it was asked to compute."""

    name: ClassVar[str] = "counted"
    version: int = 1

    def identity(self) -> str:
        return f"counted {self.version}"

    def embed(self, data: Dataset, inputs: Tensor) -> Tensor:
        SEEN.append(len(inputs.flatten(1).unique(dim=0)))  # a small batch is filled up with its own examples
        return inputs.float().mean((2, 3)) + self.version

    def embed_classes(self, data: Dataset) -> Tensor:
        return torch.eye(len(data.classes))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    SEEN.clear()
    return tmp_path / "cache" / "embeddings"


def pictures() -> Federation:
    images = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8, generator=generator(0, "cache"))
    data = from_arrays(images, [0, 1] * 4, name="pictures", classes=["cat", "dog"])
    members = (
        Client(name="a", train=torch.tensor([0, 1, 2]), test=torch.tensor([3])),
        Client(name="b", train=torch.tensor([4, 5]), test=torch.tensor([6])),
    )
    return Federation(data=data, clients=members)


def test_the_same_content_is_encoded_once() -> None:
    first = Counted().encode(pictures())
    second = Counted().encode(pictures())
    assert SEEN == [5]
    assert torch.equal(first.examples, second.examples)
    assert torch.equal(first.classes, second.classes)
    assert first.encoder == second.encoder == "counted 1"


def brighter(federation: Federation) -> Federation:
    images = federation.data.inputs.clone()
    images[5, 0, 0, 0] ^= 1
    return replace(federation, data=replace(federation.data, inputs=images))


def other_examples(federation: Federation) -> Federation:
    last = replace(federation.clients[1], train=torch.tensor([4, 6]))
    return replace(federation, clients=(federation.clients[0], last))


def other_names(federation: Federation) -> Federation:
    return replace(federation, data=replace(federation.data, classes=("cat", "hog")))


def degraded(federation: Federation) -> Federation:
    return federation.with_transforms([None, GaussianNoise(variance=0.1)])


@pytest.mark.parametrize("change", [brighter, other_examples, other_names, degraded])
def test_other_content_is_encoded_anew(change: Callable[[Federation], Federation]) -> None:
    Counted().encode(pictures())
    Counted().encode(change(pictures()))
    assert sum(SEEN) == 10
    Counted().encode(change(pictures()))
    assert sum(SEEN) == 10


def test_another_version_of_the_encoder_has_its_own_vectors() -> None:
    old, new = Counted().encode(pictures()), Counted(version=2).encode(pictures())
    assert SEEN == [5, 5]
    torch.testing.assert_close(new.examples[:3], old.examples[:3] + 1)


def test_what_no_client_trains_on_does_not_matter() -> None:
    federation = pictures()
    Counted().encode(federation)
    images = federation.data.inputs.clone()
    images[7] = 0
    Counted().encode(replace(federation, data=replace(federation.data, inputs=images)))
    assert SEEN == [5]


def test_normalized_vectors_come_from_the_same_file(folder: Path) -> None:
    Counted().encode(pictures())
    found = Counted(normalize=True).encode(pictures())
    assert SEEN == [5]
    assert len(list(folder.iterdir())) == 1
    torch.testing.assert_close(found.examples[:3].norm(dim=1), torch.ones(3))


def test_a_broken_file_is_made_anew(folder: Path) -> None:
    good = Counted().encode(pictures())
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert torch.equal(Counted().encode(pictures()).examples, good.examples)
    Counted().encode(pictures())
    assert SEEN == [5, 5]


def test_a_cache_that_cannot_be_written_is_only_a_warning(folder: Path) -> None:
    folder.parent.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match=r"could not be kept in .*Set FEDATLAS_CACHE"):
        found = Counted().encode(pictures())
    assert bool(found.examples[:3].ne(0).all())


def test_without_cache_nothing_is_written(folder: Path) -> None:
    Counted(cache=False).encode(pictures())
    assert not folder.exists()


def test_the_folder_is_in_the_home_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_file("key") == Path(DEFAULT_FOLDER).expanduser() / "embeddings" / "key.safetensors"
