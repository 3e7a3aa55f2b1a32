"""The recipes by name, as their files register them."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedatlas.algorithms
from fedatlas.algorithms import ALGORITHMS, build_algorithm, standalone
from fedatlas.errors import UsageError

TABLE = (Path(__file__).parents[2] / "docs/algorithms/README.md").read_text()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_recipe_is_found_by_its_name_its_file_and_its_text(name: str) -> None:
    recipe, entry = ALGORITHMS[name], ALGORITHMS.entries[name]
    assert recipe is getattr(fedatlas.algorithms, name)
    assert entry.module == recipe.__module__ == f"fedatlas.algorithms.{name}"
    assert entry.parameters == tuple(inspect.signature(recipe).parameters)
    assert (inspect.getdoc(recipe) or "").startswith(entry.summary)
    assert entry.facts == ALGORITHMS.facts(name)
    assert entry.facts.keys() <= {"changes", "paper", "over", "needs", "model", "uses", "section"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_readme_says_of_a_recipe_what_its_decorator_says(name: str) -> None:
    facts = ALGORITHMS.facts(name)
    row = re.search(rf"^\| \[`{name}`\].*$", TABLE, re.M)
    assert row is not None
    _, _, changes, paper, _ = (cell.strip() for cell in row[0].split("|"))
    assert changes.startswith(facts.get("changes", ""))
    assert ("of any base" in changes) == ("over" in facts)
    assert paper == facts["paper"]


def test_what_an_algorithm_builds_on_is_one_of_its_options() -> None:
    for entry in ALGORITHMS.entries.values():
        wanted = {*entry.facts.get("needs", ()), *([entry.facts["over"]] if "over" in entry.facts else [])}
        assert wanted <= set(entry.parameters), entry.name


def test_the_base_comes_first_and_what_needs_an_atlas_is_left_out() -> None:
    assert standalone()[0] == "fedavg"
    assert sorted(ALGORITHMS.keys() - set(standalone())) == ["client2vec", "grouped"]
    with pytest.raises(UsageError) as caught:
        build_algorithm("client2vec")
    assert (caught.value.code, caught.value.fields["option"]) == ("missing-option", "atlas")


def test_the_package_has_its_recipes_and_nothing_that_is_not_there() -> None:
    assert set(ALGORITHMS) <= set(dir(fedatlas.algorithms))
    assert not hasattr(fedatlas.algorithms, "fedprocks")


def test_names_are_known_before_torch_and_the_recipes_are_loaded() -> None:
    """The package's door is left out: what it imports is another test's matter."""
    lines = (
        "import sys, types",
        "door = sys.modules['fedatlas'] = types.ModuleType('fedatlas')",
        f"door.__path__ = [{str(Path(inspect.getfile(fedatlas)).parent)!r}]",
        "from fedatlas.algorithms.registry import standalone",
        "standalone()",
        "print([name for name in sys.modules if name == 'torch' or name.startswith('fedatlas.algorithms.fed')])",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
