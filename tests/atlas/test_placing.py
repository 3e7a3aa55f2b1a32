import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fedatlas.atlas import Atlas, class_prototypes, feature_average
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.merge import Cells, Evidence
from fedatlas.atlas.placing import Placement, class_terms, place_newcomer
from fedatlas.data import Federation
from fedatlas.errors import UsageError
from raising import raises
from summaries import gaussian

EVIDENCE = Evidence(trust=1.0, slab=18.0)
KINDS = ["plain", "swapped", "shifted"]


def line(means: Sequence[Sequence[float]], counts: Sequence[Sequence[int]], precision: float) -> Cells:
    """Return rows in one direction, classes x rows, whose noise has one direction."""
    table = torch.tensor(means).double()
    return Cells(
        table[:, :, None],
        torch.full_like(table, precision),
        torch.tensor(counts),
        torch.ones_like(table),
    )


def known(labels: bool = True) -> tuple[Atlas, dict[str, int]]:
    """Return the atlas of four clients of each kind, and their groups."""
    federation, embeddings = gaussian(KINDS * 4)
    atlas = (class_prototypes if labels else feature_average)(federation, embeddings)
    return atlas, {name: i % 3 for i, name in enumerate(atlas.names)}


def newcomers(kinds: Sequence[str], examples: int = 10) -> tuple[Federation, Embeddings]:
    federation, embeddings = gaussian(kinds, examples=examples, seed=7)
    clients = tuple(replace(client, name=f"new-{i}") for i, client in enumerate(federation.clients))
    return replace(federation, clients=clients), embeddings


def test_the_chances_of_two_groups_worked_out_by_hand() -> None:
    """The newcomer's mean is 1 with variance 1, the groups' are 0 and 3 with variance 1/2, so a = 3/2 for both.

    q is 1 and 4: log p differs by (4 - 1) / (2 x 3/2) = 1, and the first has a chance of 1 / (1 + 1/e).
    """
    terms = class_terms(line([[1.0]], [[1]], 1.0), line([[0.0, 3.0]], [[9, 9]], 2.0), EVIDENCE)
    expected = [-0.5 * (math.log(1.5) + q / 1.5) for q in (1, 4)]
    assert terms.near.flatten().tolist() == pytest.approx(expected)
    assert terms.near.flatten().softmax(0)[0].item() == pytest.approx(1 / (1 + math.exp(-1)))
    slab = [-0.5 * (math.log(19.5) + q / 19.5) for q in (1, 4)]
    assert terms.far.flatten().tolist() == pytest.approx(slab)


def test_half_the_trust_halves_the_difference_and_more_directions_raise_it() -> None:
    """nu = trust / kappa: 1/2 and 4 in place of 1, so the difference of log p is 1/2 and 4."""
    groups = line([[0.0, 3.0]], [[9, 9]], 2.0)
    newcomer = line([[1.0]], [[1]], 1.0)
    half = class_terms(newcomer, groups, Evidence(0.5, 18.0)).near.flatten()
    wide = class_terms(newcomer._replace(anisotropy=torch.tensor([[0.25]]).double()), groups, EVIDENCE).near.flatten()
    assert float(half[0] - half[1]) == pytest.approx(0.5)
    assert float(wide[0] - wide[1]) == pytest.approx(4.0)


def test_a_group_that_lacks_a_class_may_have_it_anywhere() -> None:
    """The second group has two examples, so its mean is the first's, 0, and a = 1 + 1/2 + 18; it is never unlike."""
    terms = class_terms(line([[1.0]], [[1]], 1.0), line([[0.0, 3.0]], [[9, 2]], 2.0), EVIDENCE)
    assert terms.near[0, 0, 1].item() == pytest.approx(-0.5 * (math.log(19.5) + 1 / 19.5))
    assert terms.far[0, 0, 1] == terms.near[0, 0, 1]
    assert terms.known.tolist() == [True]


def test_newcomers_of_every_kind_are_placed_from_ten_labelled_examples() -> None:
    """One of the nine, a swapped one, has neither of the two renamed classes, and so may be a plain one."""
    atlas, group_of = known()
    federation, embeddings = newcomers(KINDS * 3)
    for i, client in enumerate(federation):
        found = place_newcomer(atlas, group_of, federation, client.name, embeddings=embeddings.examples)
        assert (found.labelled, found.num_examples) == (True, 10)
        assert sum(found.chances) == pytest.approx(1)
        if i == 1:
            assert int(federation.data.labels[client.train].min()) >= 2
            assert (found.group, found.refusal) == (None, "uncertain")
        else:
            assert (found.group, found.refusal) == (i % 3, None), client.name
            assert found.certainty == max(found.chances) >= 0.95


