import pytest

from fedatlas.atlas import SOURCES, make_atlas
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
