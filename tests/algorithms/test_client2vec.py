from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atlases import by_hand, random_atlas
from fedatlas import check_algorithm
from fedatlas.algorithms import (
    clustered,
    fedavg,
    fedavgm,
    fedbn,
    feddyn,
    fediir,
    fedlc,
    fedprox,
    fedsam,
    harmofl,
    moon,
    qffl,
    scaffold,
)
from fedatlas.algorithms.client2vec import client2vec
from fedatlas.algorithms.client2vec_objective import AtlasVectors, IndexOrthogonality, Projected
from fedatlas.algorithms.client2vec_sampling import SimilarityWeights, SimilarToLast
from fedatlas.errors import UsageError
from fedatlas.parts import Algorithm
from fedatlas.testing import tiny_federation
from fedatlas.training import make_model
from raising import raises
from tiny import Norms, blob_federation, play, same_bits

OFF: dict[str, Any] = {"sample": False, "aggregate": False, "train": False}


@pytest.mark.parametrize("base", [fedavg(), feddyn(), moon(), fedbn()])
def test_with_all_uses_off_it_is_the_base(base: Algorithm) -> None:
    assert replace(client2vec(base, **OFF), name=base.name) == base


@pytest.mark.parametrize("base", [fedavg(), feddyn(), fedsam()])
def test_without_weights_in_the_objective_it_is_the_base_bit_for_bit(base: Algorithm) -> None:
    federation = blob_federation()
    plain, _, _ = play(base, Norms(), federation, rounds=3, cohort=4)
    algorithm = client2vec(base, random_atlas(federation), **{**OFF, "train": True}, lambda_o=0.0, lambda_d=0.0)
    assert algorithm.extensions == ()
    # The term itself adds nothing either, and P and G, which nothing moves, leave the rest alone.
    idle = replace(base.with_terms(IndexOrthogonality(lambda_o=0.0, lambda_d=0.0)), extensions=(Projected(width=3),))
    state, _, _ = play(idle, idle.extend(Norms()), federation, rounds=3, cohort=4)
    own = {name.removeprefix("model."): w for name, w in state.shared.items() if name.startswith("model.")}
    assert same_bits(own, plain.shared)


@pytest.mark.parametrize("use", ["sample", "aggregate", "train"])
def test_each_use_alone_changes_the_result(use: str) -> None:
    federation = blob_federation()
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3, cohort=3)
    algorithm = client2vec(atlas=random_atlas(federation), **{**OFF, use: True})
    state, _, _ = play(algorithm, make_model(Norms, {}, federation, algorithm, 0), federation, rounds=3, cohort=3)
    prefix = "model." if use == "train" else ""
    assert not torch.equal(state.shared[f"{prefix}body.weight"], plain.shared["body.weight"])


BASES = [fedavg(), fedavgm(), moon(), scaffold(), feddyn(), fedbn(), fedlc(), fediir()]


@pytest.mark.parametrize("base", BASES, ids=lambda base: str(base.name))
def test_every_base_keeps_its_promises_with_all_three_uses(base: Algorithm) -> None:
    check_algorithm(client2vec(base, random_atlas(tiny_federation()), train=True))


@pytest.mark.parametrize("options", [{"personal": True, "test_through": "g"}, {"lambda_o": 0.0}])
def test_other_settings_keep_their_promises(options: dict[str, Any]) -> None:
    check_algorithm(client2vec(fediir(), random_atlas(tiny_federation()), train=True, **options))


def test_it_goes_over_an_algorithm_with_an_extension_of_its_own() -> None:
    check_algorithm(client2vec(harmofl(), random_atlas(tiny_federation("images")), train=True), kind="images")


def test_its_name_says_what_it_is_over() -> None:
    atlas = by_hand()
    assert client2vec(atlas=atlas).name == "client2vec"
    assert client2vec(moon(), atlas).name == "client2vec+moon"


@pytest.mark.parametrize(("strategy", "weight"), [("federated", 1.0), ("global", 5.0), ("histogram", 1.0)])
def test_the_weights_of_the_objective_follow_how_the_index_was_trained(strategy: str, weight: float) -> None:
    atlas = by_hand(strategy=strategy)
    term = client2vec(atlas=atlas, train=True).objective[-1]
    assert isinstance(term, IndexOrthogonality)
    assert (term.lambda_o, term.lambda_d) == (weight, weight)
    given = client2vec(atlas=atlas, train=True, lambda_d=2.0).objective[-1]
    assert isinstance(given, IndexOrthogonality)
    assert (given.lambda_o, given.lambda_d) == (weight, 2.0)


def test_tau_follows_how_the_index_was_trained() -> None:
    for strategy, tau in (("federated", 0.1), ("global", 1.0), ("histogram", 0.5)):
        sampler = client2vec(atlas=by_hand(strategy=strategy)).sampler
        assert isinstance(sampler, SimilarToLast)
        assert sampler.tau == tau
    given = client2vec(atlas=by_hand(strategy="global"), tau=2.0).sampler
    assert isinstance(given, SimilarToLast)
    assert given.tau == 2.0


def test_the_weights_of_the_objective_may_be_tied_to_the_bases() -> None:
    for base, own in ((moon(mu=0.3), 0.3), (feddyn(alpha=0.2), 0.2), (fedprox(mu=0.4), 0.4), (fedavgm(), 1.0)):
        term = client2vec(base, by_hand(), train=True, tie_to_algorithm=True, lambda_o=7.0).objective[-1]
        assert isinstance(term, IndexOrthogonality)
        assert (term.lambda_o, term.lambda_d) == (own, own)
    fediir_term = client2vec(fediir(penalty=0.01), by_hand(), train=True, tie_to_algorithm=True).objective[-1]
    assert isinstance(fediir_term, IndexOrthogonality)
    assert fediir_term.lambda_o == 0.01


