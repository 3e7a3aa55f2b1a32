"""The shape of the house: few entries at the first level, no import cycle, and tests that mirror the rooms."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.house import House

ROOT = Path(__file__).parent.parent
HOUSE = House(ROOT)


def test_no_modules_import_each_other() -> None:
    assert HOUSE.cycles() == []


def test_only_a_run_s_methods_may_import_from_above() -> None:
    """``Run.report``, ``adapt``, ``model`` and ``prepare`` import inside; ``train`` finds names of algorithms."""
    assert {importer for importer, _ in HOUSE.declared} == {"fedatlas.runs.run", "fedatlas.training.train"}
    assert {imported.split(".")[1] for _, imported in HOUSE.declared} == {"adapting", "algorithms", "report"}


def test_nothing_inside_imports_the_package_s_door() -> None:
    """The door imports all rooms, so whoever imports it from inside is in a cycle with them."""
    assert [name for name, found in HOUSE.imports.items() if "fedatlas" in found] == []


def test_the_first_level_stays_small() -> None:
    assert len(HOUSE.first_level()) <= 18


def test_tests_mirror_the_rooms() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "fedatlas").glob("*/__init__.py")}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders == rooms | {"papers"}


def test_the_design_page_draws_every_room() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    drawn = re.findall(r"^  (\w+)(?:/|\.py) ", page.split("```text\nfedatlas/")[1].split("```")[0], re.M)
    assert sorted(drawn) == HOUSE.first_level()
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    layers = [name.strip() for layer in contract for name in layer.split("|")]
    assert [f"fedatlas.{name}" for name in drawn] == layers


OPEN = {"fedatlas.cli.app", "fedatlas.cli.flower", "fedatlas.cli.train_config", "fedatlas.flower.node.app"}
"""Files whose function the door cannot offer: the file, or another function of the door, has the same name."""


def test_papers_benchmarks_and_tests_come_in_by_the_doors() -> None:
    """A room's own tests may open its files."""
    files = [path for folder in ("tests", "papers", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    found = [(path.relative_to(ROOT), name) for path in files for name in _opened(path)]
    past = [
        f"{path}: {name}"
        for path, name in found
        if name not in OPEN and not (path.parts[0] == "tests" and name.split(".")[1] in path.parts[1:-1])
    ]
    assert past == []


def _opened(path: Path) -> Iterator[str]:
    """Yield the inner files that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").count(".") > 1:
            yield from [node.module] if str(node.module).startswith("fedatlas.") else []
        elif isinstance(node, ast.Import):
            yield from (own.name for own in node.names if own.name.startswith("fedatlas.") and own.name.count(".") > 1)
