"""Newcomers of runs whose groups of clients have a model each."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedatlas import train
from fedatlas.adapting import Adapter, load_personalised, read_about
from fedatlas.adapting.placement import place_by_loss
from fedatlas.algorithms import cfl, fedavg, fedbn, ifca
from fedatlas.algorithms import grouped as from_atlas
from fedatlas.atlas import Atlas, make_atlas, run_atlas
from fedatlas.cli.app import app
from fedatlas.client import PERSONAL
from fedatlas.data import Client, Dataset, Federation
from fedatlas.errors import DataError, UsageError
from fedatlas.parts import GROUP, Algorithm, ByGroup, ByTrial, Level
from fedatlas.runs import ATLAS, Run
from fedatlas.seeds import generator
from fedatlas.training import Settings
from raising import raises
from tiny import same_bits

KINDS = ("plain", "turned", "renamed")
CLASSES = 4
TRAIN, TEST = 24, 8
GROUPS = {f"{kind}-{i}": group for group, kind in enumerate(KINDS) for i in range(3)}
NEWCOMERS = [f"{kind}-new" for kind in KINDS]


def kinds_federation() -> Federation:
    """Return three clients and a held-out newcomer of each kind.

    Their images of four classes are as they are, upside down, or with the names of the first two classes exchanged.
    """
    rng = generator(0, "kinds")
    patterns = torch.rand(CLASSES, 3, 8, 8, generator=rng) * 200
    names = [*GROUPS, *NEWCOMERS]
    inputs, labels, clients = [], [], []
    for number, name in enumerate(names):
        kind = name.split("-")[0]
        own = torch.arange(TRAIN + TEST) % CLASSES
        rows = patterns[own] + 25 * torch.randn(len(own), 3, 8, 8, generator=rng)
        inputs.append(rows.flip(2) if kind == "turned" else rows)
        labels.append(torch.tensor([1, 0, 2, 3])[own] if kind == "renamed" else own)
        part = torch.arange(len(own)) + number * len(own)
        clients.append(Client(name=name, train=part[:TRAIN], test=part[TRAIN:], held_out=name in NEWCOMERS))
    data = Dataset(
        name="kinds",
        inputs=torch.cat(inputs).clamp(0, 255).to(torch.uint8),
        labels=torch.cat(labels),
        classes=tuple("abcd"),
    )
    return Federation(data=data, clients=tuple(clients), partition="by kind")


def trained(folder: Path, algorithm: Algorithm, *, rounds: int = 3, norm: str = "instance", keeps: bool = True) -> Run:
    federation = kinds_federation()
    options = {"model": "cnn", "model_options": {"width": 4, "norm": norm}, "batch_size": 8, "steps": 6}
    settings = Settings(rounds=rounds, workers=1, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "3 held-out clients have no group")
        run = train(federation, algorithm, settings, folder=folder, progress=False)
    if keeps:
        make_atlas(federation, source="class-prototypes", encoder="builtin", progress=False).save(folder / ATLAS)
    return run


def grouped(base: Algorithm, level: Level = "all") -> Algorithm:
    return replace(base, sharing=ByGroup(groups=GROUPS, level=level))


def opened(run: Run, algorithm: Algorithm) -> Adapter:
    return Adapter(run, data=kinds_federation(), algorithm=algorithm)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("run") / "grouped", grouped(fedavg()))


@pytest.fixture(scope="module")
def adapter(run: Run) -> Adapter:
    return opened(run, grouped(fedavg()))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Adapter]:
    """FedBN with a model for each group: norms are the clients' own."""
    algorithm = grouped(fedbn())
    run = trained(tmp_path_factory.mktemp("local") / "fedbn", algorithm, norm="batch")
    return run, opened(run, algorithm)


