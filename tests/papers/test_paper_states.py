"""The page that lists the papers' tables and figures: all of them, each with a state, and commands that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence" / "papers.md").read_text(encoding="utf-8")
STATES = ("**done**", "**in part**", "**needs a GPU**", "**not measurable here**")
TITLES = {"fedpce": "FedPCE", "client2vec": "Client2Vec", "fedgcr": "FedGCR"}


def rows(paper: str) -> list[list[str]]:
    """Return the cells of each line of a paper's table."""
    part = PAGE.split(f"## {TITLES[paper]}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith(("| Table", "| Figure"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("paper", TITLES)
def test_each_script_of_a_paper_is_listed_and_each_listed_command_is_there(paper: str) -> None:
    files = (ROOT / "papers" / paper).glob("*.py")
    scripts = {path.stem for path in files if re.match(r"(table|figure)_\d+", path.stem)}
    named = {name for row in rows(paper) for name in re.findall(r"`([a-z_0-9]+)`", row[2])}
    listed = {f"{kind.lower()}_{number}" for row in rows(paper) for kind, number in _titles(row[0])}
    assert listed == scripts
    assert all((ROOT / "papers" / paper / f"{name}.py").exists() for name in named)
    assert all(any(state in row[3] for state in STATES) for row in rows(paper))


def test_there_are_39() -> None:
    assert sum(len(rows(paper)) for paper in TITLES) == 39


def _titles(cell: str) -> list[tuple[str, str]]:
    kind, _, numbers = cell.partition(" ")
    return [(kind.rstrip("s"), number) for number in numbers.split(", ")]
