"""Things by name: a decorator puts a thing into its registry, in the file that defines it.

A registry can list its names and their first lines without importing what it names: it reads the files' text. So the
command line answers a question about names before torch is loaded.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from fedatlas.errors import unknown_name

T = TypeVar("T", bound=Callable[..., Any])
Thing = TypeVar("Thing", bound=Callable[..., Any])
ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """One registered thing, as the text of its file shows it."""

    name: str
    module: str
    summary: str
    """The first line of its docstring."""
    parameters: tuple[str, ...]
    """Its parameters, or the fields of its class."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The constants that its decorator was given."""


class Registry(Mapping[str, T], Generic[T]):
    """The things of one kind, by name, in the order of their files and lines.

    ``marker`` is the decorator's name in the files of ``package``; a thing's name is its function's or class's unless
    the decorator's first argument says otherwise.
    """

    def __init__(self, kind: str, marker: str, package: str) -> None:
        self.kind, self.marker, self.package = kind, marker, package
        self._things: dict[str, T] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def register(self, name: str | None = None, **facts: Any) -> Callable[[Thing], Thing]:
        """Return a decorator that registers a function or class and returns it unchanged."""

        def decorate(thing: Thing) -> Thing:
            title = name or thing.__name__
            self._things[title], self._facts[title] = cast(T, thing), facts
            return thing

        return decorate

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """What the package's files register, read from their text: nothing is imported."""
        folder = ROOT.joinpath(*self.package.split(".")[1:])
        found: dict[str, Entry] = {}
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if f"@{self.marker}" in text:
                found |= {entry.name: entry for entry in self._read(path, text)}
        return found

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return what a thing's decorator was given."""
        self[name]
        return self._facts[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._things:
            if name not in self.entries:
                raise unknown_name(self.kind, name, self)
            importlib.import_module(self.entries[name].module)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things or name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.entries, *self._things)))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _read(self, path: Path, text: str) -> Iterator[Entry]:
        module = ".".join(("fedatlas", *path.relative_to(ROOT).with_suffix("").parts))
        nodes = ast.parse(text).body
        classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        for node in nodes:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            for mark in node.decorator_list:
                call = mark if isinstance(mark, ast.Call) else None
                marker = call.func if call is not None else mark
                if not isinstance(marker, ast.Name) or marker.id != self.marker:
                    continue
                given = call.args[0] if call is not None and call.args else None
                name = given.value if isinstance(given, ast.Constant) else node.name
                facts = {} if call is None else {k.arg: _constant(k.value) for k in call.keywords if k.arg}
                summary = (ast.get_docstring(node) or "").partition("\n")[0]
                yield Entry(str(name), module, summary, _parameters(node, classes), facts)


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _parameters(node: ast.FunctionDef | ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> tuple[str, ...]:
    """Return a function's parameters, or the fields of a dataclass with those of its bases in the same file."""
    if isinstance(node, ast.FunctionDef):
        return tuple(a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
    bases = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and "ClassVar" not in ast.unparse(n.annotation)]
    own = [n.target.id for n in fields if isinstance(n.target, ast.Name)]
    return tuple(dict.fromkeys([name for base in bases for name in _parameters(base, classes)] + own))


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__``: a name is imported when it is first used.

    The names and their modules are those of the package's ``if TYPE_CHECKING:`` block, which type checkers read too. A
    package without ``__all__`` offers its modules.
    """
    module = sys.modules[package]
    file = str(module.__file__)

    def get(name: str) -> Any:
        home = _exports(file).get(name, package if name in offered() else None)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if home == package:
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(home), name)
        setattr(module, name, value)
        return value

    def offered() -> list[str]:
        return sorted(vars(module).get("__all__") or _modules(file))

    return get, offered


def exported(package: str) -> list[str]:
    """Return the names that a package offers and imports when they are first used."""
    return list(_exports(str(sys.modules[package].__file__)))


@cache
def _modules(file: str) -> list[str]:
    """Return the modules and packages beside a package's ``__init__``."""
    paths = (*Path(file).parent.glob("*.py"), *(path.parent for path in Path(file).parent.glob("*/__init__.py")))
    return [path.stem for path in paths if not path.stem.startswith("_")]


@cache
def _exports(file: str) -> dict[str, str]:
    blocks = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imports if node.module for alias in node.names}
