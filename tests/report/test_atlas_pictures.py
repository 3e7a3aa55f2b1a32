from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedatlas.atlas import Atlas
from fedatlas.errors import UsageError
from fedatlas.report.atlas_pictures import (
    domain_picture,
    domain_similarity,
    map_picture,
    save_picture,
    similarity_picture,
)
from fedatlas.seeds import generator
from raising import raises


def five() -> Atlas:
    """Unit rows of half "feature": x (1,0), x (0,1), y (0.6,0.8), y (1,0), z (-1,0)."""
    return Atlas(
        names=tuple("abcde"),
        halves={
            "feature": torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0], [5.0, 0.0], [-1.0, 0.0]]),
            "label": torch.ones(5, 3),
        },
        sizes=torch.tensor([1, 2, 3, 4, 5]),
        domains=("x", "x", "y", "y", "z"),
    )


def written(figure: object, path: Path) -> np.ndarray:
    save_picture(figure, path)  # type: ignore[arg-type]
    return np.asarray(Image.open(path).convert("RGB"))


def test_domain_similarity_is_the_mean_over_pairs_of_different_clients() -> None:
    """xx: a.b = 0. xy: (0.6 + 1 + 0.8 + 0) / 4 = 0.6. yy: 0.6. xz: (-1 + 0) / 2. yz: (-0.6 - 1) / 2. zz: no pair."""
    table = domain_similarity(five(), "feature")
    assert table.domains == ("x", "y", "z")
    expected = [[0.0, 0.6, -0.5], [0.6, 0.6, -0.8], [-0.5, -0.8, np.nan]]
    np.testing.assert_allclose(table.cosines, expected, atol=1e-6)


def test_domain_similarity_of_both_halves_is_their_mean() -> None:
    table = domain_similarity(five())
    np.testing.assert_allclose(table.cosines[0], [0.5, 0.8, 0.25], atol=1e-6)


def test_domain_similarity_leaves_out_clients_without_a_domain() -> None:
    table = domain_similarity(replace(five(), domains=("x", "x", None, "y", None)), "feature")
    np.testing.assert_allclose(table.cosines, [[0.0, 0.5], [0.5, np.nan]], atol=1e-6)
    with raises(UsageError, "domains-missing"):
        domain_similarity(replace(five(), domains=()))


def test_a_domain_of_one_client_has_no_similarity_inside_however_its_vector_rounds() -> None:
    count = 40
    atlas = Atlas(
        names=tuple(map(str, range(count))),
        halves={"feature": torch.randn(count, 7, generator=generator(0))},
        sizes=torch.ones(count).long(),
        domains=tuple(map(str, range(count))),
    )
    assert np.isnan(domain_similarity(atlas).cosines.diagonal()).all()
    assert [text.get_text() for text in domain_picture(atlas).axes[0].texts][:: count + 1] == ["–"] * count


def test_the_heat_map_holds_the_similarities_in_client_order() -> None:
    figure = similarity_picture(five(), "feature")
    heat = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(np.asarray(heat), five().similarity("feature").numpy())


def test_the_heat_map_marks_the_domains_along_both_axes() -> None:
    figure = similarity_picture(five())
    above, left = figure.axes[0].child_axes
    assert np.asarray(above.images[0].get_array()).tolist() == [[0, 0, 1, 1, 2]]
    assert np.asarray(left.images[0].get_array()).T.tolist() == [[0, 0, 1, 1, 2]]
    assert [text.get_text() for text in left.texts] == ["x", "y", "z"]
    assert similarity_picture(replace(five(), domains=())).axes[0].child_axes == []


def test_domains_that_take_turns_are_named_in_a_legend() -> None:
    count = 90
    atlas = Atlas(
        names=tuple(map(str, range(count))),
        halves={"feature": torch.randn(count, 4, generator=generator(0))},
        sizes=torch.ones(count).long(),
        domains=tuple("xyz"[i % 3] for i in range(count)),
    )
    (legend,) = similarity_picture(atlas).legends
    assert [text.get_text() for text in legend.get_texts()] == ["x", "y", "z"]


def test_the_table_of_domains_writes_its_numbers() -> None:
    texts = [text.get_text() for text in domain_picture(five(), "feature").axes[0].texts]
    assert texts == ["0.00", "0.60", "−0.50", "0.60", "0.60", "−0.80", "−0.50", "−0.80", "–"]


def test_the_map_puts_clients_where_the_atlas_does() -> None:
    figure = map_picture(five(), half="feature")
    (points,) = figure.axes[0].collections
    np.testing.assert_allclose(np.ma.getdata(points.get_offsets()), five().map2d(half="feature"))
    assert len({tuple(color) for color in np.asarray(points.get_facecolor())}) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["x", "y", "z"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_picture_is_the_same_bytes(ending: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_picture(map_picture(five()), tmp_path / f"{name}.{ending}")
    content = (tmp_path / f"one.{ending}").read_bytes()
    assert content == (tmp_path / f"two.{ending}").read_bytes()
    assert len(content) > 2000


def test_a_picture_shows_something_and_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    pixels = written(similarity_picture(five()), tmp_path / "new" / "picture.png")
    assert pixels.shape[0] > 600
    assert len(np.unique(pixels.astype(int) @ [65536, 256, 1])) > 20
    with raises(UsageError, "unknown-name", kind="format of a picture", got=".jpg"):
        save_picture(similarity_picture(five()), tmp_path / "picture.jpg")
