import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from atlases import blocks, three
from fedatlas.atlas import Atlas
from fedatlas.errors import DataError, RunFolderError
from raising import raises


def test_saving_and_loading_gives_the_same_atlas(tmp_path: Path) -> None:
    atlas = replace(three(), domains=("x", None, "y"))
    atlas.save(tmp_path / "new" / "atlas.safetensors")
    back = Atlas.load(tmp_path / "new" / "atlas.safetensors")
    assert (back.names, back.domains, back.provenance) == (atlas.names, atlas.domains, atlas.provenance)
    assert list(back.halves) == ["feature", "label"]
    assert all(torch.equal(back.halves[name], atlas.halves[name]) for name in atlas.halves)
    assert torch.equal(back.sizes, atlas.sizes)
    assert back.describe() == atlas.describe()


def test_a_file_that_was_altered_or_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "atlas.safetensors"
    three().save(path)
    content = path.read_bytes()
    # One byte of the tensors, one letter of the provenance, and the end.
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    with raises(DataError, "file-altered", path=str(path)):
        Atlas.load(path)
    path.write_bytes(content.replace(b"hand", b"hend"))
    with raises(DataError, "file-altered", path=str(path)):
        Atlas.load(path)
    path.write_bytes(content[:-8])
    with raises(DataError, "file-unreadable", path=str(path)):
        Atlas.load(path)


def test_a_file_that_is_no_atlas_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with raises(DataError, "content-unfit", path=str(tmp_path / "model.safetensors")):
        Atlas.load(tmp_path / "model.safetensors")
    with raises(DataError, "file-missing", path=str(tmp_path / "nothing.safetensors")):
        Atlas.load(tmp_path / "nothing.safetensors")


def test_a_write_that_fails_leaves_the_old_atlas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "atlas.safetensors"
    three().save(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with raises(RunFolderError, "file-unwritable", path=str(path)):
        blocks().save(path)
    assert Atlas.load(path).names == ("a", "b", "c")


def test_describe_is_plain_and_knows_other_vectors() -> None:
    said = three().describe()
    assert json.loads(json.dumps(said)) == said
    assert (said["clients"], said["widths"]) == (3, {"feature": 2, "label": 2})
    other = replace(three(), halves={**three().halves, "label": torch.ones(3, 2)})
    assert other.describe()["vectors"] != said["vectors"]


def test_an_atlas_travels_to_worker_processes() -> None:
    atlas = three()
    atlas.similarity()
    torch.testing.assert_close(pickle.loads(pickle.dumps(atlas)).similarity(), atlas.similarity())


def test_an_atlas_travels_without_what_it_keeps_for_speed() -> None:
    atlas = blocks()
    before = len(pickle.dumps(atlas))
    expected = atlas.similarity_to(torch.tensor([1]))
    assert len(pickle.dumps(atlas)) == before
    assert torch.equal(pickle.loads(pickle.dumps(atlas)).similarity_to(torch.tensor([1])), expected)


def test_describe_knows_other_sizes_and_every_client_that_was_added() -> None:
    atlas = three()
    assert replace(atlas, sizes=atlas.sizes + 1).describe()["vectors"] != atlas.describe()["vectors"]
    own = {half: rows[0] for half, rows in atlas.halves.items()}
    later = atlas.add_client("d", own, size=1).add_client("e", own, size=1)
    assert later.provenance["added"] == ["d", "e"]
