import math
from dataclasses import replace

import pytest
import torch

from fedatlas.atlas.doctor.examination import Examination, examine
from fedatlas.atlas.doctor.inverted import Inversion, find_inverted
from fedatlas.atlas.doctor.labels import find_wrong_labels
from fedatlas.atlas.doctor.reference import pairings
from fedatlas.atlas.summary import Summary, summarise
from fedatlas.seeds import generator
from summaries import CLASSES, federation, gaussian, one_dimension

NAMES = [f"client-{i}" for i in range(40)]


def _two_classes(*ways: float) -> Summary:
    """Return clients with 100 examples of variance 1 of both classes, the means so far apart, in one direction."""
    count = len(ways)
    flat = one_dimension(
        [[100, 100]] * count, [[0.0, way] for way in ways], [[99.0, 99.0]] * count, [[1.0, 1.0]] * count
    )
    wide = replace(flat.whitening, spread=torch.ones(1).double(), examples=torch.tensor(10**9))
    return replace(flat, whitening=wide)


def test_inverted_labels_by_hand() -> None:
    """The others' ways are 2, with variance 0.02 each and 0.01 of their mean, and 8/9 x 0.4^2 between clients.

    So the density has variance 0.1722 and 9 degrees of freedom, and -2 is 4 from 2: 5 log(1 + 16 / 0.1722 / 9).
    """
    found = find_inverted(_two_classes(2.0, 2.0, -2.0))
    assert found.disagree is None
    assert found.untold == {}
    assert found.inverted == {2: pytest.approx(5 * math.log1p(16 / (0.03 + 8 / 9 * 0.16) / 9), rel=1e-4)}


def test_an_effect_that_is_turned_round_by_nature_is_not_called_inverted() -> None:
    """The last client's effect is -0.4, 2.8 standard deviations of noise below 0; the others' are from 0.1 to 3."""
    found = find_inverted(_two_classes(2.0, 0.3, 1.0, 3.0, 0.1, 1.2, 2.5, -0.4))
    assert found.inverted == {}
    assert set(found.untold) == {7}
    assert set(find_inverted(_two_classes(2.0, 1.9, 2.1, 2.0, 2.2, 1.8, 2.0, -0.4)).inverted) == {7}


def test_two_inverted_clients_of_six_are_named() -> None:
    assert set(find_inverted(_two_classes(2.0, 1.5, -1.8, 2.2, -2.0, 1.9)).inverted) == {2, 4}


def test_many_ways_that_are_turned_round_are_the_nature_of_the_clients() -> None:
    ways = [0.9, -0.6, 0.8, 0.5, -0.9, 0.7, 0.4, 1.0, -0.7, 0.6, 0.8, -0.5]
    found = find_inverted(_two_classes(*ways))
    assert found.inverted == {}


def test_two_sides_of_one_size_disagree_and_none_is_named() -> None:
    assert find_inverted(_two_classes(2.0, 2.0, -2.0, -2.0)) == Inversion({}, {}, ((0, 1), (2, 3)))


def test_a_way_that_may_be_noise_is_not_called_inverted() -> None:
    assert find_inverted(_two_classes(2.0, 2.0, 2.0, -0.05)) == Inversion({}, {}, None)
    assert find_inverted(_two_classes(2.0, -2.0)) == Inversion({}, {}, None)


def _examined(kinds: list[str], noise: dict[int, float] | None = None, seed: int = 0) -> Examination:
    """Return what is found among clients of Gaussian classes, of which some have noisy labels."""
    whole, embeddings = gaussian(kinds, examples=120, seed=seed)
    labels = whole.data.labels.clone()
    rng = generator(seed, "noisy")
    for i, share in (noise or {}).items():
        own = whole.clients[i].train
        drawn = torch.rand(len(own), generator=rng) < share
        moved = torch.randint(1, CLASSES, (len(own),), generator=rng)
        labels[own] = torch.where(drawn, (labels[own] + moved) % CLASSES, labels[own])
    rows = [embeddings.examples[client.train] for client in whole]
    spoilt, encoded = federation(rows, [labels[client.train] for client in whole])
    return examine(summarise(spoilt, encoded.examples), [client.name for client in spoilt], spoilt.data.classes)


def _named(found: Examination) -> dict[str, str]:
    return {own.client: own.kind for own in found.suspects}


@pytest.mark.parametrize("seed", range(3))
def test_noisy_clients_are_named_and_rare_ones_are_not(seed: int) -> None:
    kinds = ["plain"] * 10 + ["few"] * 2 + ["shifted"]
    found = _examined(kinds, {0: 0.3, 5: 0.2}, seed)
    assert _named(found) == {"client-0": "labels-noisy", "client-5": "labels-noisy"}
    assert [own.client for own in found.different] == ["client-12"]
    assert 20 <= int(found.suspects[0].reason.split()[1]) <= 40, "about 30 % of its labels look random"


@pytest.mark.parametrize("seed", range(3))
def test_clean_clients_of_every_kind_are_not_accused(seed: int) -> None:
    for kinds in (["plain"] * 12, ["plain", "few"] * 6, ["plain", "shifted"] * 6):
        assert _named(_examined(kinds, seed=seed)) == {}


@pytest.mark.parametrize("seed", range(3))
def test_one_client_with_swapped_names_is_named_with_the_classes(seed: int) -> None:
    found = _examined(["plain"] * 10 + ["swapped"], seed=seed)
    assert _named(found) == {"client-10": "labels-swapped"}
    assert "its 'a' is the others' 'b', its 'b' is the others' 'a'" in found.suspects[0].reason
    assert found.labelling.found
    assert found.labelling.strength == pytest.approx(2 / CLASSES)
    assert not found.inputs.found


