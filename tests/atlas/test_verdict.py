import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedatlas.atlas import Atlas, class_prototypes, feature_average, make_atlas, make_encoder
from fedatlas.atlas.add_client import place_client
from fedatlas.atlas.summary import summarise
from fedatlas.atlas.verdict import Verdict, best_matching, judge
from fedatlas.data import ByDomain, Federation, Iid, federate, load_dataset
from fedatlas.seeds import generator
from summaries import CLASSES, federation, gaussian


def found(verdict: Verdict) -> set[str]:
    ways = {"inputs": verdict.inputs, "label shares": verdict.label_shares, "labelling": verdict.labelling}
    return {way for way, own in ways.items() if own.found}


def judged(*kinds: str, seed: int = 0) -> Verdict:
    """Return the verdict on 12 clients, of these kinds in turns."""
    return class_prototypes(*gaussian([kinds[i % len(kinds)] for i in range(12)], seed=seed)).verdict()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kinds", "ways", "count"),
    [
        (["plain"], set(), 1),
        (["plain", "few"], {"label shares"}, 1),
        (["plain", "shifted"], {"inputs"}, 2),
        (["plain", "swapped"], {"labelling"}, 2),
        (["plain", "both"], {"inputs", "labelling"}, 2),
        (["plain", "shifted", "swapped"], {"inputs", "labelling"}, 3),
    ],
)
def test_the_kind_of_difference_is_named(kinds: list[str], ways: set[str], count: int, seed: int) -> None:
    verdict = judged(*kinds, seed=seed)
    assert found(verdict) == ways
    assert verdict.count == count
    assert verdict.groups.tolist() == [0 if count == 1 else i % count for i in range(12)]


def test_the_matching_says_which_class_is_called_what() -> None:
    (matching,) = judged("plain", "swapped").matchings
    assert matching.groups == (0, 1)
    assert matching.classes == ((0, 1), (1, 0))
    assert 0.9 < matching.explained <= 1
    assert not matching.inputs_too
    assert judged("plain", "both").matchings[0].inputs_too
    assert judged("plain", "swapped").labelling.strength == pytest.approx(2 / CLASSES)


def test_rho_of_a_matching_by_hand() -> None:
    """Equal names sum to 1 + 6 + 6 = 13; the best is 1 + 2 + 1 = 4, with the last two swapped: rho = 1 - 4 / 13."""
    table = torch.tensor([[1.0, 9.0, 9.0], [9.0, 6.0, 2.0], [9.0, 1.0, 6.0]])
    assert best_matching(table) == ([0, 2, 1], pytest.approx(9 / 13))
    assert best_matching(torch.zeros(2, 2)) == ([0, 1], 0.0)


def test_without_labels_only_inputs_are_judged_and_it_is_said() -> None:
    atlas = feature_average(*gaussian(["plain", "shifted"] * 6))
    verdict = atlas.verdict()
    assert not verdict.labelled
    assert found(verdict) == {"inputs"}
    assert verdict.groups.tolist() == [0, 1] * 6
    assert "Labels were not looked at" in verdict.inputs.evidence
    assert verdict.labelling.evidence == verdict.label_shares.evidence == "Labels were not looked at."
    assert feature_average(*gaussian(["plain"] * 12)).verdict().count == 1
    assert feature_average(*gaussian(["plain", "swapped"] * 6)).verdict().count == 1


def test_the_verdict_as_plain_values() -> None:
    verdict = judged("plain", "swapped")
    values = json.loads(json.dumps(verdict.to_dict()))
    assert values["clients"] == 12
    assert values["groups"] == {f"client-{i}": i % 2 for i in range(12)}
    assert values["shift"].keys() == {"inputs", "label_shares", "labelling"}
    assert values["shift"]["labelling"]["found"]
    assert values["shift"]["labelling"]["strength"] == pytest.approx(2 / CLASSES)
    assert values["matchings"][0]["classes"] == [[0, 1], [1, 0]]
    assert verdict.describe().splitlines()[0] == "2 groups of 12 clients (6, 6)"
    assert "labelling: yes. 'a' in group 0 is 'b' in group 1, 'b' is 'a': this explains" in verdict.describe()


def test_classes_are_called_by_their_names_or_else_by_their_numbers() -> None:
    atlas = class_prototypes(*gaussian(["plain", "swapped"] * 6))
    names = ["ill", "well", *(f"other {i}" for i in range(2, CLASSES))]
    for provenance, said in (
        ({}, "0 in group 0 is 1 in group 1, 1 is 0:"),
        ({"classes": names}, "'ill' in group 0 is 'well' in group 1, 'well' is 'ill':"),
        ({"classes": names[:2]}, "0 in group 0"),
        ({"classes": "ill"}, "0 in group 0"),
        ({"classes": [[]] * CLASSES}, "0 in group 0"),
    ):
        assert replace(atlas, provenance=provenance).verdict().labelling.evidence.startswith(said)


