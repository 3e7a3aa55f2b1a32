"""The names of models, partitions, encoders, sources and data sets are known before torch is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedatlas
from fedatlas.atlas import ENCODERS, SOURCES
from fedatlas.data import PARTITIONS
from fedatlas.errors import UsageError
from fedatlas.models import MODELS
from fedatlas.registry import Registry

REGISTRIES = {"model": MODELS, "partition": PARTITIONS, "encoder": ENCODERS, "source of an atlas": SOURCES}


@pytest.mark.parametrize("kind", REGISTRIES)
def test_the_text_of_the_files_says_the_same_as_the_things(kind: str) -> None:
    registry: Registry = REGISTRIES[kind]
    for name, entry in registry.entries.items():
        thing = registry[name]
        assert (thing.__module__, thing.__doc__.partition("\n")[0]) == (entry.module, entry.summary)
        assert dict(registry.facts(name)) == dict(entry.facts)
        assert entry.summary.endswith(".")
        assert "name" not in entry.parameters


@pytest.mark.parametrize("kind", REGISTRIES)
def test_an_unknown_name_lists_the_known_ones(kind: str) -> None:
    with pytest.raises(UsageError) as caught:
        REGISTRIES[kind]["nothing like it"]
    assert caught.value.code == "unknown-name"
    assert caught.value.fields["known"] == sorted(REGISTRIES[kind])


def test_names_are_read_without_torch() -> None:
    """The package's root is stood in for: what it imports is its own matter."""
    script = f"""
import sys, types
root = types.ModuleType("fedatlas")
root.__path__ = [{str(Path(fedatlas.__file__).parent)!r}]
sys.modules["fedatlas"] = root
from fedatlas.atlas import ENCODERS, SOURCES, AtlasSettings, IndexSettings
from fedatlas.data import DATASETS, PARTITIONS, is_named
from fedatlas.models import HUB_PREFIX, MODELS
print(*(len(known.entries) for known in (ENCODERS, SOURCES, PARTITIONS, MODELS)), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    counts = [str(len(known)) for known in (ENCODERS, SOURCES, PARTITIONS, MODELS)]
    assert done.stdout.split() == [*counts, "False"]
