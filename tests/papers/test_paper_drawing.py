"""Pictures of the papers' scripts: where they are, and how a small version is marked."""

from pathlib import Path

import pytest

from papers.drawing import QUICK, blank, keep
from papers.options import Options


@pytest.mark.parametrize("quick", [False, True])
def test_a_picture_of_a_small_version_is_marked(
    quick: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = blank(2, 1)
    figure.add_subplot()
    keep(figure, tmp_path / "drawn" / "one.svg", Options(quick=quick))
    assert (QUICK in (tmp_path / "drawn" / "one.svg").read_text()) is quick
    assert capsys.readouterr().out == f"figure: {tmp_path / 'drawn' / 'one.svg'}\n"
