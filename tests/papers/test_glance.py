"""The pictures that say at a glance what came out, from the numbers that are kept."""

from pathlib import Path

import pytest

from fedatlas.errors import DataError
from papers import glance
from papers.kept_results import read_packed
from raising import raises

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


@pytest.mark.parametrize("name", glance.PICTURES)
def test_a_picture_is_drawn_from_the_kept_numbers_and_shown_on_its_page(name: str) -> None:
    figure = glance.PICTURES[name](read_packed(EVIDENCE / f"{name}.json"))
    drawn = [axes for axes in figure.axes if axes.lines or axes.patches]
    assert drawn == figure.axes
    assert f"](glance-{name}.png)" in (EVIDENCE / f"{name}.md").read_text(encoding="utf-8")


def test_the_gain_that_is_drawn_is_the_difference_of_means_over_seeds() -> None:
    """Two seeds of FedGCR at 0.5 and 0.6 and one of FedAvg at 0.3, of the backbone that ships: 25 points."""
    kept = {}
    for data in ("digit-five", "pacs"):
        for factor in (1, 5, 10):
            for number, (method, value) in enumerate((("fedgcr", 0.5), ("fedgcr", 0.6), ("fedavg", 0.3))):
                name = f"{data}, factor {factor}, {method}"
                kept[f"{name}{number}"] = {"name": name, "settings": {"model": {}}, "numbers": {"domain_mean": value}}
                other = {"weights": "other"}
                kept[f"{name}o{number}"] = {"name": name, "settings": {"model": other}, "numbers": {"domain_mean": 0.9}}
    shown = [text.get_text() for text in glance.fedgcr(kept).axes[0].texts]
    assert shown[6:] == ["+25.0"] * 6


def test_a_training_that_is_not_there_is_named() -> None:
    with raises(DataError, "data-missing", got="CIFAR-10 FedPCE"):
        glance.fedpce({})
