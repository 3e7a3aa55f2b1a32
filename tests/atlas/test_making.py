import pytest

from fedatlas.atlas import SOURCES, IndexSettings, atlas_disclosures, make_atlas
from fedatlas.data import Iid, federate, load_dataset
from fedatlas.errors import UsageError
from tiny import blob_federation


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "client2vec"])
def test_a_source_by_name_gives_every_client_a_vector(source: str) -> None:
    federation = federate(load_dataset("digits"), Iid(num_clients=3), seed=0)
    atlas = make_atlas(federation, source=source)
    assert atlas.names == tuple(client.name for client in federation)
    assert atlas.half().shape[0] == 3


def test_an_unknown_source_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'client2vec'"):
        make_atlas(blob_federation(), source="client2vek")


def test_what_leaves_a_client_depends_on_how_the_index_is_trained() -> None:
    pairs, vector = atlas_disclosures("client2vec", "global", IndexSettings(upload=32))
    assert "up to 32 of its examples" in pairs
    change, same = atlas_disclosures("client2vec", "federated")
    assert "change of the index network" in change
    assert vector == same
    for source in SOURCES:
        assert all(atlas_disclosures(source))
    with pytest.raises(UsageError, match="Did you mean 'federated'"):
        atlas_disclosures("client2vec", "federate")
    with pytest.raises(UsageError, match="Did you mean 'label-histogram'"):
        atlas_disclosures("label_histogram")
