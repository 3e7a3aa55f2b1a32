import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.atlas.encoders.conse import PACKAGES, Conse
from fedatlas.data import CACHE_VARIABLE, Client, Dataset, Federation, from_arrays, from_texts
from fedatlas.errors import UsageError
from raising import raises

WEIGHTS = [name for name in PACKAGES if name != "transformers"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def features() -> Conse:
    """The encoder with features; loaded once, skipped where the weights are not installed."""
    for name in PACKAGES:
        pytest.importorskip(name)
    return Conse()


@pytest.fixture(scope="module")
def convex(features: Conse) -> Conse:
    """The encoder that places images among the texts."""
    return replace(features, features=False)


def one_client(data: Dataset) -> Federation:
    everything = torch.arange(len(data))
    return Federation(data=data, clients=(Client(name="all", train=everything, test=everything),))


def photographs() -> Tensor:
    """Squares of scikit-learn's two photographs, a Chinese palace and a flower."""
    from sklearn.datasets import load_sample_images

    palace, flower = (torch.tensor(image).permute(2, 0, 1) for image in load_sample_images().images)
    return torch.stack([palace[:, :427, 100:527], flower[:, :427, 100:527]])


def test_missing_packages_are_named_with_two_ways_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WEIGHTS:
        monkeypatch.setitem(sys.modules, name, None)
    data = from_arrays(torch.zeros(2, 3, 8, 8), [0, 1])
    with raises(UsageError, "package-missing") as caught:
        Conse().encode(one_client(data))
    assert "fedatlas[conse]" in str(caught.value)
    assert "--no-deps 'efficientnet" in str(caught.value)


def test_conse_places_photographs_among_the_names_of_what_they_show(convex: Conse) -> None:
    data = from_arrays(photographs(), [0, 1], classes=["palace", "daisy"])
    found = convex.encode(one_client(data))
    assert found.examples.shape == found.classes.shape == (2, 512)
    cosines = F.normalize(found.examples, dim=1) @ F.normalize(found.classes, dim=1).T
    assert cosines.argmax(1).tolist() == [0, 1]
    torch.testing.assert_close(found.classes.norm(dim=1), torch.full((2,), 10.0))


def test_features_are_as_wide_as_the_texts_and_as_long_as_clip_s(features: Conse, convex: Conse) -> None:
    data = from_arrays(photographs(), [0, 1], classes=["palace", "daisy"])
    found = features.encode(one_client(data))
    assert found.examples.shape == (2, 512)
    assert bool((found.examples.norm(dim=1) - 10).abs().lt(5).all())
    assert found.encoder != convex.identity()


def test_sentences_that_mean_the_same_are_near(features: Conse) -> None:
    texts = ["a cat sleeps", "a kitten naps", "stocks fell again"]
    found = features.encode(one_client(from_texts(texts, labels=["x", "y", "z"]))).examples
    cosines = F.normalize(found, dim=1) @ F.normalize(found, dim=1).T
    assert float(cosines[0, 1]) > float(cosines[0, 2]) + 0.2
