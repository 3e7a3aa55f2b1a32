"""Count what makes a code base easy or hard to find one's way in, for one version or several side by side.

    python benchmarks/house.py                                # this tree
    python benchmarks/house.py --source before --source .     # two trees, before and after
    python benchmarks/house.py --list                         # also name what is counted

Everything is read from the files' text; nothing is imported. An import counts wherever it is written: at the top, in a
function or for types only.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LONGEST, MOST_PARAMETERS = 60, 8
MOST_LISTED = 100
ENTRANCES = ("__init__", "__main__")
"""Modules of the first level that are not counted: every package has them."""
Graph = Mapping[str, frozenset[str]]
"""The modules that each module imports."""


@dataclass(frozen=True)
class House:
    """One version's source tree."""

    root: Path
    package: str = "fedatlas"

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """The package's modules by their dotted name."""
        source = self.root / "src"
        return {_dotted(path.relative_to(source)): _parse(path) for path in _python(source / self.package)}

    @cached_property
    def imports(self) -> Graph:
        """Which modules of the package each one imports."""
        packages = {_dotted(p.relative_to(self.root / "src")) for p in (self.root / "src").rglob("__init__.py")}
        return {
            name: frozenset(_imported(name, tree, self.modules.keys(), name in packages) - {name})
            for name, tree in self.modules.items()
        }

    def first_level(self) -> list[str]:
        """Return the modules and packages directly under the package."""
        depth = {name.split(".")[1] for name in self.modules if "." in name}
        return sorted(depth - {*ENTRANCES})

    def with_one_importer(self) -> list[str]:
        """Return the modules that exactly one other module imports."""
        importers = Counter(name for found in self.imports.values() for name in found)
        return sorted(name for name, count in importers.items() if count == 1)

    @cached_property
    def declared(self) -> set[tuple[str, str]]:
        """The imports that the tree's contract of layers declares as exceptions: who imports whom."""
        project = self.root / "pyproject.toml"
        tools = tomllib.loads(project.read_text()).get("tool", {}) if project.exists() else {}
        contracts = tools.get("importlinter", {}).get("contracts", [])
        pairs = (line.split(" -> ") for contract in contracts for line in contract.get("ignore_imports", []))
        return {(importer, imported) for importer, imported in pairs}

    def cycles(self) -> list[str]:
        """Return each group of modules that import each other, directly or through others; declared imports apart."""
        kept = {
            name: frozenset(other for other in found if (name, other) not in self.declared)
            for name, found in self.imports.items()
        }
        return [", ".join(group) for group in cycles(kept)]

    def lines(self, folder: str) -> int:
        """Return the lines of all Python files in a folder."""
        return sum(len(path.read_text().splitlines()) for path in _python(self.root / folder))

    def long_functions(self) -> list[str]:
        """Return the functions with more than ``LONGEST`` lines."""
        return [f"{where} ({size})" for where, node in self._functions() if (size := _size(node)) > LONGEST]

    def wide_functions(self) -> list[str]:
        """Return the functions with more than ``MOST_PARAMETERS`` parameters, self and cls not counted."""
        return [f"{where} ({n})" for where, node in self._functions() if (n := _num_parameters(node)) > MOST_PARAMETERS]

    def broad_excepts(self) -> list[str]:
        """Return the handlers of any exception."""
        return [
            f"{name}:{node.lineno}"
            for name, tree in self.modules.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ExceptHandler) and _is_broad(node)
        ]

    def matches(self) -> list[str]:
        """Return the calls in tests that check the words of an error."""
        return [
            f"{path.relative_to(self.root)}:{node.lineno}"
            for path in _python(self.root / "tests")
            for node in ast.walk(_parse(path))
            if isinstance(node, ast.Call) and any(keyword.arg == "match" for keyword in node.keywords)
        ]

    def _functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for name, tree in self.modules.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{name}.{node.name}", node


Counted = Callable[[House], list[str]]
LISTS: dict[str, Counted] = {
    "modules and rooms at the first level": House.first_level,
    "modules with one importer": House.with_one_importer,
    "import cycles": House.cycles,
    f"functions over {LONGEST} lines": House.long_functions,
    f"functions with more than {MOST_PARAMETERS} parameters": House.wide_functions,
    "broad excepts": House.broad_excepts,
    "`match=` in tests": House.matches,
}
FOLDERS = ("src", "tests", "papers")


def cycles(imports: Graph) -> list[list[str]]:
    """Return the groups of modules that can reach each other, largest first.

    >>> cycles({"a": frozenset({"b"}), "b": frozenset({"a"}), "c": frozenset({"a"})})
    [['a', 'b']]
    """
    reached = {name: _reach(name, imports) for name in imports}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return sorted((sorted(group) for group in groups if group), key=lambda group: (-len(group), group))


def _reach(name: str, imports: Graph) -> set[str]:
    """Return the modules that one imports, directly or through others; itself only if it is in a cycle."""
    found: set[str] = set()
    left = [*imports.get(name, ())]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += imports.get(one, ())
    return found


def _imported(name: str, tree: ast.Module, known: Iterable[str], is_package: bool) -> set[str]:
    names = set(known)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & names
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            found |= inside & names
            if inside - names:
                found |= {base} & names
    return found


def _is_broad(node: ast.ExceptHandler) -> bool:
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def _size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    bound = bool(positional) and positional[0].arg in ("self", "cls")
    return len(positional) - bound + len(given.kwonlyargs) + bool(given.vararg) + bool(given.kwarg)


def _python(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def table(houses: Mapping[str, House]) -> str:
    """Return a markdown table with a column for each tree."""
    rows = {name: [len(count(house)) for house in houses.values()] for name, count in LISTS.items()}
    rows |= {f"lines in {folder}": [house.lines(folder) for house in houses.values()] for folder in FOLDERS}
    lines = ["| | " + " | ".join(houses) + " |", "|---|" + "---|" * len(houses)]
    lines += [f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + " |" for name, counts in rows.items()]
    return "\n".join(lines)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parent.parent
    parser.add_argument(
        "--source", type=Path, action="append", help="a tree; may be given many times; default this one"
    )
    parser.add_argument("--list", action="store_true", help="also name what is counted, for the last tree")
    options = parser.parse_args()
    houses = {str(folder): House(folder) for folder in options.source or ()} or {"this tree": House(here)}
    print(table(houses))
    if options.list:
        last = list(houses.values())[-1]
        for name, count in LISTS.items():
            print("\n".join(["", f"{name}:", *(f"- {item}" for item in count(last)[:MOST_LISTED])]))


if __name__ == "__main__":
    main()
