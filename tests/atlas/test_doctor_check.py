import shlex
import tomllib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import fedatlas
from fedatlas import check, federate, from_arrays, load_dataset
from fedatlas.atlas.doctor.advice import Commands, advise
from fedatlas.atlas.doctor.diagnosis import ADVICE, NOTHING, SUSPECT, Diagnosis, Member
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.verdict import Finding
from fedatlas.data import ByDomain, Federation, Iid, NaturalId, PermutedLabels
from fedatlas.seeds import numpy_generator

NO, YES = Finding(False, 0.0, "No."), Finding(True, 0.5, "Yes.")


@pytest.fixture(scope="module")
def heart() -> Federation:
    return federate(load_dataset("heart"), NaturalId(min_samples=1), seed=0)


def _inverted(federation: Federation, client: str) -> Federation:
    own = federation.clients[federation.position(client)]
    labels = federation.data.labels.clone()
    for part in (own.train, own.test):
        labels[part] = 1 - labels[part]
    return replace(federation, data=replace(federation.data, labels=labels))


def _wrong_labels(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(own.client, own.kind) for own in diagnosis.suspects if own.kind.startswith("labels")]


def test_heart_has_cholesterol_zero_for_missing_and_right_labels(heart: Federation) -> None:
    diagnosis = check(heart, given="--data heart")
    assert [(own.client, own.kind) for own in diagnosis.suspects] == [
        ("switzerland", "missing-coded"),
        ("va", "missing-coded"),
    ]
    assert "'chol': 0 stands for missing in 123 of 123 cells" in diagnosis.suspects[0].reason
    assert "'chol': 0 stands for missing in 49 of 193 cells" in diagnosis.suspects[1].reason
    assert diagnosis.inputs.found
    assert diagnosis.label_shares.found
    assert not diagnosis.labelling.found
    assert diagnosis.status == SUSPECT
    assert """fedatlas train --data heart --set 'data.drop=["chol"]'""" in [own.command for own in diagnosis.advice]
    assert {own.client for own in diagnosis.different} == {"hungarian", "switzerland", "va"}, "who did not measure ca"


@pytest.mark.parametrize("client", ["cleveland", "hungarian", "switzerland", "va"])
def test_a_hospital_with_inverted_labels_is_named(heart: Federation, client: str) -> None:
    diagnosis = check(_inverted(heart, client))
    assert _wrong_labels(diagnosis) == [(client, "labels-inverted")]
    assert diagnosis.labelling.found
    assert diagnosis.labelling.strength == 1.0
    assert "look exchanged" in diagnosis.card(client)
    others = next(own.name for own in heart if own.name != client)
    assert "exchanged" not in diagnosis.card(others)


def test_two_inverted_of_four_disagree_and_none_is_named(heart: Federation) -> None:
    diagnosis = check(_inverted(_inverted(heart, "cleveland"), "va"))
    assert _wrong_labels(diagnosis) == []
    assert any("cleveland, va against hungarian, switzerland" in remark for remark in diagnosis.remarks)


def test_domains_are_another_input_and_nobody_is_wrong() -> None:
    federation = federate(load_dataset("digits"), ByDomain(clients_per_domain=3), seed=0)
    diagnosis = check(federation, progress=False)
    assert diagnosis.suspects == ()
    assert diagnosis.inputs.found
    domains = [client.domain for client in federation]
    assert len({*zip(domains, diagnosis.groups, strict=True)}) == 5 == max(diagnosis.groups) + 1
    assert diagnosis.status == ADVICE
    assert any("a client with other inputs" in remark for remark in diagnosis.remarks)


def test_nothing_to_do_is_one_model() -> None:
    data = load_dataset("digits").of_domains(["handwritten"])
    diagnosis = check(federate(data, Iid(num_clients=6), seed=0), given="--data mine", progress=False)
    assert diagnosis.status == NOTHING
    assert [own.command for own in diagnosis.advice] == ["fedatlas train --data mine"]
    assert set(diagnosis.groups) == {0}
    assert "suspects: none" in diagnosis.lines()


def test_a_wrong_unit_in_an_array_of_numbers_is_named() -> None:
    rng = numpy_generator(0, "units")
    rows = rng.normal(100, 20, (300, 3)).astype(np.float32)
    whole = federate(from_arrays(rows, np.arange(300) % 2), Iid(num_clients=3), seed=0)
    assert check(whole).suspects == ()
    inputs = whole.data.inputs.clone()
    own = torch.cat([whole.clients[1].train, whole.clients[1].test])
    inputs[own, 2] *= 2.54
    data = replace(whole.data, inputs=inputs, table=None, preparation=None)
    (suspect,) = check(replace(whole, data=data)).suspects
    assert (suspect.client, suspect.kind) == (whole.clients[1].name, "other-scale")
    assert "feature 2" in suspect.reason
    assert "2.51 times" in suspect.reason, "by the medians and widths of 100 values each"


