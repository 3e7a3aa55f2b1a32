"""What the tab key offers: ``dir`` of a room is what the room offers, and each of the names is there."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fedatlas
from fedatlas.algorithms import ALGORITHMS
from fedatlas.registry import exported

HOME = Path(fedatlas.__file__).parent
ROOMS = ["fedatlas", *(f"fedatlas.{path.parent.name}" for path in sorted(HOME.glob("*/__init__.py")))]


def _offered(room: str) -> set[str]:
    """What a room offers: its ``__all__``, the recipes, or its modules where it only holds them."""
    module = importlib.import_module(room)
    if room == "fedatlas.algorithms":
        return {"ALGORITHMS", "build_algorithm", "recipe", "standalone", *ALGORITHMS, *exported(room)}
    files = {path.stem for path in Path(str(module.__file__)).parent.glob("[!_]*.py")}
    packages = {path.parent.name for path in Path(str(module.__file__)).parent.glob("*/__init__.py")}
    return {*vars(module).get("__all__", files | packages)}


@pytest.mark.parametrize("room", ROOMS)
def test_dir_of_a_room_is_what_it_offers(room: str) -> None:
    """All of it before a name is used, and no name of how it is made; each name is there."""
    module = importlib.import_module(room)
    assert dir(module) == sorted(_offered(room))
    assert [name for name in dir(module) if getattr(module, name, None) is None] == []
    assert dir(module) == sorted(_offered(room)), "names that were used add nothing"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_dir_loads_nothing() -> None:
    rooms = ", ".join(ROOMS)
    code = f"import sys, {rooms}; print(*[len(dir(room)) for room in ({rooms})], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    *counts, loaded = done.stdout.split()
    assert loaded == "False"
    assert all(int(count) > 0 for count in counts)
