import torch

from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.sources import class_prototypes, feature_average, head_weights, label_histogram
from fedatlas.data import Client, Dataset, Federation
from fedatlas.errors import DataError, UsageError
from raising import raises
from tiny import Line, line_federation


def federation() -> Federation:
    """Client one trains on examples 0 to 2, two on 3; example 4 is for tests only, and three has nothing."""
    data = Dataset(name="five", inputs=torch.zeros(5, 1), labels=torch.tensor([0, 0, 2, 1, 1]), classes=("a", "b", "c"))
    none = torch.tensor([], dtype=torch.int64)
    clients = (
        Client(name="one", train=torch.tensor([0, 1, 2]), test=torch.tensor([4]), domain="x"),
        Client(name="two", train=torch.tensor([3]), test=torch.tensor([4]), domain="y"),
        Client(name="three", train=none, test=torch.tensor([4]), held_out=True),
    )
    return Federation(data=data, clients=clients, partition="by hand")


def embeddings() -> Embeddings:
    examples = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 6.0], [8.0, 6.0], [100.0, 100.0]])
    return Embeddings(encoder="hand", examples=examples, classes=torch.eye(3))


def test_feature_average_is_the_mean_over_training_examples() -> None:
    """One: mean of (1,0), (3,0), (0,6) = (4/3, 2). The test example (100, 100) has no part in it."""
    atlas = feature_average(federation(), embeddings())
    torch.testing.assert_close(atlas.half("feature"), torch.tensor([[4 / 3, 2.0], [8.0, 6.0], [0.0, 0.0]]))
    assert atlas.sizes.tolist() == [3, 1, 0]
    assert (atlas.names, atlas.domains) == (("one", "two", "three"), ("x", "y", None))
    assert atlas.provenance["source"] == "feature_average"
    assert "example_clip" not in atlas.provenance


def test_feature_average_clips_examples_not_means() -> None:
    """To norm 2: (1,0), (2,0), (0,2) with mean (1, 2/3); (8,6) becomes (1.6, 1.2)."""
    atlas = feature_average(federation(), embeddings(), clip=2.0)
    torch.testing.assert_close(atlas.half("feature")[:2], torch.tensor([[1.0, 2 / 3], [1.6, 1.2]]))
    assert atlas.with_noise(sigma=1.0, protects="example").provenance["noise"]["clip"] == {"feature": 2.0}
    with raises(UsageError, "out-of-range", setting="clip", got=0.0):
        feature_average(federation(), embeddings(), clip=0.0)


def test_class_prototypes_are_means_of_each_class_and_zero_where_there_is_none() -> None:
    atlas = class_prototypes(federation(), embeddings())
    expected = torch.tensor([[2.0, 0.0, 0.0, 0.0, 0.0, 6.0], [0.0, 0.0, 8.0, 6.0, 0.0, 0.0], [0.0] * 6])
    torch.testing.assert_close(atlas.half("feature"), expected)


def test_class_prototypes_make_no_promise_about_one_example() -> None:
    with raises(UsageError, "noise-settings", setting="protects", half="feature"):
        class_prototypes(federation(), embeddings()).with_noise(sigma=1.0, protects="example")


def test_label_histogram_is_the_share_of_each_class() -> None:
    atlas = label_histogram(federation())
    torch.testing.assert_close(atlas.half("label"), torch.tensor([[2 / 3, 0.0, 1 / 3], [0.0, 1.0, 0.0], [0.0] * 3]))


def test_head_weights_are_the_classifiers_of_the_clients_that_trained() -> None:
    clients = line_federation(([1.0], [0]), ([2.0], [1]))
    states = {"client-1": {"head.weight": torch.tensor([[5.0]]), "body.weight": torch.ones(7)}}
    atlas = head_weights(clients, states, Line())
    assert atlas.half("feature").tolist() == [[0.0], [5.0]]
    assert atlas.provenance["parameters"] == ["head.weight"]


def test_head_weights_refuse_strangers_and_states_that_do_not_fit() -> None:
    clients = line_federation(([1.0], [0]), ([2.0], [1]))
    with raises(UsageError, "client-states", got=["client-9"]):
        head_weights(clients, {"client-9": {"head.weight": torch.ones(1, 1)}}, Line())
    with raises(UsageError, "shape-mismatch", client="client-0", what="head.weight", got=(2, 1)):
        head_weights(clients, {"client-0": {"head.weight": torch.ones(2, 1)}}, Line())
    with raises(UsageError, "shape-mismatch", got="none"):
        head_weights(clients, {"client-0": {"body.weight": torch.ones(2, 1)}}, Line())
    with raises(UsageError, "client-states", got=[]):
        head_weights(clients, {}, Line())


def test_embeddings_of_other_data_are_refused() -> None:
    wrong = Embeddings(encoder="hand", examples=torch.ones(4, 2), classes=torch.eye(3))
    with raises(DataError, "embeddings-mismatch", got=4, wanted=5):
        feature_average(federation(), wrong)


def test_one_example_moves_a_label_histogram_by_its_whole_row() -> None:
    """A row of one-hot is 1 long; a smaller bound would promise more privacy than the noise gives."""
    assert label_histogram(federation()).provenance["example_clip"] == {"label": 1.0}