def test_an_atlas_may_be_a_path(tmp_path: Path) -> None:
    by_hand().save(tmp_path / "atlas.safetensors")
    for path in (tmp_path / "atlas.safetensors", str(tmp_path / "atlas.safetensors")):
        assert client2vec(atlas=path).describe() == client2vec(atlas=by_hand()).describe()


def test_the_description_names_the_atlas_and_not_its_numbers() -> None:
    federation = blob_federation(num_clients=20)
    described = client2vec(atlas=random_atlas(federation, width=500), train=True).describe()
    assert described["sampler"]["atlas"]["clients"] == 20
    assert described["extensions"] == [
        {"part": "Projected", "width": 500, "num_features": None, "num_classes": None, "test_through": "h"}
    ]
    assert len(str(described)) < 2000


def test_bases_that_cannot_use_it_are_refused() -> None:
    atlas = by_hand()
    with raises(UsageError, "base-unfit", base="qffl", part="FairStep"):
        client2vec(qffl(), atlas)
    assert client2vec(qffl(), atlas, aggregate=False).weighting == qffl().weighting
    with raises(UsageError, "base-unfit", base="clustered", part="ClusteredBySimilarity"):
        client2vec(clustered(), atlas)
    with raises(UsageError, "base-unfit", part="SimilarityWeights"):
        client2vec(clustered(), atlas, sample=False)
    train = client2vec(clustered(), atlas, sample=False, aggregate=False, train=True)
    assert (train.sampler, train.weighting) == (clustered().sampler, clustered().weighting)
    with raises(UsageError, "base-unfit", base="client2vec", part="SimilarityWeights"):
        client2vec(client2vec(atlas=atlas, sample=False), atlas)
    with raises(UsageError, "base-unfit", base="client2vec", part="IndexOrthogonality"):
        client2vec(client2vec(atlas=atlas, **{**OFF, "train": True}), atlas, train=True)


def test_atlases_that_do_not_fit_are_refused() -> None:
    federation = blob_federation()
    labels = random_atlas(federation, halves=["label"])
    with raises(UsageError, "unknown-name", got="feature"):
        client2vec(atlas=labels, train=True)
    assert client2vec(atlas=labels, train=True, objective_half="label").extensions == (Projected(width=5),)
    with raises(UsageError, "wrong-type", setting="client2vec(atlas)"):
        client2vec()
    with raises(UsageError, "unknown-name", kind="half of the atlas of SimilarToLast", got="labels"):
        client2vec(atlas=labels, half="labels", train=False)
    missing = random_atlas(blob_federation(num_clients=5))
    other = replace(labels, sizes=labels.sizes + torch.tensor([0, 2, 0, 0, 0, 0]))
    for use in ("sample", "aggregate"):
        algorithm = client2vec(atlas=missing, **{**OFF, use: True})
        with raises(UsageError, "client-missing", client="client-5"):
            play(algorithm, Norms(), federation)
        with raises(UsageError, "data-differ", client="client-1", got=20, wanted=22):
            play(client2vec(atlas=other, **{**OFF, use: True}), Norms(), federation)
    algorithm = client2vec(atlas=missing, **{**OFF, "train": True})
    with raises(UsageError, "client-missing", client="client-5"):
        play(algorithm, algorithm.extend(Norms()), federation)


def test_the_local_objective_is_off_unless_asked_for() -> None:
    algorithm = client2vec(atlas=by_hand())
    assert algorithm.objective == fedavg().objective
    assert algorithm.extensions == ()
    for option in ({"lambda_o": 5.0}, {"personal": True}, {"objective_half": "label"}):
        with raises(UsageError, "settings-conflict", option=next(iter(option))):
            client2vec(atlas=by_hand(), **option)  # type: ignore[arg-type]


def test_settings_that_are_no_use_are_refused() -> None:
    atlas = by_hand()
    with raises(UsageError, "out-of-range", setting="SimilarToLast(tau)", got=0):
        client2vec(atlas=atlas, tau=0)
    with raises(UsageError, "out-of-range", setting="SimilarityWeights(gamma)", got=1.5):
        client2vec(atlas=atlas, gamma=1.5)
    with raises(UsageError, "out-of-range", setting="SimilarityWeights(lambda1)", got=0):
        SimilarityWeights(atlas=atlas, lambda1=0)
    with raises(UsageError, "out-of-range", setting="IndexOrthogonality(lambda_d)", got=-1):
        client2vec(atlas=atlas, train=True, lambda_d=-1)
    with raises(UsageError, "out-of-range", setting="IndexOrthogonality(temperature)", got=0):
        client2vec(atlas=atlas, train=True, temperature=0)
    with raises(UsageError, "wrong-type", setting="IndexOrthogonality(mode)", got="mean"):
        client2vec(atlas=atlas, train=True, mode="mean")  # type: ignore[arg-type]
    with raises(UsageError, "wrong-type", setting="IndexOrthogonality(kl)", got="both"):
        client2vec(atlas=atlas, train=True, kl="both")  # type: ignore[arg-type]
    with raises(UsageError, "wrong-type", setting="Projected(test_through)", got="G"):
        client2vec(atlas=atlas, train=True, test_through="G")  # type: ignore[arg-type]
    with raises(UsageError, "settings-conflict", option="test_through"):
        client2vec(atlas=atlas, train=True, test_through="g", lambda_d=0.0)
    with raises(UsageError, "out-of-range", setting="Projected(width)", got=0):
        Projected(width=0)
    with raises(UsageError, "unknown-name", kind="half of the atlas of AtlasVectors", got="colour"):
        AtlasVectors(atlas=atlas, half="colour")