@pytest.mark.parametrize(("base", "level"), [(fedavg, "head"), (fedavg, "norms"), (fedbn, "head")])
def test_a_newcomer_gets_its_groups_part_of_a_model(
    tmp_path: Path, base: Callable[[], Algorithm], level: Level
) -> None:
    algorithm = grouped(base(), level)
    run = trained(tmp_path / "run", algorithm, rounds=2, norm="batch")
    for group, one in enumerate(opened(run, algorithm).adapt_all(start="group", examples=10)):
        assert (one.group, one.num_steps) == (group, 0)
        parameters = run.parameters(group=group)
        assert same_bits({name: one.model().state_dict()[name] for name in parameters}, parameters)


def test_each_newcomer_gets_its_groups_model_without_training(run: Run, adapter: Adapter) -> None:
    results = adapter.adapt_all(start="group", examples=10)
    assert [one.client for one in results] == NEWCOMERS
    for group, one in enumerate(results):
        assert one.placement is not None
        assert (one.group, one.placement.group, one.placement.by) == (group, group, "vector")
        assert (one.num_steps, one.num_tuned, one.losses) == (0, 0, [])
        assert (one.num_examples, one.placement.num_examples) == (10, 10)
        assert one.after.accuracy == one.before.accuracy
        parameters = run.parameters(group=group)
        assert same_bits({name: one.model().state_dict()[name] for name in parameters}, parameters)
        assert one.bytes_received == sum(tensor.nbytes for tensor in parameters.values())


def test_a_newcomers_record_says_its_group_and_how_it_was_placed(adapter: Adapter, run: Run) -> None:
    adapter.keep([adapter.adapt("turned-new", start="group", examples=8)])
    (record,) = [own for own in run.adapted if own["client"] == "turned-new"]
    assert record["group"] == 1
    placement = record["placement"]
    assert (placement["group"], placement["by"]) == (1, "vector")
    assert (placement["labelled"], placement["num_examples"]) == (True, 8)
    assert placement["certainty"] == max(placement["chances"])


def test_without_labels_a_turned_newcomer_is_placed_and_a_renamed_one_is_not(adapter: Adapter) -> None:
    assert adapter.adapt("turned-new", start="group", labels=False).group == 1
    with raises(DataError, "placement-uncertain", client="renamed-new", reason="labelling"):
        adapter.adapt("renamed-new", start="group", labels=False)


def test_a_newcomer_that_may_be_of_two_groups_is_refused_and_may_be_named_one(adapter: Adapter) -> None:
    doubtful = of_two_groups(adapter)
    placement = doubtful.place("plain-new")
    assert (placement.placed, placement.refusal) == (False, "uncertain")
    with raises(DataError, "placement-uncertain", client="plain-new", reason="uncertain", chances=placement.chances):
        doubtful.adapt("plain-new", start="group")
    given = doubtful.adapt("plain-new", start="group", group=2)
    assert (given.group, given.placement) == (2, None)


def test_a_client_of_the_run_uses_its_groups_model_as_in_the_last_evaluation(run: Run, adapter: Adapter) -> None:
    last = {entry["client"]: entry for entry in run.clients if entry["round"] == 3 and "accuracy" in entry}
    for client, group in (("plain-0", 0), ("turned-1", 1), ("renamed-2", 2)):
        adapted = adapter.adapt(client, rounds=0)
        assert (adapted.group, adapted.placement) == (group, None)
        assert adapted.before.loss == last[client]["loss"]


def test_the_network_for_inference_is_that_of_a_clients_group(run: Run) -> None:
    for client, group in (("plain-0", 0), ("renamed-2", 2)):
        network, named = run.model(client), run.model(group=group)
        assert same_bits(network.state_dict(), named.state_dict())
        assert same_bits(run.parameters(client), run.parameters(group=group))
    assert not same_bits(run.parameters(group=0), run.parameters(group=1))


def test_without_a_client_or_a_group_the_groups_are_listed(run: Run, tmp_path: Path) -> None:
    for ask in (run.model, run.parameters):
        with raises(UsageError, "missing-option", option="group", known=[0, 1, 2]) as caught:
            ask()
        assert "0 (plain-0, plain-1, plain-2), 1 (turned-0" in str(caught.value)
        with raises(UsageError, "client-missing", client="plain-new", known=[0, 1, 2]):
            ask("plain-new")
        with raises(UsageError, "out-of-range", setting="group", got=3):
            ask(group=3)
    alone = trained(tmp_path / "alone", fedavg(), rounds=1, keeps=False)
    with raises(UsageError, "settings-conflict", setting="group"):
        alone.model(group=0)
    with raises(UsageError, "run-unfit", algorithm="fedavg"):
        opened(alone, fedavg()).adapt("plain-new", start="group")