def test_a_value_that_may_stand_for_missing_everywhere_is_a_remark_on_the_card() -> None:
    rng = numpy_generator(0, "everywhere")
    rows = rng.normal(100, 5, (400, 2)).astype(np.float32)
    rows[::5, 0] = 0.0
    federation = federate(from_arrays(rows, np.arange(400) % 2), Iid(num_clients=4), seed=0)
    diagnosis = check(federation)
    assert diagnosis.suspects == ()
    assert diagnosis.status == NOTHING
    said = (
        "Whether 0 in column 'feature 0' means not measured: it is in 20 % of the cells, at all clients. "
        "If it does, leave them empty."
    )
    assert said in diagnosis.remarks
    assert f"cannot be told: {said}" in diagnosis.lines()
    card = diagnosis.card(federation.clients[0].name).splitlines()
    assert card[-2].startswith("column 'feature 0' is 0 in ")
    assert card[-2].endswith(" of 100 cells: if that means not measured, leave these cells empty")


def test_a_client_that_cannot_be_used_is_named_and_a_small_one_is_different() -> None:
    data = load_dataset("digits").of_domains(["handwritten"])
    whole = federate(data, Iid(num_clients=6), seed=0)
    sizes = {0: 2, 1: 12}
    clients = tuple(replace(client, train=client.train[: sizes.get(i)]) for i, client in enumerate(whole))
    diagnosis = check(replace(whole, clients=clients), progress=False)
    assert [(own.client, own.kind) for own in diagnosis.suspects] == [(clients[0].name, "too-few-examples")]
    assert (clients[1].name, "few-examples") in [(own.client, own.kind) for own in diagnosis.different]


def test_examples_that_say_nothing_about_noise_are_not_judged() -> None:
    """Every client has one example of each class."""
    whole = federate(from_arrays(np.eye(8, dtype=np.float32), [0, 1] * 4), Iid(num_clients=2))
    clients = (replace(client, train=torch.tensor([2 * i, 2 * i + 1])) for i, client in enumerate(whole))
    diagnosis = check(replace(whole, clients=tuple(clients)))
    assert not diagnosis.inputs.found
    assert {own.kind for own in diagnosis.suspects} == {"too-few-examples"}


@pytest.mark.parametrize("clients", [2, 4])
def test_few_rows_of_many_columns_differ_by_chance_alone(clients: int) -> None:
    rows = numpy_generator(0, "wide").normal(size=(20, 2000)).astype(np.float32)
    diagnosis = check(federate(from_arrays(rows, np.arange(20) % 2), Iid(num_clients=clients), seed=0))
    assert not diagnosis.inputs.found
    assert set(diagnosis.groups) == {0}
    assert "Some differences of inputs: there are too few examples." in diagnosis.remarks


HERE = Commands.here("-d x")
FOUR = ["c0", "c1", "c2", "c3"]


def _diagnosis(*suspects: Suspect, clients: int = 3, different: tuple[Suspect, ...] = ()) -> Diagnosis:
    names = [f"c{i}" for i in range(clients)]
    return Diagnosis(
        data="mine",
        clients=tuple(Member(name=name, examples=10 + i, classes=2) for i, name in enumerate(names)),
        num_classes=2,
        inputs=NO,
        label_shares=NO,
        labelling=NO,
        groups=tuple(i % 2 for i in range(clients)),
        suspects=suspects,
        different=different,
        remarks=(),
        advice=advise(Commands.here("--data mine"), suspects, names, inputs=NO, label_shares=NO, labelling=NO),
        seconds=0.5,
    )


def test_the_json_has_the_keys_that_programs_read() -> None:
    noisy = Suspect("c1", "labels-noisy", "why", "where", "card")
    said = _diagnosis(noisy).to_dict()
    assert said["clients"] == [{"name": f"c{i}", "examples": 10 + i, "classes": 2} for i in range(3)]
    assert said["shift"]["labelling"] == {"found": False, "strength": 0.0, "evidence": "No.", "figures": ""}
    assert set(said["shift"]) == {"inputs", "label_shares", "labelling"}
    assert said["groups"] == {"c0": 0, "c1": 1, "c2": 0}
    assert said["suspects"] == [{"client": "c1", "kind": "labels-noisy", "reason": "why", "look": "where"}]
    assert said["advice"] == ["fedatlas check --data mine", "fedatlas train --data mine --set 'data.held_out=[\"c1\"]'"]
    assert said["status"] == SUSPECT


def test_the_text_fits_on_a_screen_however_many_clients() -> None:
    people = tuple(Suspect(f"c{i}", "labels-noisy", "why", "where", "card") for i in range(50))
    lines = _diagnosis(*people, clients=100, different=people).lines()
    assert len(lines) <= 24
    assert "  and 44 more; --json has all" in lines


def test_clients_of_whom_the_same_is_said_share_a_line() -> None:
    lacking = tuple(Suspect(f"c{i}", "columns-missing", "no ca" if i else "no thal", "", "") for i in range(3))
    lines = _diagnosis(different=lacking).lines()
    assert lines[lines.index("different, not wrong") + 1 :][:2] == ["  c0: no thal", "  c1, c2: no ca"]