def test_two_examples_with_another_name_are_named() -> None:
    """The client has no 'b', but two examples of it that it calls 'a'."""
    whole, embeddings = gaussian(["plain"] * 12, examples=120)
    rows, labels = ([table[client.train] for client in whole] for table in (embeddings.examples, whole.data.labels))
    chosen = torch.cat([(labels[0] == 1).nonzero().flatten()[:2], (labels[0] > 1).nonzero().flatten()])
    spoilt, encoded = federation(
        [rows[0][chosen], *rows[1:]], [torch.where(labels[0] == 1, 0, labels[0])[chosen], *labels[1:]]
    )
    found = examine(summarise(spoilt, encoded.examples), [client.name for client in spoilt], spoilt.data.classes)
    assert _named(found) == {"client-0": "labels-swapped"}
    assert found.suspects[0].reason == "its labels look swapped: its 'a' is the others' 'b', far beyond chance"


def test_a_wrong_label_is_not_another_input() -> None:
    """A client of 60 % noise has a group of its own at first; without it, inputs are alike."""
    found = _examined(["plain"] * 10, {3: 0.6})
    assert _named(found) == {"client-3": "labels-noisy"}
    assert not found.inputs.found
    assert len({*found.groups}) <= 2


def test_a_small_client_that_looks_noisy_is_different_and_not_wrong() -> None:
    """A tenth of its labels is wrong: of 120 examples, as others have, that is noisy, and of 25 it cannot be told.

    A sixth is told even so.
    """
    whole, embeddings = gaussian(["plain"] * 12, examples=120)
    rows, labels = ([table[client.train] for client in whole] for table in (embeddings.examples, whole.data.labels))

    def examined(size: int, every: int) -> Examination:
        own = labels[0][:size].clone()
        own[::every] = (own[::every] + 1) % CLASSES
        spoilt, encoded = federation([rows[0][:size], *rows[1:]], [own, *labels[1:]])
        return examine(summarise(spoilt, encoded.examples), [client.name for client in spoilt], spoilt.data.classes)

    assert _named(examined(120, 10)) == _named(examined(25, 6)) == {"client-0": "labels-noisy"}
    small = examined(25, 10)
    assert _named(small) == {}
    (own,) = small.different
    assert (own.client, own.kind) == ("client-0", "labels-untold")
    assert own.reason.startswith("few examples")
    assert own.reason.endswith("this cannot be told")


def test_what_cannot_be_told_apart_is_said() -> None:
    """Three clients lack classes, and one is unlike all others."""
    found = _examined(["plain"] * 10 + ["few"] * 3 + ["shifted"])
    assert found.remarks == (
        "Whether a client with other inputs names classes otherwise.",
        "Noisy labels at client-13: no other client is alike.",
        "Swapped names of classes that a client lacks.",
    )
    assert _examined(["plain"] * 10).remarks == ()


def test_half_of_the_clients_with_other_names_are_groups_and_not_suspects() -> None:
    found = _examined(["plain", "swapped"] * 6)
    assert _named(found) == {}
    assert found.labelling.found
    assert found.groups == (0, 1) * 6


def test_a_client_is_compared_with_others_and_not_with_suspects() -> None:
    whole, embeddings = gaussian(["plain"] * 6)
    summary = summarise(whole, embeddings.examples)
    assert summary is not None
    groups = torch.zeros(6, dtype=torch.int64)
    counts = summary.counts.sum(0)
    every = {pairing.client: pairing for pairing in pairings(summary, groups)}
    assert torch.equal(every[0].other.counts, counts - summary.counts[0])
    apart = {pairing.client: pairing for pairing in pairings(summary, groups, {5})}
    assert torch.equal(apart[0].other.counts, counts - summary.counts[0] - summary.counts[5])
    assert torch.equal(apart[5].other.counts, counts - summary.counts[5])
    kept = torch.arange(1, 5)
    inside = summary.inside[kept].sum(0)
    assert torch.allclose(apart[0].other.inside, inside)
    assert list(pairings(summary.take(torch.tensor([0])), groups[:1])) == []


def test_a_client_of_a_small_group_is_compared_with_a_larger_one_that_is_nearer() -> None:
    whole, embeddings = gaussian(["plain"] * 7 + ["shifted"] * 3)
    summary = summarise(whole, embeddings.examples)
    assert summary is not None
    groups = torch.tensor([0] * 6 + [1] * 4)
    among = {pairing.client: pairing.among for pairing in pairings(summary, groups)}
    assert [i for i, own in among.items() if not own] == [6], "it is plain, and its group is not"
    assert [own.client for own in pairings(summary, groups, only={9, 2})] == [2, 9]


def test_two_clients_of_a_group_that_use_each_others_names_disagree() -> None:
    whole, embeddings = gaussian(["plain", "plain", "shifted", "both"], examples=120)
    summary = summarise(whole, embeddings.examples)
    assert summary is not None
    together, apart = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 2])
    found = find_wrong_labels(summary, together, NAMES[:4], whole.data.classes)
    assert (found.suspects, found.disputed, found.renamed) == ({}, (2, 3), 2)
    said = "client-2 and client-3 disagree about which class is which of 'a' and 'b'. Who is wrong cannot be told."
    assert found.remarks == (said,)
    assert find_wrong_labels(summary, apart, NAMES[:4], whole.data.classes).disputed == ()


def test_the_verdict_on_too_few_examples_is_that_there_are_too_few() -> None:
    found = examine(None, NAMES[:2], ["a", "b"])
    assert found.groups == (0, 0)
    assert not found.inputs.found
    assert "too few" in found.inputs.evidence