def test_the_groups_model_is_exported(adapter: Adapter, tmp_path: Path) -> None:
    adapted = adapter.adapt("turned-new", start="group")
    path = adapted.save(tmp_path / "turned.safetensors")
    assert (read_about(path)["client"], read_about(path)["group"]) == ("turned-new", 1)
    inputs = torch.randn(2, 3, 8, 8, generator=generator(0, "inputs"))
    assert torch.equal(load_personalised(path)(inputs)[1], adapter.run.model(group=1)(inputs)[1])


def test_a_newcomer_of_fedbn_begins_with_the_mean_of_its_group_and_tunes_only_when_asked(
    local: tuple[Run, Adapter],
) -> None:
    run, adapter = local
    placed, tuned = (adapter.adapt("turned-new", start="group", **more) for more in ({}, {"rounds": 2, "steps": 3}))
    members = [adapter.starts.known[client] for client in (3, 4, 5)]
    mean = {name: sum(own[name] / 3 for own in members) for name in members[0]}
    for name, value in mean.items():
        assert torch.allclose(placed.start[name], torch.as_tensor(value), atol=1e-6), name
    assert same_bits(placed.personal, placed.start)
    assert "3 that trained in its group" in placed.origin
    assert (tuned.num_steps, tuned.num_tuned) == (6, 24)
    shared = {name: tuned.model().state_dict()[name] for name in run.parameters(group=1)}
    assert same_bits(shared, run.parameters(group=1))


def test_the_model_that_is_tuned_is_that_of_the_group(run: Run, adapter: Adapter) -> None:
    results = adapter.adapt_all(NEWCOMERS, start="group", tune="head", rounds=1, steps=2, compare=False)
    for group, one in enumerate(results):
        shared = run.parameters(group=group)
        assert (one.group, one.num_steps, one.origin) == (group, 2, f"the model of group {group}")
        assert same_bits(one.start, {name: shared[name] for name in ("head.bias", "head.weight")})
        own = one.model().state_dict()
        assert {name for name in shared if not torch.equal(own[name], shared[name])} == set(one.start)


def test_clients_of_different_groups_are_tuned_as_if_alone(local: tuple[Run, Adapter]) -> None:
    _, adapter = local
    together = adapter.adapt_all(NEWCOMERS, rounds=1, steps=2, start="group")
    for one in together:
        alone = adapter.adapt(one.client, rounds=1, steps=2, start="group")
        assert same_bits(one.personal, alone.personal)
        assert one.after.loss == alone.after.loss
        assert same_bits(one.model().state_dict(), alone.model().state_dict())


def test_the_lowest_loss_and_its_certainty_worked_out_by_hand() -> None:
    """Sums of losses are 2 and 1, so the likelihoods are e^-2 and e^-1, and the second has 1 / (1 + 1/e) of both."""
    found = place_by_loss("a", torch.tensor([[1.5, 0.5], [0.25, 0.75]]).double())
    assert (found.group, found.by, found.num_examples) == (1, "loss", 2)
    assert found.certainty == pytest.approx(1 / (1 + np.exp(-1)))
    assert found.reason == "the lowest loss on its training examples (0.500)"


