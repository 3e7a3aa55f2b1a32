"""What leaves a client, as parts declare it and as each algorithm's page tells it."""

import re
from pathlib import Path

import pytest

from atlases import by_hand, turned_atlas
from fedatlas.algorithms import ALGORITHMS, build_algorithm

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
OPTIONS = {"client2vec": {"atlas": by_hand(), "train": True}, "grouped": {"atlas": turned_atlas()}}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_page_tells_every_tensor_that_leaves_a_client(name: str) -> None:
    section = (PAGES / f"{name}.md").read_text().split("## What leaves a client\n")[1].split("\n## ")[0]
    rows = [tuple(cell.strip() for cell in row.split("|")) for row in re.findall(r"^\| (.*) \|$", section, re.M)]
    disclosures = build_algorithm(name, **OPTIONS.get(name, {})).disclosures()
    assert [row for row in rows if row[0] != "tensor"] == [disclosure.row() for disclosure in disclosures]
