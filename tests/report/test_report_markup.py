import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from fedatlas.report.charts.colors import SEQUENTIAL, ramp
from fedatlas.report.charts.markup import cells, element, short, ticks
from fedatlas.report.charts.similarity import cosines


def test_ticks_are_round_numbers_that_enclose_the_values() -> None:
    """A step of (.62 - .13) / 4 = .1225 or more: .2, from 0 to .8."""
    assert ticks(0.13, 0.62, 5) == [0, 0.2, 0.4, 0.6, 0.8]


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0, 1e-9, 1e6])
def test_ticks_of_one_value_enclose_it(value: float) -> None:
    found = ticks(value, value)
    assert found[0] <= value <= found[-1]
    assert len(found) >= 2


def test_attributes_are_escaped_and_none_is_left_out() -> None:
    assert (
        element("b", "x", title='"<&', id=None, stroke_width=1.5)
        == '<b title="&quot;&lt;&amp;" stroke-width="1.5">x</b>'
    )


def test_coordinates_have_two_decimals_at_most() -> None:
    assert [short(value) for value in (3, 3.0, 2.5, 1 / 3, -0.125, 120.0)] == ["3", "3", "2.5", "0.33", "-0.12", "120"]


def test_a_ramp_goes_through_its_anchors() -> None:
    assert [ramp(("#000000", "#ff0000", "#ffffff"), v) for v in (0, 0.25, 0.5, 1, 2)] == [
        "#000000",
        "#800000",
        "#ff0000",
        "#ffffff",
        "#ffffff",
    ]


def test_a_heat_map_of_many_cells_is_a_picture_of_the_same_colours() -> None:
    values = np.linspace(0, 1, 40 * 30).reshape(40, 30)
    (image,) = cells(values, SEQUENTIAL, (0, 0, 300, 400), lambda i, j: "")
    content = base64.b64decode(re.findall(r"base64,(.*?)\"", image)[0])
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    assert pixels.shape == (40, 30, 3)
    few = cells(values[:2], SEQUENTIAL, (0, 0, 300, 20), lambda i, j: "")
    expected = [re.findall(r'fill="#(.*?)"', cell)[0] for cell in few]
    assert [bytes(pixel).hex() for pixel in pixels[:2].reshape(-1, 3)] == expected


def test_a_vector_of_zeros_is_like_no_other() -> None:
    """(1, 0) and (1, 1): 1 / sqrt 2."""
    matrix = cosines(np.array([[1, 0], [1, 1], [0, 0]]))
    np.testing.assert_allclose(matrix, [[1, 0.5**0.5, 0], [0.5**0.5, 1, 0], [0, 0, 0]], atol=1e-12)