@pytest.mark.parametrize("algorithm", [ifca(k=2), cfl()], ids=["ifca", "cfl"])
def test_without_an_atlas_a_newcomer_is_placed_by_its_loss(algorithm: Algorithm, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", algorithm, keeps=False)
    adapter = opened(run, algorithm)
    placement = adapter.place("turned-new")
    losses = [adapter.adapt("turned-new", group=g, rounds=0) for g in range(len(run.checkpoint().state.groups))]
    assert placement.by == "loss"
    assert len(placement.chances) == len(losses)
    adapted = adapter.adapt("turned-new", start="group")
    assert adapted.group == placement.group
    assert adapted.bytes_received == sum(one.bytes_received for one in losses)
    with raises(UsageError, "missing-option", option="atlas"):
        adapter.place("turned-new", labels=False)


def test_groups_that_left_use_their_second_memory_and_others_the_common_model(tmp_path: Path) -> None:
    """All groups leave where any t is enough; none does where none is."""
    for threshold, leaves in ((-1e9, True), (1e9, False)):
        algorithm = replace(fedbn(), sharing=ByTrial(groups=GROUPS, pilot=1, threshold=threshold))
        run = trained(tmp_path / str(leaves), algorithm, rounds=4, norm="batch")
        adapter = opened(run, algorithm)
        last = {entry["client"]: entry for entry in run.clients if entry["round"] == 4 and "accuracy" in entry}
        adapted = adapter.adapt("turned-1", rounds=0)
        assert adapted.group == (1 if leaves else None)
        assert adapted.before.loss == last["turned-1"]["loss"]
        memory: Mapping[str, dict[str, torch.Tensor]] = run.checkpoint().clients[4]
        wanted = memory[f"{GROUP}/{PERSONAL}" if leaves else PERSONAL]
        assert same_bits(adapted.personal, wanted)
        state = run.model("turned-1", algorithm=algorithm).state_dict()
        assert same_bits({name: state[name] for name in wanted}, wanted)
        vector = run_atlas(run).half("feature")[4]
        assert torch.equal(vector, torch.cat([v.flatten() for n, v in wanted.items() if "running" not in n]))
        newcomer = adapter.adapt("turned-new", start="group")
        assert newcomer.placement is not None
        assert (newcomer.placement.group, newcomer.group) == (1, 1 if leaves else None)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    """FedBN, whose common model all groups have left."""
    algorithm = replace(fedbn(), sharing=ByTrial(groups=GROUPS, pilot=1, threshold=-1e9))
    return opened(trained(tmp_path_factory.mktemp("left") / "run", algorithm, rounds=4, norm="batch"), algorithm)


def of_two_groups(adapter: Adapter) -> Adapter:
    """Return an adapter whose plain newcomer lacks the renamed classes, so that it is as likely a renamed one."""
    federation = kinds_federation()
    client = federation.clients[federation.position("plain-new")]
    others = client.train[federation.data.labels[client.train] >= 2]
    clients = tuple(replace(own, train=others) if own.name == client.name else own for own in federation)
    return Adapter(adapter.run, data=replace(federation, clients=clients), algorithm=adapter.algorithm)


def test_where_all_groups_have_left_a_newcomer_is_placed_without_being_asked(left: Adapter) -> None:
    """It then begins as with start="group", and is tuned as any other client."""
    for group, one in enumerate(left.adapt_all(rounds=0)):
        assert one.placement is not None
        assert (one.group, one.placement.group, one.describe()["placement"]["group"]) == (group, group, group)
        asked = left.adapt(one.client, start="group")
        assert same_bits(one.model().state_dict(), asked.model().state_dict())
        assert one.before.loss == asked.before.loss
        assert "3 that trained in its group" in one.origin
    assert left.adapt("turned-new", rounds=1, steps=2).num_steps == 2
    assert left.adapt("turned-1", rounds=0).placement is None
    assert left.adapt("turned-new", rounds=0, labels=False).group == 1


def test_a_newcomer_that_cannot_be_placed_has_the_model_of_all_clients_and_hears_why(left: Adapter) -> None:
    doubtful = of_two_groups(left)
    said = "client plain-new is not placed: its 12 examples leave group .* the model of all clients, which all groups"
    with pytest.warns(UserWarning, match=said):
        adapted = doubtful.adapt("plain-new", rounds=0)
    assert adapted.placement is not None
    assert (adapted.group, adapted.placement.refusal) == (None, "uncertain")
    assert "leave group" in adapted.describe()["placement"]["reason"]
    common = left.run.parameters()
    assert same_bits({name: adapted.model().state_dict()[name] for name in common}, common)
    with raises(DataError, "placement-uncertain", client="plain-new"):
        doubtful.adapt("plain-new", start="group")


def test_where_some_groups_have_left_a_newcomer_may_be_of_them_or_of_the_rest(tmp_path: Path) -> None:
    algorithm = replace(fedavg(), sharing=ByTrial(groups=GROUPS, pilot=1, threshold=1e9, apart=(2,)))
    adapter = opened(trained(tmp_path / "run", algorithm, rounds=4), algorithm)
    plain, turned, renamed = adapter.adapt_all(NEWCOMERS, rounds=0)
    assert [own.placement and own.placement.group for own in (plain, turned, renamed)] == [0, 1, 2]
    assert [own.group for own in (plain, turned, renamed)] == [None, None, 2]
    member = adapter.adapt("plain-1", rounds=0)
    assert (member.group, member.placement) == (None, None)


def test_labels_are_not_forbidden_in_vain(left: Adapter, tmp_path: Path) -> None:
    algorithm = replace(fedavg(), sharing=ByTrial(groups=GROUPS, pilot=1, threshold=1e9))
    stayed = opened(trained(tmp_path / "run", algorithm, rounds=4), algorithm)
    for adapter, client in ((stayed, "turned-new"), (left, "turned-1")):
        with raises(UsageError, "settings-conflict", setting="labels"):
            adapter.adapt(client, labels=False, rounds=0)


def test_the_command_places_clients_of_a_file_and_leaves_out_those_it_cannot(run: Run, tmp_path: Path) -> None:
    federation = kinds_federation()
    rows = federation.clients[federation.position("turned-new")].train
    images = federation.data.inputs[rows].permute(0, 2, 3, 1).numpy()
    labels = np.array(["abcd"[label] for label in federation.data.labels[rows].tolist()])
    owners = np.array(["turned"] * len(rows) + ["dark"] * len(rows))
    both = tmp_path / "both.npz"
    np.savez(both, x=np.concatenate([images, 255 - images]), y=np.concatenate([labels, labels]), owner=owners)
    command = ["adapt", str(run.folder), "--start", "group", "--data", str(both)]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "turned: group 1 (certainty 1.00, from 18 labelled examples)" in found.output
    assert "dark: not placed: it is unlike every group" in found.output
    record = json.loads((run.folder / "adapted.json").read_text())[-1]
    assert (record["client"], record["group"], record["num_steps"]) == ("turned", 1, 0)
    none = CliRunner().invoke(app, [*command, "--client", "dark"])
    assert none.exit_code == 2
    assert "dark: not placed: it is unlike every group" in none.output
    unlabelled = CliRunner().invoke(app, [*command[:2], *command[4:], "--client", "turned", "--no-labels", "-r", "0"])
    assert unlabelled.exit_code == 0, unlabelled.output
    assert "turned: group 1 (certainty 1.00, from 18 unlabelled examples)" in unlabelled.output


def test_groups_of_an_atlas_are_placed_by_it_without_a_file(tmp_path: Path) -> None:
    federation = kinds_federation()
    atlas = make_atlas(federation, source="class-prototypes", encoder="builtin", progress=False)
    algorithm = from_atlas(fedavg(), atlas)
    assert isinstance(algorithm.sharing, ByGroup)
    run = trained(tmp_path / "run", algorithm, keeps=False)
    for name in NEWCOMERS:
        placement = opened(run, algorithm).place(name, examples=12)
        assert (placement.group, placement.by) == (algorithm.sharing.groups[name], "vector")


def test_an_atlas_may_be_given_and_must_belong_to_the_groups(adapter: Adapter) -> None:
    atlas = Atlas.load(adapter.run.folder / ATLAS)
    assert adapter.adapt("renamed-new", start="group", atlas=atlas, examples=12).group == 2
    with raises(UsageError, "settings-conflict"):
        adapter.adapt("renamed-new", start="mean", atlas=atlas)
    with raises(UsageError, "wrong-count", got=1, wanted=2):
        adapter.adapt_all(NEWCOMERS[:2], group=[0])