def test_a_card_tells_a_client_about_itself_alone() -> None:
    noisy = Suspect("c1", "labels-noisy", "why", "where", "some of your labels look random")
    diagnosis = _diagnosis(noisy)
    assert diagnosis.card("c1").splitlines() == [
        "c1: 11 examples of 2 of 2 classes",
        "0 of 2 other clients have data like yours",
        "some of your labels look random",
    ]
    assert diagnosis.card("c0").splitlines()[1:] == [
        "1 of 2 other clients have data like yours",
        "nothing was found that is wrong with your data",
    ]


def test_advice_follows_the_shift() -> None:
    def commands(images: bool = True, **found: Finding) -> list[str]:
        ways = {"inputs": NO, "label_shares": NO, "labelling": NO} | found
        return [own.command for own in advise(HERE, [], FOUR, images=images, **ways)]

    assert commands() == ["fedatlas train -d x"]
    norms = "fedatlas compare fedavg fedbn -d x --model cnn --set model.norm=batch"
    assert commands(inputs=YES) == ["fedatlas train -d x --use group", norms]
    heads = "fedatlas compare fedavg fedper -d x"
    assert commands(images=False, inputs=YES) == ["fedatlas train -d x --use group", heads]
    assert commands(labelling=YES) == ["fedatlas train -d x --use group"]
    assert commands(label_shares=YES) == ["fedatlas compare fedavg feddisco -d x"]
    everyone = [Suspect(f"c{i}", "labels-noisy", "", "", "") for i in range(4)]
    left = advise(HERE, everyone, FOUR, inputs=NO, label_shares=NO, labelling=NO)
    assert [own.command for own in left] == ["fedatlas check -d x"], "nobody would be left to train"
    copied = [Suspect(name, "same-examples", "", "", "") for name in ("c0", "c1")]
    left = advise(HERE, copied, FOUR, inputs=NO, label_shares=NO, labelling=NO)
    assert [own.command for own in left] == ["fedatlas check -d x"], "ten copies are no reason to leave clients out"


def test_advice_names_columns_and_clients_as_toml_beside_those_left_out_before() -> None:
    commands = Commands.here("-d x", dropped=["Größe"], held_out=["c0"])
    (command,) = commands.without(["🩺"], ["c1", "c0"], FOUR)
    assert _set(command) == {"drop": ["Größe", "🩺"], "held_out": ["c0", "c1"]}


def _set(command: str) -> dict[str, list[str]]:
    """Return what a command sets in the section data."""
    words = shlex.split(command)
    lines = [text for option, text in pairwise(words) if option == "--set"]
    return dict(tomllib.loads("\n".join(lines))["data"])


def test_advice_in_python_is_about_the_federation_at_hand() -> None:
    """Options such as --data digits would name other clients than a partition in Python made."""
    data = load_dataset("digits").of_domains(["handwritten"])
    federation = federate(data, PermutedLabels(num_clients=8), seed=0)
    found = check(federation, progress=False)
    assert found.labelling.found
    commands = [own.command for own in found.advice]
    assert not [command for command in commands if "--" in command]
    (group,) = [command for command in commands if "grouped(" in command]
    call = group.removeprefix("fedatlas.train(federation, ").removesuffix(")")
    made = eval(call, {"fedatlas": fedatlas, "federation": federation})
    assert made.name == "grouped"
    suspects = [Suspect("c1", "labels-noisy", "", "", ""), Suspect("c2", "missing-coded", "", "", "", column="chol")]
    said = advise(Commands.in_python(), suspects, FOUR, inputs=NO, label_shares=YES, labelling=NO)
    assert [own.command for own in said] == [
        "fedatlas.check(federation)",
        '# read the table with drop=["chol"], then federate and train again',
        'fedatlas.train(federation.hold_out(["c1"]), "fedavg")',
        'fedatlas.compare(federation, ["fedavg", "feddisco"])',
    ]


def test_advice_over_a_network_is_about_the_app() -> None:
    wrong = [Suspect("c1", "labels-noisy", "", "", ""), Suspect("c2", "constant", "", "", "", "age")]
    found = advise(Commands.over_network("app"), wrong, FOUR, inputs=YES, label_shares=YES, labelling=NO)
    assert [own.command for own in found] == [
        "fedatlas flower check app",
        'fedatlas flower run app --set \'data.drop=["age"]\' --set \'flower.clients=["c0", "c2", "c3"]\'',
        "fedatlas flower run app --set 'atlas.make={ source = \"class-prototypes\" }' --set 'atlas.use=[\"group\"]'",
        "fedatlas flower run app --set algorithm.name=fedbn --set model.name=cnn --set model.norm=batch",
        "fedatlas flower run app --set algorithm.name=feddisco",
    ]
    many = advise(Commands.over_network(), wrong[:1], FOUR * 10, inputs=NO, label_shares=NO, labelling=NO)
    assert [own.command for own in many] == ["fedatlas flower check APP"], "a list of 30 names helps nobody"
