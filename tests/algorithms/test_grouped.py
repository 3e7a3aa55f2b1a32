from dataclasses import replace

import pytest

from atlases import bars, bars_atlas
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.grouped import AtlasGroups, TriedGroups, grouped
from fedatlas.algorithms.ifca import ifca
from fedatlas.algorithms.scaffold import scaffold
from fedatlas.atlas import class_prototypes
from fedatlas.data import Iid, PermutedLabels, Rotated, federate
from fedatlas.errors import UsageError
from fedatlas.parts import One
from raising import raises
from summaries import gaussian


def test_equal_clients_share_one_model() -> None:
    algorithm = grouped(fedavg(), bars_atlas(federate(bars(), Iid(num_clients=8))))
    assert type(algorithm.sharing) is One
    assert algorithm.sharing.reason.startswith("One model for all clients. ")
    assert algorithm.name == "grouped"


def test_clients_that_label_differently_are_split_from_the_beginning() -> None:
    federation = federate(bars(), PermutedLabels(num_clients=8, num_groups=2))
    algorithm = grouped(scaffold(), bars_atlas(federation))
    assert type(algorithm.sharing) is AtlasGroups
    kinds = [client.type for client in federation]
    groups = [algorithm.sharing.groups[client.name] for client in federation]
    assert len(set(zip(kinds, groups, strict=True))) == len(set(kinds)) == 2
    assert algorithm.name == "grouped+scaffold"


def test_clients_whose_inputs_differ_leave_after_a_trial() -> None:
    federation = federate(bars(), Rotated(num_clients=8, num_groups=2, degrees=(0, 45)))
    algorithm = grouped(fedavg(), bars_atlas(federation), pilot=4)
    assert type(algorithm.sharing) is TriedGroups
    assert algorithm.sharing.pilot == 4
    assert "A trial has up to 4 rounds" in algorithm.sharing.reason


def test_where_inputs_and_labelling_differ_only_who_labels_otherwise_is_apart() -> None:
    """Groups 0, 1 and 2 have five, four and three clients; the last swaps two names."""
    atlas = class_prototypes(*gaussian(["plain"] * 5 + ["shifted"] * 4 + ["swapped"] * 3))
    sharing = grouped(fedavg(), atlas).sharing
    assert type(sharing) is TriedGroups
    assert sharing.apart == (2,)
    assert list(sharing.groups.values()) == [0] * 5 + [1] * 4 + [2] * 3
    assert sharing.reason.startswith("A model for each of 1 of 3 groups from the beginning: ")
    as_many = class_prototypes(*gaussian(["swapped"] * 6 + ["plain"] * 3 + ["shifted"] * 3))
    assert grouped(fedavg(), as_many).sharing.describe()["apart"] == [0]
    assert type(grouped(fedavg(), atlas, level="head").sharing) is AtlasGroups


def test_a_number_of_groups_is_taken_as_it_is() -> None:
    atlas = bars_atlas(federate(bars(), Iid(num_clients=8)))
    algorithm = grouped(fedavg(), atlas, groups=3, level="head")
    assert type(algorithm.sharing) is AtlasGroups
    assert sorted(set(algorithm.sharing.groups.values())) == [0, 1, 2]
    assert algorithm.sharing.level == "head"


def test_a_base_that_has_groups_is_an_error() -> None:
    atlas = bars_atlas(federate(bars(), Iid(num_clients=8)))
    with raises(UsageError, "base-unfit", part="ByLoss"):
        grouped(ifca(2), atlas)


@pytest.mark.parametrize("atlas", [None, 3])
def test_something_else_than_an_atlas_is_an_error(atlas: object) -> None:
    with raises(UsageError, "wrong-type", setting="grouped(atlas)"):
        grouped(fedavg(), atlas)  # type: ignore[arg-type]


def test_an_atlas_of_other_clients_is_remarked_upon() -> None:
    federation = federate(bars(), PermutedLabels(num_clients=8, num_groups=2), seed=1)
    algorithm = grouped(fedavg(), bars_atlas(federate(bars(), PermutedLabels(num_clients=8, num_groups=2), seed=0)))
    assert any("the atlas was made from" in line for line in algorithm.check_clients(federation))
    assert algorithm.check_clients(replace(federation)) != []