def test_without_labels_groups_that_differ_by_names_alone_are_refused_and_others_are_found() -> None:
    atlas, group_of = known()
    federation, embeddings = newcomers(KINDS)
    plain, swapped, shifted = (
        place_newcomer(atlas, group_of, federation, client.name, embeddings=embeddings.examples, labels=False)
        for client in federation
    )
    assert (shifted.group, shifted.labelled) == (2, False)
    for refused in (plain, swapped):
        assert (refused.group, refused.refusal) == (None, "labelling")
        assert "groups 0 and 1 differ only in what they call their classes" in refused.reason


def test_an_atlas_without_classes_places_by_the_mean_example() -> None:
    atlas, group_of = known(labels=False)
    two = {name: int(group == 2) for name, group in group_of.items()}
    federation, embeddings = newcomers(["plain", "shifted"], examples=30)
    for i, client in enumerate(federation):
        found = place_newcomer(atlas, two, federation, client.name, embeddings=embeddings.examples)
        assert (found.group, found.labelled) == (i, False)


def test_a_newcomer_without_the_classes_that_differ_is_refused() -> None:
    """Groups 0 and 1 differ in the names of the first two classes only."""
    atlas, group_of = known()
    federation, embeddings = newcomers(["plain"], examples=30)
    (client,) = federation.clients
    others = client.train[federation.data.labels[client.train] >= 2]
    federation = replace(federation, clients=(replace(client, train=others),))
    found = place_newcomer(atlas, group_of, federation, client.name, embeddings=embeddings.examples)
    assert (found.group, found.refusal) == (None, "uncertain")
    assert found.chances[0] + found.chances[1] == pytest.approx(1, abs=1e-6)
    assert found.describe().startswith("not placed: its ")


def test_a_newcomer_of_an_unknown_kind_is_refused() -> None:
    atlas, group_of = known()
    federation, embeddings = newcomers(["shifted"])
    turned = -embeddings.examples
    for labels in (True, False):
        found = place_newcomer(atlas, group_of, federation, "new-0", embeddings=turned, labels=labels)
        assert (found.group, found.refusal) == (None, "unlike"), labels


def test_a_newcomer_without_examples_is_refused() -> None:
    atlas, group_of = known()
    federation, embeddings = newcomers(["plain", "plain"])
    client, other = federation.clients
    empty = replace(federation, clients=(replace(client, train=client.train[:0], held_out=True), other))
    for labels in (True, False):
        found = place_newcomer(atlas, group_of, empty, "new-0", embeddings=embeddings.examples, labels=labels)
        assert (found.group, found.refusal, found.reason) == (None, "no-class", "it has no examples.")


def test_a_client_of_the_atlas_has_no_say_in_its_own_group() -> None:
    """With the group of a swapped client given wrongly, it is still placed with the other swapped ones."""
    federation, embeddings = gaussian(KINDS * 4)
    atlas, group_of = known()
    wrong = {**group_of, "client-1": 0}
    found = place_newcomer(atlas, wrong, federation, "client-1", embeddings=embeddings.examples)
    assert found.group == 1


def test_a_client_that_is_alone_in_its_group_may_be_placed_there_again() -> None:
    federation, embeddings = gaussian(["plain", "plain", "shifted"])
    atlas = class_prototypes(federation, embeddings)
    group_of = {"client-0": 0, "client-1": 0, "client-2": 1}
    assert place_newcomer(atlas, group_of, federation, "client-2", embeddings=embeddings.examples).group == 1


def test_an_atlas_of_other_classes_is_refused() -> None:
    atlas, group_of = known()
    federation, embeddings = newcomers(["plain"])
    data = replace(federation.data, labels=federation.data.labels + 3, classes=tuple("abcdefghi"))
    most = int(data.labels.max())
    with raises(UsageError, "out-of-range", what="labels", got=most, most=5):
        place_newcomer(atlas, group_of, replace(federation, data=data), "new-0", embeddings=embeddings.examples)


def test_an_atlas_that_lacks_a_group_is_refused() -> None:
    atlas, group_of = known()
    federation, embeddings = newcomers(["plain"])
    with raises(UsageError, "client-missing", got=[0, 1, 2], known=[0, 1, 2, 3]):
        place_newcomer(atlas, {**group_of, "x": 3}, federation, "new-0", embeddings=embeddings.examples)
    with raises(UsageError, "summary-missing"):
        place_newcomer(replace(atlas, summary=None), group_of, federation, "new-0", embeddings=embeddings.examples)


def test_a_placement_says_its_group_its_certainty_and_its_examples() -> None:
    placement = Placement(
        client="client-7",
        group=2,
        certainty=0.994,
        chances=(0.0, 0.006, 0.994),
        num_examples=10,
        labelled=True,
        reason="",
    )
    assert placement.describe() == "group 2 (certainty 0.99, from 10 labelled examples)"
    one = replace(placement, num_examples=1, labelled=False)
    assert one.describe() == "group 2 (certainty 0.99, from 1 unlabelled example)"
    by_loss = replace(placement, by="loss")
    assert by_loss.describe() == "group 2 (certainty 0.99, by its loss on 10 labelled examples)"
