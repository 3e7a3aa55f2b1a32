from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atlases import clip_like
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.client2vec.index import (
    client2vec_index,
    index_client,
    index_clients,
    sample_indices,
    train_index_network,
    training_pairs,
)
from fedatlas.atlas.client2vec.network import DSAIGN, similarity_loss
from fedatlas.atlas.client2vec.settings import IndexSettings
from fedatlas.atlas.client2vec.train_federated import Decomposition, index_algorithm, index_work
from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.data import Federation, Rotate
from fedatlas.errors import DataError, TrainingError, UsageError
from fedatlas.parts import Adam
from raising import raises

TINY = IndexSettings(feed_forward=16, layers=1, heads=2, batch_size=32, upload=16, local_epochs=1, cohort=0.5)
REDUCED = IndexSettings(feed_forward=32, layers=1, heads=2, batch_size=64, lr=3e-3)
"""Seconds in place of minutes; 0.91 and 0.01 below, against 0.90 and -0.03 with the paper's width and depth."""


def domain_cosines(atlas: Atlas) -> tuple[float, float]:
    """The mean cosine of beta^f of two clients of the same domain, and of different domains."""
    cosines = atlas.similarity("feature")
    same = torch.tensor([[one == other for other in atlas.domains] for one in atlas.domains])
    return float(cosines[same & ~torch.eye(len(atlas), dtype=torch.bool)].mean()), float(cosines[~same].mean())


def small(**changes: object) -> tuple[Federation, Embeddings]:
    return clip_like(**{"width": 32, "domains": 2, "clients": 2, "samples": 20, "classes": 3, **changes})  # type: ignore[arg-type]


def test_clients_of_one_domain_are_alike_and_domains_are_apart() -> None:
    federation, embeddings = clip_like()
    same, different = domain_cosines(client2vec_index(federation, embeddings, epochs=20, settings=REDUCED))
    assert same > 0.8
    assert different < 0.1


def test_without_the_diversity_loss_all_clients_look_alike() -> None:
    """The effect of the paper's Fig. 7."""
    federation, embeddings = clip_like()
    settings = replace(REDUCED, losses=("sim", "orth", "recon"))
    same, different = domain_cosines(client2vec_index(federation, embeddings, epochs=20, settings=settings))
    assert same > 0.9
    assert different > 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "least_same", "different"),
    [
        ({}, 0.85, (-0.4, 0.1)),
        ({"global_batching": "per_client"}, 0.6, (-0.1, 0.2)),
        ({"orthogonality": "mean_dot"}, 0.9, (0.3, 1.0)),
        ({"orthogonality": "sum_dot"}, 0.9, (0.3, 1.0)),
        ({"losses": ("sim", "orth", "recon")}, 0.9, (0.4, 1.0)),
        ({"losses": ("div", "sim", "recon")}, 0.85, (-0.4, 0.2)),
        ({"losses": ("div", "orth", "recon")}, 0.8, (-0.4, 0.0)),
        ({"losses": ("div", "sim", "orth")}, 0.85, (-0.4, 0.1)),
        ({"projection": "mlp"}, 0.85, (-0.4, 0.1)),
        ({"normalize": True}, 0.8, (-0.5, -0.1)),
        ({"pos_embed": False}, 0.85, (0.1, 0.6)),
    ],
)
def test_every_reading_of_the_paper_on_clip_like_vectors(
    settings: dict[str, object], least_same: float, different: tuple[float, float]
) -> None:
    """The table in docs/client2vec-index.md; ``pytest --slow -s -k every_reading`` prints it."""
    for seed in (0, 1):
        federation, embeddings = clip_like(width=512, seed=seed)
        network = train_index_network(
            federation,
            embeddings,
            epochs=40,
            seed=seed,
            settings=replace(IndexSettings(feed_forward=64), **settings),  # type: ignore[arg-type]
        )
        inputs, labels = network.inputs(embeddings.examples), federation.data.labels
        network.eval()
        with torch.no_grad():
            data, feature = network.halves(network(inputs)[0])
        similarity = float(similarity_loss(data, network.targets(embeddings.classes)[labels]))
        centres = torch.stack([feature[labels == label].mean(0) for label in range(10)])
        recovered = float((torch.cdist(feature, centres).argmin(1) == labels).float().mean())
        same, between = domain_cosines(index_clients(network, federation, embeddings))
        print(
            f"{settings} {seed}: same {same:.2f} different {between:.2f} L_sim {similarity:.2f} label {recovered:.2f}"
        )
        assert same > least_same
        assert different[0] < between < different[1]


