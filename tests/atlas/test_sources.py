from pathlib import Path

import pytest

from fedatlas.atlas import SOURCES, Atlas, AtlasSettings, IndexSettings, atlas_disclosures, make_atlas
from fedatlas.atlas.sources import kept_atlas
from fedatlas.data import Iid, federate, load_dataset
from fedatlas.errors import UsageError
from fedatlas.parts import words
from raising import raises
from tiny import blob_federation


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "client2vec"])
def test_a_source_by_name_gives_every_client_a_vector(source: str) -> None:
    federation = federate(load_dataset("digits"), Iid(num_clients=3), seed=0)
    atlas = make_atlas(federation, source=source)
    assert atlas.names == tuple(client.name for client in federation)
    assert atlas.half().shape[0] == 3


def test_an_unknown_source_is_refused_with_the_nearest() -> None:
    with raises(UsageError, "unknown-name", got="client2vek"):
        make_atlas(blob_federation(), source="client2vek")


def test_what_leaves_a_client_depends_on_how_the_index_is_trained() -> None:
    pairs, vector = words(atlas_disclosures("client2vec", "global", IndexSettings(upload=32)))
    assert "up to 32 of its examples" in pairs
    change, same = words(atlas_disclosures("client2vec", "federated"))
    assert "change of the index network" in change
    assert vector == same
    for source in SOURCES:
        assert all(words(atlas_disclosures(source)))
    with raises(UsageError, "unknown-name", got="federate"):
        atlas_disclosures("client2vec", "federate")
    with raises(UsageError, "unknown-name", got="label_histogram"):
        atlas_disclosures("label_histogram")


def test_epochs_and_seed_reach_the_index_and_over_the_built_in_encoder_it_is_narrow() -> None:
    federation = federate(load_dataset("digits"), Iid(num_clients=4))
    settings = IndexSettings(feed_forward=8, layers=1, upload=8)
    atlas = make_atlas(federation, epochs=2, seed=5, settings=settings, progress=False)
    assert (atlas.provenance["epochs"], atlas.provenance["seed"]) == (2, 5)
    assert AtlasSettings().index_settings() == IndexSettings(feed_forward=64)
    assert AtlasSettings(encoder="clip").index_settings() == IndexSettings()


def test_a_kept_atlas_is_used_again_only_by_a_run_that_resumes(tmp_path: Path) -> None:
    """A run that begins anew in the folder of another has other data, perhaps."""
    made = [Atlas(names=("a",), halves={"label": [[value]]}, sizes=[1]) for value in (1.0, 2.0)]  # type: ignore[arg-type]
    file = tmp_path / "atlas.safetensors"
    found = [kept_atlas(file, lambda atlas=atlas: atlas, resume=False) for atlas in made]  # type: ignore[misc]
    assert [float(atlas.half("label")) for atlas in found] == [1.0, 2.0]
    assert float(kept_atlas(file, lambda: made[0], resume=True).half("label")) == 2.0
