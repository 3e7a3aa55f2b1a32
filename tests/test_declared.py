"""What the source imports is what pyproject.toml declares, so that an installed wheel finds all that it asks for."""

import ast
import importlib
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from fedatlas.atlas import PACKAGES as CONSE
from fedatlas.training import PACKAGES as LOGGERS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {"PIL": "pillow", "mlflow": "mlflow-skinny", "sklearn": "scikit-learn", "umap": "umap-learn"}
"""Of modules that are not called as their distribution."""
NEEDS_FLOWER = re.compile(r"fedatlas\.(flower|testing\.flower_grid)(\.|$)")
"""Modules that may import an extra's package as they are loaded: the extra ``flower`` is for them alone."""
BY_VARIABLE = {
    "algorithms/user_function.py",  # the user's own module
    "atlas/encoders/conse.py",  # its PACKAGES
    "flower/node/starter.py",  # modules of fedatlas and flwr, to warm them up
    "registry.py",  # modules of fedatlas
    "training/callbacks.py",  # its PACKAGES
}
"""Files that import by a variable name."""


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


CORE = {_name(own) for own in PROJECT["dependencies"]}
EXTRAS = {
    title: {_name(own) for own in needed}
    for title, needed in PROJECT["optional-dependencies"].items()
    if title != "dev"  # what users install never has these
}


def _distribution(module: str) -> str:
    top = module.partition(".")[0]
    return _name(DISTRIBUTIONS.get(top, top))


def _foreign(module: str) -> bool:
    return module.partition(".")[0] not in {*sys.stdlib_module_names, "fedatlas"}


def _modules() -> dict[str, ast.Module]:
    """Return the trees of the source's modules by their names."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def _imports(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield what statements import, and what is imported or looked for by a name that is written out."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write the whole name of what is imported"
            yield node.module or ""
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if str(node.module).startswith("fedatlas")
            )
        elif isinstance(node, ast.Call) and _by_name(node) and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)


def _by_name(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in ("import_module", "__import__", "find_spec")


def _at_once(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that run when the module is loaded: not in a function, not for type checkers alone."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = [*tree.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += node.orelse
            continue
        found.append(node)
        todo += ast.iter_child_nodes(node)
    return found


def test_every_import_is_of_a_declared_package() -> None:
    """In functions and for type checkers too, but for packages of ``dev``, which only this repository's tests have."""
    declared = CORE.union(*EXTRAS.values())
    undeclared = {
        (name, module)
        for name, tree in _modules().items()
        for module in _imports([*ast.walk(tree)])
        if _foreign(module) and _distribution(module) not in declared
    }
    assert undeclared == set()


def test_only_the_flower_room_needs_an_extra_to_be_loaded() -> None:
    """Another module imports an extra's package, or a module of that room that does so, inside a function only."""
    trees = _modules()
    loads = {name: {*_imports(_at_once(tree))} for name, tree in trees.items()}
    needy = {name for name, own in loads.items() if any(_foreign(it) and _distribution(it) not in CORE for it in own)}
    wanted = {_distribution(it) for name in needy for it in loads[name] if _foreign(it)} - CORE
    assert wanted <= EXTRAS["flower"]
    while more := {name for name, own in loads.items() if own & needy} - needy:
        needy |= more
    assert {name for name in needy if not NEEDS_FLOWER.match(name)} == set()


def test_packages_that_are_imported_by_a_variable_are_declared() -> None:
    """Files that import by a variable are listed here with what they import; their tables hold declared packages."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        if any(_by_name(call) and not isinstance(call.args[0], ast.Constant) for call in calls):
            found.add(path.relative_to(SOURCE / "fedatlas").as_posix())
    assert found == BY_VARIABLE
    assert {_name(own) for own in CONSE.values()} <= EXTRAS["conse"]
    assert {_distribution(module) for module in CONSE} <= EXTRAS["conse"]
    for module, package, extra in LOGGERS.values():
        assert package in EXTRAS[extra]
        assert _distribution(module) in CORE | EXTRAS[extra]


def test_the_modules_of_the_tables_are_called_as_they_are_declared() -> None:
    """The distributions above are those that installed packages name."""
    for module, distribution in DISTRIBUTIONS.items():
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        assert distribution in {_name(own) for own in importlib.metadata.packages_distributions()[module]}