def test_federated_training_draws_domains_apart_too() -> None:
    federation, embeddings = clip_like()
    settings = replace(REDUCED, cohort=4, local_epochs=4, batch_size=32)
    atlas = client2vec_index(federation, embeddings, strategy="federated", epochs=6, settings=settings, workers=1)
    same, different = domain_cosines(atlas)
    assert same > different + 0.25


def test_the_label_half_is_the_mean_of_the_labels_vectors() -> None:
    federation, embeddings = small()
    atlas = client2vec_index(federation, embeddings, epochs=1, settings=TINY)
    for i, client in enumerate(federation):
        expected = embeddings.classes[federation.data.labels[client.train]].mean(0)
        torch.testing.assert_close(atlas.half("label")[i], expected)


def test_the_feature_half_is_the_mean_of_u_over_all_training_examples_without_dropout() -> None:
    federation, embeddings = small()
    network = train_index_network(federation, embeddings, epochs=1, settings=TINY)
    atlas = index_clients(network, federation, embeddings)
    network.eval()
    with torch.no_grad():
        own = embeddings.examples[federation.clients[1].train]
        assert len(own) > TINY.upload
        expected = network(network.inputs(own))[0][:, network.width :].mean(0)
    torch.testing.assert_close(atlas.half("feature")[1], expected)
    assert atlas.sizes.tolist() == [20, 20, 20, 20]
    assert atlas.domains == ("domain-0", "domain-0", "domain-1", "domain-1")


@pytest.mark.parametrize("strategy", ["global", "federated"])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(strategy: str) -> None:
    federation, embeddings = small()
    before = torch.random.get_rng_state()

    def bits(seed: int) -> Tensor:
        return client2vec_index(
            federation, embeddings, strategy=strategy, epochs=2, seed=seed, settings=TINY, workers=1
        ).half("feature")

    assert torch.equal(bits(0), bits(0))
    assert not torch.equal(bits(0), bits(1))
    assert torch.equal(before, torch.random.get_rng_state())


def test_federated_training_does_not_depend_on_the_number_of_workers() -> None:
    federation, embeddings = small()
    one, two = (
        train_index_network(
            federation, embeddings, strategy="federated", epochs=2, settings=TINY, workers=workers
        ).describe()
        for workers in (1, 2)
    )
    assert one == two


@pytest.mark.parametrize("strategy", ["global", "federated"])
def test_held_out_clients_are_indexed_but_do_not_train(strategy: str) -> None:
    federation, embeddings = small(held_out=[1])
    changed = embeddings.examples.clone()
    changed[federation.clients[1].train] *= -1
    other = replace(embeddings, examples=changed)
    one, two = (
        client2vec_index(federation, e, strategy=strategy, epochs=2, settings=TINY, workers=1)
        for e in (embeddings, other)
    )
    assert one.provenance["network"] == two.provenance["network"]
    assert one.provenance["training_clients"] == 3
    assert torch.equal(one.half("feature")[[0, 2, 3]], two.half("feature")[[0, 2, 3]])
    assert not torch.equal(one.half("feature")[1], two.half("feature")[1])


def test_a_client_uploads_at_most_so_many_pairs() -> None:
    federation, embeddings = small()
    atlas = client2vec_index(federation, embeddings, epochs=1, settings=replace(TINY, upload=7))
    assert atlas.provenance["training_pairs"] == 28
    everything = client2vec_index(federation, embeddings, epochs=1, settings=replace(TINY, upload=500))
    assert everything.provenance["training_pairs"] == 80


def test_batches_may_be_of_one_client_each() -> None:
    """With batches of one client, L_div never compares two clients: the networks differ, the pairs do not."""
    federation, embeddings = small()
    mixed, single = (
        client2vec_index(federation, embeddings, epochs=1, settings=replace(TINY, global_batching=batching))
        for batching in ("mixed", "per_client")
    )
    assert mixed.provenance["training_pairs"] == single.provenance["training_pairs"]
    assert mixed.provenance["network"] != single.provenance["network"]