@pytest.mark.parametrize(("clients", "offset", "differ"), [(9, 0.2, True), (12, 0.2, False), (12, 0.3, True)])
def test_one_client_of_many_must_be_far_from_all_others(clients: int, offset: float, differ: bool) -> None:
    """The first is off by so much in each of twelve directions: z is about 4 and 7."""
    rng, centres = generator(5, "odd"), 1.5 * torch.randn(CLASSES, 12, generator=generator(0, "centres"))
    labels = [torch.arange(60) % CLASSES for _ in range(clients)]
    rows = [centres[own] + torch.randn(60, 12, generator=rng) + offset * (i == 0) for i, own in enumerate(labels)]
    whole, embeddings = federation(rows, labels)
    summary = summarise(whole, embeddings.examples)
    assert summary is not None
    groups = torch.tensor([0] + [1] * (clients - 1))
    assert judge(summary, [f"c{i}" for i in range(clients)], groups=groups).inputs.found == differ


def test_one_client_is_one_group() -> None:
    verdict = class_prototypes(*gaussian(["plain"])).verdict()
    assert verdict.groups.tolist() == [0]
    assert found(verdict) == set()


def test_the_evidence_of_label_shares_has_the_effect() -> None:
    assert "Dirichlet alpha of" in judged("plain", "few").label_shares.figures
    assert "Chance explains" in judged("plain").label_shares.evidence


def test_groups_without_a_number_are_the_verdicts() -> None:
    atlas = class_prototypes(*gaussian(["plain", "shifted"] * 6))
    assert torch.equal(atlas.groups(), atlas.verdict().groups)
    assert len(set(atlas.groups(3).tolist())) == 3


def test_a_saved_atlas_has_the_same_verdict_to_the_bits(tmp_path: Path) -> None:
    atlas = class_prototypes(*gaussian(["plain", "shifted"] * 4))
    atlas.save(tmp_path / "atlas.safetensors")
    loaded = Atlas.load(tmp_path / "atlas.safetensors")
    assert atlas.summary is not None
    assert loaded.summary is not None
    kept = loaded.summary.tensors()
    assert all(torch.equal(kept[name], table) for name, table in atlas.summary.tensors().items())
    assert loaded.verdict().to_dict() == atlas.verdict().to_dict()
    assert torch.equal(loaded.compare().z, atlas.compare().z)
    replace(atlas, summary=None).save(tmp_path / "old.safetensors")
    assert Atlas.load(tmp_path / "old.safetensors").summary is None


def test_noise_and_clips_leave_no_summary() -> None:
    clients, embeddings = gaussian(["plain"] * 4)
    assert class_prototypes(clients, embeddings).with_noise(sigma=1.0, clip=1.0).summary is None
    assert feature_average(clients, embeddings, clip=2.0).summary is None


def test_a_client_that_is_added_without_cells_is_known_by_nothing() -> None:
    atlas = class_prototypes(*gaussian(["plain", "shifted"] * 4))
    more = atlas.add_client("new", {"feature": atlas.half()[0]}, 60)
    assert more.compare().shared[-1, :-1].tolist() == [0] * 8
    assert more.verdict().groups[:-1].tolist() == [0, 1] * 4


def digits(clients: int = 4) -> Federation:
    return federate(load_dataset("digits"), ByDomain(clients_per_domain=clients), seed=0)


def test_the_domains_of_the_digits_are_found() -> None:
    federation = digits()
    atlas = make_atlas(federation, source="class-prototypes")
    verdict = atlas.verdict()
    by_domain = {domain: i for i, domain in enumerate(dict.fromkeys(atlas.domains))}
    assert verdict.groups.tolist() == [by_domain[domain] for domain in atlas.domains]
    assert found(verdict) == {"inputs"}


def test_digits_dealt_out_at_random_are_one_group() -> None:
    federation = federate(load_dataset("digits"), Iid(num_clients=10), seed=1)
    verdict = make_atlas(federation, source="class-prototypes").verdict()
    assert verdict.count == 1
    assert found(verdict) == set()


def test_digits_with_other_names_at_half_the_clients_are_a_labelling() -> None:
    federation = federate(load_dataset("digits"), Iid(num_clients=8), seed=2)
    labels = federation.data.labels.clone()
    for client in federation.clients[::2]:
        own = client.train
        labels[own] = torch.tensor([0, 2, 3, 1, 4, 5, 6, 7, 8, 9])[labels[own]]
    renamed = replace(federation, data=replace(federation.data, labels=labels))
    verdict = class_prototypes(renamed, make_encoder("builtin").encode(renamed, progress=False)).verdict()
    assert verdict.groups.tolist() == [0, 1] * 4
    assert found(verdict) == {"labelling"}
    assert {*verdict.matchings[0].classes} == {(2, 1), (3, 2), (1, 3)}


def test_a_newcomer_is_summarised_with_the_whitening_of_the_others() -> None:
    federation = digits(2)
    others = replace(federation, clients=federation.clients[:-1])
    atlas = make_atlas(others, source="class-prototypes")
    newcomer = federation.clients[-1]
    more = place_client(atlas, federation, newcomer.name)
    assert more.summary is not None
    assert int(more.summary.counts[-1].sum()) == len(newcomer.train)
    groups = more.verdict().groups.tolist()
    neighbour = [client.domain for client in others].index(newcomer.domain)
    assert groups[-1] == groups[neighbour]
    assert len(set(groups)) == 5
