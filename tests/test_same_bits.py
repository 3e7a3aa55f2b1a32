"""The comparison of two versions' runs: what counts as a difference, what is new, and what was wanted."""

import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parent.parent


@pytest.fixture
def same_bits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import same_bits as found  # type: ignore[import-not-found]

    return found  # type: ignore[no-any-return]


def write(folder: Path, **tensors: torch.Tensor) -> Path:
    folder.mkdir(parents=True)
    save_file(tensors, folder / "atlas.safetensors")
    (folder / "resolved.json").write_text(json.dumps({"seed": 0, "machine": folder.name}))
    return folder.parent


def test_what_only_the_new_version_writes_is_no_difference(same_bits: ModuleType, tmp_path: Path) -> None:
    base = write(tmp_path / "base/cfl-0", a=torch.ones(2))
    new = write(tmp_path / "new/cfl-0", a=torch.ones(2), lengths=torch.ones(3))
    write(new / "krum-0", a=torch.ones(2))
    found = same_bits.compare_folders(base, new)
    assert (found.differences, found.num_tensors) == ([], 1)
    assert found.gained == {"cfl-0/atlas.safetensors: lengths", "krum-0/"}


def test_one_bit_and_a_lost_tensor_are_differences(same_bits: ModuleType, tmp_path: Path) -> None:
    base = write(tmp_path / "base/cfl-0", a=torch.ones(2), b=torch.zeros(1))
    new = write(tmp_path / "new/cfl-0", a=torch.tensor([1.0, 1.0 + 2**-23]))
    lost, changed = same_bits.compare_folders(base, new).differences
    assert lost == "cfl-0/atlas.safetensors holds the tensors a, not a, b"
    assert changed == "cfl-0/atlas.safetensors: a differs, first in byte 4 of 8"


def test_a_wanted_change_excuses_only_its_own_difference(same_bits: ModuleType) -> None:
    wanted = same_bits.Wanted(r".*/portraits\.npz differs", "HEAD", "other pictures")
    lines = ["fedavg-0/portraits.npz differs", "fedavg-0/portraits.npz is missing", "atlas.safetensors: a differs"]
    assert same_bits.set_apart(lines, [wanted]) == (lines[1:], Counter({"other pictures": 1}))
    assert not wanted.is_expected("HEAD")