def test_a_batch_of_one_client_holds_only_its_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, embeddings = small()
    seen: list[Tensor] = []
    forward = DSAIGN.forward

    def watched(self: DSAIGN, inputs: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(inputs)
        return forward(self, inputs)

    monkeypatch.setattr(DSAIGN, "forward", watched)
    train_index_network(
        federation, embeddings, epochs=1, settings=replace(TINY, global_batching="per_client", upload=20, batch_size=8)
    )
    assert sorted(len(batch) for batch in seen) == [4] * 4 + [8] * 8
    for batch in seen:
        rows = [int((embeddings.examples == row).all(1).nonzero()) for row in batch]
        assert len({row // 20 for row in rows}) == 1


def test_a_federated_round_is_the_mean_of_what_clients_learn() -> None:
    """One round with all clients: the change is the mean, by examples, of each client's own change."""
    federation, embeddings = small(domains=1)
    settings = replace(TINY, cohort=2)
    together = train_index_network(
        federation, embeddings, strategy="federated", epochs=1, settings=settings, workers=1
    ).state_dict()
    alone = [
        train_index_network(
            federation.hold_out([1 - i]),
            embeddings,
            strategy="federated",
            epochs=1,
            settings=replace(settings, cohort=1),
            workers=1,
        ).state_dict()
        for i in range(2)
    ]
    for name, tensor in together.items():
        torch.testing.assert_close(tensor, (alone[0][name] + alone[1][name]) / 2, atol=1e-6, rtol=1e-5)


def test_a_client_that_comes_later_is_indexed_by_the_saved_network(tmp_path: Path) -> None:
    federation, embeddings = small()
    network = train_index_network(federation, embeddings, epochs=1, settings=TINY)
    network.save(tmp_path / "network.safetensors")
    atlas = index_clients(network, federation, embeddings)
    halves = index_client(DSAIGN.load(tmp_path / "network.safetensors"), federation, embeddings, "client-2")
    grown = atlas.add_client("newcomer", halves, size=20)
    assert torch.equal(grown.half()[4], grown.half()[2])


def test_classes_of_another_width_keep_it_in_the_label_half() -> None:
    federation, embeddings = small(class_width=24)
    atlas = client2vec_index(federation, embeddings, epochs=1, settings=TINY)
    assert atlas.half("feature").shape == (4, 32)
    assert atlas.half("label").shape == (4, 24)


def test_normalized_vectors_are_used_in_both_halves() -> None:
    federation, embeddings = small()
    settings = replace(TINY, normalize=True)
    atlas = client2vec_index(federation, embeddings, epochs=1, settings=settings)
    longer = replace(embeddings, examples=3 * embeddings.examples, classes=5 * embeddings.classes)
    again = client2vec_index(federation, longer, epochs=1, settings=settings)
    torch.testing.assert_close(atlas.half("label"), again.half("label"))
    torch.testing.assert_close(atlas.half("feature"), again.half("feature"), atol=1e-3, rtol=1e-3)
    assert atlas.provenance["mean_length"] == pytest.approx(1, abs=1e-5)


def test_provenance_says_how_the_index_came_about(tmp_path: Path) -> None:
    federation, embeddings = small()
    atlas = client2vec_index(federation, embeddings, epochs=2, seed=5, settings=TINY)
    expected = {"source": "client2vec", "encoder": "clip-like 1", "strategy": "global", "epochs": 2, "seed": 5}
    assert expected.items() <= atlas.provenance.items()
    assert IndexSettings(**atlas.provenance["settings"]) == TINY
    atlas.save(tmp_path / "atlas.safetensors")
    assert Atlas.load(tmp_path / "atlas.safetensors").provenance == atlas.provenance


def test_a_client_without_training_examples_gets_zeros() -> None:
    federation, embeddings = small(held_out=[3])
    empty = replace(federation.clients[3], train=torch.arange(0))
    atlas = client2vec_index(
        replace(federation, clients=(*federation.clients[:3], empty)), embeddings, epochs=1, settings=TINY
    )
    assert float(atlas.half()[3].abs().max()) == 0


def test_sample_indices_do_not_depend_on_the_batch_they_are_read_in() -> None:
    _, embeddings = small(samples=200)
    network = DSAIGN(32, 32, TINY)
    whole = sample_indices(network, embeddings.examples)
    torch.testing.assert_close(whole[300:310], sample_indices(network, embeddings.examples[300:310]))


def test_provenance_holds_the_mean_loss_of_the_last_epoch_or_round() -> None:
    federation, embeddings = small()
    for strategy in ("global", "federated"):
        network = train_index_network(
            federation, embeddings, strategy=strategy, epochs=1, settings=replace(TINY, losses=("sim",)), workers=1
        )
        assert 0 < network.provenance["last_loss"] < 2


def test_wrong_arguments_are_named() -> None:
    federation, embeddings = small()
    with raises(UsageError, "unknown-name", got="globally"):
        client2vec_index(federation, embeddings, strategy="globally")
    with raises(UsageError, "out-of-range", setting="epochs", got=0):
        client2vec_index(federation, embeddings, epochs=0)
    with raises(UsageError, "wrong-shape", what="classes", wanted=3):
        client2vec_index(federation, replace(embeddings, classes=embeddings.classes[:2]))
    with raises(UsageError, "wrong-shape", what="examples", wanted=80):
        client2vec_index(federation, replace(embeddings, examples=embeddings.examples[:70]))
    network = train_index_network(federation, embeddings, epochs=1, settings=TINY)
    with raises(UsageError, "embeddings-mismatch", got="other", wanted="clip-like 1"):
        index_client(network, federation, replace(embeddings, encoder="other"), 0)
    with raises(UsageError, "unknown-name", kind="client", got="client-9"):
        index_client(network, federation, embeddings, "client-9")
    with raises(UsageError, "client-position", got=4):
        index_client(network, federation, embeddings, 4)


def test_a_client_whose_examples_were_not_encoded_is_refused() -> None:
    federation, embeddings = small()
    examples = embeddings.examples.clone()
    examples[federation.clients[2].train] = 0
    with raises(DataError, "embeddings-mismatch", client="client-2"):
        client2vec_index(federation, replace(embeddings, examples=examples), epochs=1, settings=TINY)


def test_a_learning_rate_that_breaks_training_is_reported() -> None:
    federation, embeddings = small()
    with raises(TrainingError, "not-finite") as caught:
        client2vec_index(federation, embeddings, epochs=20, settings=replace(TINY, lr=1e30))
    assert "learning rate" in str(caught.value)


def test_pairs_are_drawn_without_replacement_by_seed_and_client_and_not_transformed_again() -> None:
    """The encoder has seen a client's transform already: its vectors must not be changed by it."""
    federation, embeddings = small()
    changed = replace(federation, clients=tuple(replace(c, transform=Rotate(degrees=9)) for c in federation))
    first, same, other = (training_pairs(changed, embeddings.examples, 7, seed) for seed in (0, 0, 1))
    drawn = [[client.train.tolist() for client in pairs] for pairs in (first, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(
        len(set(own)) == 7 and set(own) <= set(c.train.tolist()) for own, c in zip(drawn[0], changed, strict=True)
    )
    places = {tuple(i - int(c.train[0]) for i in own) for own, c in zip(drawn[0], changed, strict=True)}
    assert len(places) == len(drawn[0])
    assert all(client.transform is None for client in first)


def test_federated_clients_train_on_all_examples_unless_told_otherwise() -> None:
    """Nothing is uploaded there, so the limit of the upload does not hold."""
    federation, embeddings = small()
    for limit, expected in ((None, 80), (5, 20)):
        settings = replace(TINY, upload=7, local_samples=limit)
        network = train_index_network(federation, embeddings, strategy="federated", epochs=1, settings=settings)
        assert network.provenance["training_pairs"] == expected


def test_sizes_are_of_training_examples_and_settings_reach_the_clients_work() -> None:
    """A run compares an atlas's sizes with its clients' training parts."""
    federation, embeddings = small()
    tested = replace(federation, clients=tuple(replace(c, train=c.train[5:], test=c.train[:5]) for c in federation))
    atlas = index_clients(DSAIGN(32, 32, TINY), tested, embeddings)
    assert atlas.sizes.tolist() == [15, 15, 15, 15]
    work = index_work(replace(TINY, local_epochs=3, batch_size=9))
    assert (work.epochs, work.batch_size) == (3, 9)
    wanted = replace(TINY, losses=("sim", "orth"), orthogonality="sum_dot", lr=0.25)
    algorithm = index_algorithm(wanted, torch.zeros(3, 32))
    (term,) = algorithm.objective
    assert isinstance(term, Decomposition)
    assert (term.losses, term.orthogonality, algorithm.optimizer) == (("sim", "orth"), "sum_dot", Adam(lr=0.25))
