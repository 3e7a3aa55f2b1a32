from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.algorithms import fedavg
from fedatlas.algorithms.fedmix import MixedCrossEntropy, fedmix
from fedatlas.algorithms.fedsam import SharpnessAware
from fedatlas.client import LocalWork, open_local
from fedatlas.data import Client, Dataset, Federation
from fedatlas.errors import UsageError
from fedatlas.models import build_model
from fedatlas.parts import SGD, Assignment, Batch, Output, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits

KEY = "server/mixed_cross_entropy"


class Smooth(nn.Module):
    """A network with curvature and without batch normalisation or dropout."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
            nn.init.normal_(self.head.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.body(x))
        return features, self.head(features)


def test_a_step_follows_all_three_terms() -> None:
    """Two examples x = 2, label 0, lam 0.5, so x' = 1, x_g = 2, y_g = (1, 0). At w = 0, per example: the slope of
    l1 = 0.5 log(1 + e^{-w x'}) is -0.25, that of l2 the same. dl1/dx' = -0.5 w sigmoid(-w x') has the slope -0.25 in w,
    so l3 = 0.5 * 2 * dl1/dx' has -0.25. Together -0.75; with lr 0.1, w = 0.075."""
    algorithm = fedmix(lam=0.5).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), line_federation(([2, 2], [0, 0])))
    assert state.shared["head.weight"].item() == pytest.approx(0.075, abs=1e-6)


def test_the_second_term_uses_the_mean_label() -> None:
    """x = 2 (label 0) and x = 6 (label 1), lam 0.5: x' = 1 and 3, x_g = 4, y_g = (1/2, 1/2). At w = 0 the slopes of l1
    are -0.25 and 0.75, mean 0.25; l2 has slope 0, as the model's shares are the label's; those of l3 are
    0.5 * 4 * (-0.25 and 0.25), mean 0. w = -0.1 * 0.25 = -0.025. With the examples' own labels in l2, the slope would
    be 0.5."""
    algorithm = fedmix(lam=0.5).with_optimizer(SGD(lr=0.1))
    state, _, _ = play(algorithm, Line(), line_federation(([2, 6], [0, 1])))
    assert state.memory[KEY]["inputs"].tolist() == [[4.0]]
    assert state.memory[KEY]["labels"].tolist() == [[0.5, 0.5]]
    assert state.shared["head.weight"].item() == pytest.approx(-0.025, abs=1e-6)


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_loss_approaches_mixup_to_the_first_order(per_sample: bool) -> None:
    """Against the exact Mixup loss with the same draw, the error falls by about 100 when lam falls by 10; with a wrong
    term it would fall by 10."""
    federation = blob_federation(num_clients=3)
    errors = []
    for lam in (0.2, 0.02):
        term = MixedCrossEntropy(lam=lam, per_sample=per_sample)
        algorithm = replace(fedmix(lam=lam), objective=(term,))
        model = Smooth()
        _, _, simulator = play(algorithm, model, federation, work=LocalWork(steps=1))
        shared, buffers = simulator.runner.bench.shared()
        memory = algorithm.server[0].init(shared, simulator.roster)
        notes = {term.name: algorithm.server[0].note(memory, simulator.roster[0])}
        assignment = Assignment(round=1, rounds=1, client=0, shared=shared, buffers=buffers, notes=notes)
        runner = simulator.runner
        local = open_local(runner.algorithm, runner.work, assignment, runner.bench, {}, runner.data(0), 0)
        plain = runner.data(0).batch(federation.clients[0].train, None)
        batch = term.prepare(local, plain)
        ours = term.loss(local, batch, Output(*model(batch.inputs)))
        inputs, labels = local.scratch[term.name]["inputs"], local.scratch[term.name]["labels"]
        _, logits = model((1 - lam) * plain.inputs + lam * inputs)
        exact = (1 - lam) * F.cross_entropy(logits, plain.labels)
        exact = exact + lam * F.cross_entropy(logits, labels.expand_as(logits))
        errors.append(abs(float(ours.detach() - exact.detach())))
    assert errors[1] < errors[0] / 30


def test_means_are_disjoint_bounded_and_of_full_groups_only() -> None:
    """Clients of 7, 1 and 4 examples, groups of 3, at most 2 a client: 2, 0 and 1 means. Examples 1, 2, 4, ..., 64 have
    sums that tell which are in a group."""
    federation = line_federation(([1, 2, 4, 8, 16, 32, 64], [0] * 7), ([5], [1]), ([9, 9, 9, 9], [0, 1, 1, 1]))
    state, _, simulator = play(fedmix(group=3, max_groups=2), Line(), federation)
    said = [client.introduction.get("mixed_cross_entropy") for client in simulator.roster]
    assert said[1] is None
    assert [None if s is None else len(s["labels"]) for s in said] == [2, None, 1]
    members = [round(3 * float(mean)) for mean in said[0]["inputs"]]  # type: ignore[index]
    assert [member.bit_count() for member in members] == [3, 3]
    assert members[0] & members[1] == 0
    assert state.memory[KEY]["inputs"].shape == (3, 1)
    torch.testing.assert_close(state.memory[KEY]["labels"].sum(1), torch.ones(3))


def test_a_group_of_all_gives_one_mean_a_client_but_never_a_single_example() -> None:
    federation = line_federation(([1, 2, 6], [0, 0, 1]), ([5], [1]))
    state, _, _ = play(fedmix(group=None), Line(), federation)
    assert state.memory[KEY]["inputs"].tolist() == [[3.0]]
    torch.testing.assert_close(state.memory[KEY]["labels"], torch.tensor([[2 / 3, 1 / 3]]))


def test_images_are_averaged_as_the_model_sees_them_and_held_out_clients_share_none() -> None:
    """Pixels 0 and 51 are 0 and 0.2; with mean 0.5 and std 0.25: -2 and -1.2, mean -1.6."""
    images = torch.tensor([0, 51, 255, 255], dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 1, 2, 2).contiguous()
    data = Dataset(
        name="grey", inputs=images, labels=torch.tensor([0, 1, 0, 1]), classes=("a", "b"), mean=(0.5,), std=(0.25,)
    )
    halves = torch.arange(4).split(2)
    clients = tuple(Client(name=f"client-{i}", train=own, test=own) for i, own in enumerate(halves))
    federation = Federation(data=data, clients=clients).hold_out([1])

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.flatten(1), self.head(x.flatten(1))

    state, _, simulator = play(fedmix(), Flat(), federation)
    torch.testing.assert_close(state.memory[KEY]["inputs"], torch.full((1, 1, 2, 2), -1.6))
    assert simulator.roster[1].introduction == {}


def test_a_client_receives_a_bounded_number_of_means_and_others_the_next_round() -> None:
    algorithm = fedmix(sent=4)
    rule = algorithm.server[0]
    state, _, simulator = play(algorithm, Norms(), blob_federation(), rounds=2)
    assert int(state.memory[KEY]["rounds"]) == 2
    shared, _ = simulator.runner.bench.shared()
    memory = rule.init(shared, simulator.roster)
    notes = [rule.note(memory | {"rounds": torch.tensor(n)}, simulator.roster[0])["inputs"] for n in (0, 0, 1)]
    assert len(memory["labels"]) > 4
    assert all(note.shape == (4, 4) for note in notes)
    assert torch.equal(notes[0], notes[1])
    assert not torch.equal(notes[0], notes[2])
    other = rule.note(memory, simulator.roster[1])["inputs"]
    assert not torch.equal(notes[0], other)


def test_one_mean_serves_a_batch_or_each_example_gets_its_own() -> None:
    ends = [play(fedmix(lam=0.3, per_sample=flag), Norms(), blob_federation(), rounds=2)[0] for flag in (False, True)]
    assert not same_bits(ends[0].shared, ends[1].shared)


def test_both_looks_of_a_perturbing_optimizer_see_the_same_mean() -> None:
    """With a radius too small to matter the second look must give what one look gives; another draw would not."""
    federation = blob_federation(num_clients=2)
    algorithm = fedmix(lam=0.4)
    plain, _, _ = play(algorithm, Smooth(), federation)
    twice, _, _ = play(replace(algorithm, optimizer=SharpnessAware(rho=1e-6)), Smooth(), federation)
    for name, value in plain.shared.items():
        torch.testing.assert_close(twice.shared[name], value, atol=1e-5, rtol=0)


def test_it_repeats_from_the_seed_under_partial_participation_and_batch_normalisation() -> None:
    states = [play(fedmix(), Norms(), blob_federation(), rounds=4, cohort=2)[0] for _ in range(2)]
    assert same_bits(states[0].shared, states[1].shared)
    assert all(bool(w.isfinite().all()) for w in states[0].shared.values())


def test_without_a_share_it_is_fedavg_bit_for_bit_and_nothing_is_shared() -> None:
    federation = blob_federation()
    plain, _, _ = play(fedavg(), Norms(), federation, rounds=3)
    without, _, simulator = play(fedmix(lam=0.0), Norms(), federation, rounds=3)
    assert same_bits(plain.shared, without.shared)
    assert same_bits(plain.buffers, without.buffers)
    assert all(client.introduction == {} for client in simulator.roster)
    assert words(fedmix(lam=0.0).disclosures()) == []
    assert words(fedmix().disclosures()) == [
        "means of groups of the client's training inputs",
        "means of the labels of those groups",
    ]


def test_tokens_are_refused() -> None:
    data = Dataset(
        name="letters",
        inputs=torch.zeros(4, 3, dtype=torch.int64),
        labels=torch.tensor([0, 1, 0, 1]),
        classes=("a", "b"),
    )
    federation = Federation(data=data, clients=(Client(name="one", train=torch.arange(4), test=torch.arange(4)),))
    with raises(UsageError, "kind-mismatch", got="tokens"):
        play(fedmix(), Line(), federation)


def test_wrong_settings_are_refused() -> None:
    with raises(UsageError, "out-of-range", setting="MixedCrossEntropy(lam)", got=1):
        fedmix(lam=1)
    with raises(UsageError, "out-of-range", setting="MeanPool(group)", got=1):
        fedmix(group=1)
    with raises(UsageError, "out-of-range", setting="MeanPool(max_groups)", got=0):
        fedmix(max_groups=0)
    with raises(UsageError, "out-of-range", setting="MeanPool(sent)", got=0):
        fedmix(sent=0)
    with raises(UsageError, "too-few-examples", wanted=5):
        play(fedmix(group=5), Line(), line_federation(([1, 2], [0, 1])))
    with raises(UsageError, "part-missing", part="MeanPool"):
        play(replace(fedmix(), server=()), Line(), line_federation(([1, 2], [0, 1])))


MODELS = {
    **{norm: {"name": "cnn", "width": 4, "norm": norm} for norm in ("batch", "group", "instance", "layer", "none")},
    "attention": {"name": "vit", "width": 8, "depth": 2, "heads": 2, "patch": 4},
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("per_sample", [False, True])
def test_forward_mode_gives_the_gradient_of_the_second_derivative(kind: str, per_sample: bool) -> None:
    """What a GPU computes, against what a CPU does, in double precision."""
    options: dict[str, Any] = dict(MODELS[kind])
    model = build_model(options.pop("name"), num_classes=3, input_shape=(2, 8, 8), **options).double().train()
    rng = torch.Generator().manual_seed(0)
    count = 6 if per_sample else 1
    drawn = {
        "inputs": torch.randn(count, 2, 8, 8, generator=rng, dtype=torch.float64),
        "labels": torch.rand(count, 3, generator=rng, dtype=torch.float64).softmax(1),
    }
    term = MixedCrossEntropy(lam=0.3, per_sample=per_sample)
    parameters = dict(model.named_parameters())
    local = SimpleNamespace(scratch={term.name: drawn}, work=LocalWork())
    local.forward = lambda _, inputs: Output(*functional_call(model, {k: b.clone() for k, b in buffers}, (inputs,)))
    buffers = list(model.named_buffers())
    inputs, labels = torch.randn(6, 2, 8, 8, generator=rng, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    found = []
    for batch in (Batch(inputs.clone().requires_grad_(), labels), Batch(inputs, labels)):
        output = local.forward({}, batch.inputs)
        loss = term.loss(local, batch, output)  # type: ignore[arg-type]
        found.append((loss.detach(), torch.autograd.grad(loss, list(parameters.values()))))
    torch.testing.assert_close(found[0][0], found[1][0])
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-10)


def test_a_client_never_shares_more_means_than_allowed() -> None:
    """Nine examples would fill three groups of 3; at most two are sent."""
    state, _, _ = play(fedmix(group=3, max_groups=2), Line(), line_federation((range(1, 10), [0] * 9)))
    assert state.memory[KEY]["inputs"].shape == (2, 1)


def test_every_step_draws_a_mean_anew_from_the_seed() -> None:
    """Of two means 1 and 2, twenty steps draw both; another seed draws in another order, the same one in the same."""
    term = MixedCrossEntropy(lam=0.5)
    means = {"inputs": torch.tensor([[1.0], [2.0]]), "labels": torch.eye(2)}
    batch = Batch(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))

    def drawn(seed: int) -> list[float]:
        found = []
        for step in range(20):
            local: Any = SimpleNamespace(notes={term.name: means}, seed=seed, steps=step, scratch={})
            term.prepare(local, batch)
            found.append(local.scratch[term.name]["inputs"].item())
        return found

    assert set(drawn(0)) == {1.0, 2.0}
    assert drawn(0) == drawn(0) != drawn(1)
