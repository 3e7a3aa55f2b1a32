"""What leaves a node is made of as many examples as its policy says: in every step, and of a newcomer's tuning."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedatlas
from fedatlas.adapting import TUNES
from fedatlas.config import Config, NewcomerTuning
from fedatlas.data import Iid, federate, from_npz
from fedatlas.errors import UsageError
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.node.gate import wanted_by
from fedatlas.flower.node.policy import Wanted, policy_text
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import arrays, tensors, values
from fedatlas.flower.protocol.wire import unfolded
from fedatlas.flower.server.app import serve
from fedatlas.flower.server.newcomers import adapt_newcomers, without_clients
from fedatlas.testing import InProcessGrid, state_tensors, tiny_federation
from flower_network import handed_out, simulated
from hostile_server import Server, refused
from raising import raises
from tiny import same_bits

pytestmark = pytest.mark.attack("a server means harm")

ASSIGNED = {"round": 1, "rounds": 1, "turn": 0, "branch": "", "version": "0", "keep": ["0"]}
BASE = {
    **ASSIGNED,
    **dict.fromkeys(("test_own", "holds_back", "restarts", "forgets", "test"), False),
}
ONE = policy_text().replace("least_examples = 10", "least_examples = 1")


def rebuilt(server: Server, settings: str) -> float | None:
    """Return how far an example that one step's change gives back is from the nearest of the node's; None if refused.

    The gradient of a layer's weights for one example is its input, times the gradient of the bias.
    """
    server.set(f"training.steps=1;optimizer.lr=1.0;{settings}")
    model = server.model(Config.load(server.folder / "run.toml"))
    reply = server.ask("train", BASE, shared=arrays(model), buffers=arrays({}))
    if reply.has_error():
        assert refused(reply, "is below the 10 examples of a step that this node asks for")
        return None
    change = tensors(unfolded(reply.content).array_records["change"])
    weight, bias = change["layers.0.weight"], change["layers.0.bias"]
    row = int(bias.abs().argmax())
    inputs = from_npz(server.node["data"]).inputs.flatten(1).float()
    return float((inputs - weight[row] / bias[row]).norm(dim=1).min())


def test_a_step_of_one_example_gives_it_back_and_is_refused(tmp_path: Path) -> None:
    """With a policy that asks for one example the attack is seen to work; by default it gets a reason, or a mixture."""
    found = []
    for number, (policy, size) in enumerate(((ONE, 1), (policy_text(), 1), (policy_text(), 9), (policy_text(), 10))):
        (tmp_path / str(number)).mkdir()
        found.append(rebuilt(Server(tmp_path / str(number), policy=policy), f"training.batch_size={size}"))
    allowed, one, nine, ten = found
    assert allowed is not None
    assert allowed < 1e-5
    assert (one, nine) == (None, None)
    assert ten is not None
    assert ten > 0.1


def test_a_last_batch_of_few_examples_is_not_trained_on(tmp_path: Path) -> None:
    """Sixteen examples in batches of fifteen: the last batch has one."""
    server = Server(tmp_path, "training.batch_size=15", "training.epochs=2")
    model = server.model(Config.load(tmp_path / "run.toml"))
    reply = server.ask("train", BASE, shared=arrays(model), buffers=arrays({}))
    assert values(unfolded(reply.content), "about")["num_steps"] == 2


def test_a_network_under_default_policies_has_the_bits_of_a_simulation_that_leaves_small_batches_out(
    tmp_path: Path,
) -> None:
    federation = tiny_federation()
    federation = replace(federation, clients=tuple(federation.clients[i] for i in (0, 3, 4)))
    settings = ["model.name=mlp", "training.rounds=2", "training.batch_size=10", "flower.clients=3"]
    (tmp_path / "run.toml").write_text(Config.load(None, settings).to_toml())
    nodes = handed_out(federation, tmp_path / "data")
    (tmp_path / "data" / "policy.toml").write_text(policy_text())
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes)
    there = serve(Config.load(tmp_path / "run.toml"), grid, tmp_path / "flower")
    least = Config.load(None, [*settings, "training.least_batch=10"])
    here = simulated(least, federation, tmp_path / "here")
    assert same_bits(*(state_tensors(run.checkpoint().state) for run in (there, here)))
    plain = simulated(Config.load(None, settings), federation, tmp_path / "plain")
    assert not same_bits(*(state_tensors(run.checkpoint().state) for run in (plain, here)))


@pytest.mark.parametrize("options", ["batch_size = 1", "local_samples = 1"])
def test_a_step_of_the_index_network_counts_too(options: str, tmp_path: Path) -> None:
    make = 'atlas.make={ source = "client2vec", strategy = "%s", epochs = 1, settings = { %s } }'
    wanted = Wanted(disclosures=["map client2vec federated", "map client2vec global"])
    server = Server(tmp_path, make % ("federated", options), policy=policy_text(wanted))
    said = f"{options.replace(' = ', ' ')} is below the 10 examples of a step"
    assert refused(server.ask("train.index", BASE, shared=arrays({}), buffers=arrays({})), said)
    server.set(make % ("global", ""))
    assert server.ask("train.index", BASE, shared=arrays({}), buffers=arrays({})).has_error()
    assert "does not train the index on the clients" in server.log()[-1]["why"]


def pictures(folder: Path, augment: str) -> Server:
    """Return a server and a node with 45 small pictures for training; the run's steps are of all of them."""
    rng = np.random.default_rng(3)
    images, labels = rng.integers(1, 255, (60, 3, 8, 8)).astype(np.uint8), np.arange(60) % 2
    settings = ["training.batch_size=60", "training.steps=1", "optimizer.lr=1.0", f"training.augment={augment}"]
    server = Server(folder, "model.name=linear", *settings)
    np.savez(server.node["data"], x_train=images, y_train=labels)
    server.about |= DataForm.of(from_npz(server.node["data"])).values()
    return server


HIDING = "{ padding = 0, flip = 0.0, erase = 0.97, erase_pixels = [1000, 1000] }"


def test_a_step_that_hides_all_images_but_one_is_refused(tmp_path: Path) -> None:
    """With black images the weights' gradient is a sum over the others: of one, that image itself."""
    server = pictures(tmp_path, HIDING)
    images = from_npz(server.node["data"]).inputs.flatten(1).double()
    model, found = {"head.weight": torch.zeros(2, 192), "head.bias": torch.zeros(2)}, set()
    for seed in range(20):
        server.set(f"seeds.batches={seed}")
        reply = server.ask("train", BASE, shared=arrays(model), buffers=arrays({}))
        if reply.has_error():
            assert refused(reply, "training.augment may leave 0% of an image to see")
            continue
        change = tensors(unfolded(reply.content).array_records["change"])["head.weight"][0].double()
        alike = torch.cosine_similarity(images, change[None]).abs()
        found |= {int(alike.argmax())} if alike.max() > 0.999999 else set()
    assert len(found) == 0


def test_usual_augmentation_is_no_hiding(tmp_path: Path) -> None:
    server = pictures(tmp_path, "{ padding = 4, rotate = 0.25 }")
    model = {"head.weight": torch.zeros(2, 192), "head.bias": torch.zeros(2)}
    assert not server.ask("train", BASE, shared=arrays(model), buffers=arrays({})).has_error()


class Patients:
    """A node with a table of 45 patients of five numbers for training, and a server that sends it linear models."""

    def __init__(self, folder: Path, policy: str, *settings: str) -> None:
        rng = np.random.default_rng(3)
        self.x = rng.normal(size=(60, 5)).astype(np.float32)
        self.y = (self.x[:, 0] + rng.normal(size=60) > 0).astype(np.int64)
        np.savez(folder / "own.npz", x_train=self.x[:20] + 1, y_train=self.y[:20], x_test=self.x[:4], y_test=self.y[:4])
        own = federate(from_npz(folder / "own.npz"), Iid(num_clients=2), seed=0)
        run = fedatlas.train(own, folder=folder / "r", rounds=1, model="linear", progress=False, workers=1)
        self.resolved: dict[str, Any] = {**without_clients(run.resolved), "identity": "00c0ffee"}
        self.server = Server(folder, "model.name=linear", *settings, policy=policy)
        np.savez(self.server.node["data"], x_train=self.x, y_train=self.y)
        self.server.about |= DataForm.of(from_npz(self.server.node["data"])).values()

    def ask(self, weight: np.ndarray, bias: list[float], options: object, seed: int = 0) -> Any:
        """Return the node's reply to a model and a way to tune it."""
        resolved = self.resolved | {"seeds": dict.fromkeys(("partition", "model", "sampling", "batches"), seed)}
        about = {"round": 1, "place": 0, "adapt": json.dumps(options), "resolved": json.dumps(resolved)}
        model = {"head.weight": torch.tensor(weight, dtype=torch.float32), "head.bias": torch.tensor(bias)}
        return self.server.ask("query.adapt", about, shared=arrays(model), buffers=arrays({}))

    def record(self, weight: np.ndarray, bias: list[float], options: object, seed: int = 0) -> dict[str, Any]:
        """Return what the node tells."""
        reply = self.ask(weight, bias, options, seed)
        assert not reply.has_error(), reply.error
        return values(unfolded(reply.content), "record")


AGREED = policy_text(Wanted(disclosures=["adapt"]))
STILL = {"tune": "all", "rounds": 200, "steps": 1, "lr": 1e-30}


def test_a_newcomer_tells_nothing_without_its_owner_s_word(tmp_path: Path) -> None:
    patients = Patients(tmp_path, policy_text())
    assert refused(patients.ask(np.zeros((2, 5)), [0.0, 0.0], STILL), "disclosure 'adapt'")
    assert patients.server.log()[-1]["answer"] == "refused"


TOO_MUCH: list[Any] = [
    *({name: 1} for name in ("examples", "batch_size", "least_batch", "evaluate_every", "seed", "min_lr", "start")),
    {"augment": None},
    *({"rounds": 1001}, {"rounds": -1}, {"steps": 1001}, {"steps": 0}, {"rounds": 1.5}, {"rounds": True}),
    *({"lr": 0}, {"lr": -1.0}, {"lr": 11}, {"lr": float("nan")}, {"lr": float("inf")}, {"lr": 10**400}, {"lr": "1"}),
    *({"tune": "everything"}, {"tune": ["all"]}, [1], "all", 3),
]


def test_a_message_chooses_how_a_newcomer_tunes_within_bounds_and_nothing_else(tmp_path: Path) -> None:
    patients = Patients(tmp_path, AGREED)
    for options in TOO_MUCH:
        assert refused(patients.ask(np.zeros((2, 5)), [0.0, 0.0], options), "against the policy of this node:"), options
    patients.server.set("training.batch_size=1")
    assert refused(patients.ask(np.zeros((2, 5)), [0.0, 0.0], STILL), "batch_size 1 is below the 10 examples")
    assert {entry["answer"] for entry in patients.server.log()} == {"refused"}


def losses(patients: Patients, weight: np.ndarray, bias: list[float], options: object) -> np.ndarray | None:
    """Return the losses that a node tells, in the form of 0.1.0 too, where this attack works; None if refused."""
    reply = patients.ask(weight, bias, options)
    if reply.has_error():
        assert refused(reply, "against the policy of this node: unknown key")
        return None
    record = values(unfolded(reply.content), "record")
    record = json.loads(record["json"]) if "json" in record else record
    return np.array(record["losses"] if "losses" in record else [record["loss"]])


@pytest.mark.parametrize("more", [{"examples": 1, "batch_size": 1}, {"batch_size": 1}, {}])
def test_a_newcomer_s_losses_give_no_patient_back(more: dict[str, int], tmp_path: Path) -> None:
    """Of one example and w = (e_j, 0) the loss is log(1 + exp(-x_j)): six messages, a patient for each loss told."""
    patients, still = Patients(tmp_path, AGREED, "training.batch_size=10"), {**STILL, **more, "min_lr": 1e-30}
    options = still if more else STILL
    first = losses(patients, np.zeros((2, 5)), [10.0, 0.0], options)
    if first is None:
        return
    labels, columns = (first > 1).astype(int), []
    for j in range(5):
        weight = np.zeros((2, 5))
        weight[0, j] = 1.0
        found = losses(patients, weight, [0.0, 0.0], options)
        assert found is not None
        columns.append(np.log(np.expm1(found)) * np.where(labels == 0, -1, 1))
    rows = np.stack(columns, 1)
    distances = np.linalg.norm(patients.x[:, None] - rows[None], axis=2)
    assert len(set(distances.argmin(0)[distances.min(0) < 1e-3].tolist())) == 0


def test_a_newcomer_tells_one_mean_loss_over_all_of_its_examples(tmp_path: Path) -> None:
    """With equal outputs for both classes it is log 2; with one ahead by ten, ten times the share of the other."""
    patients = Patients(tmp_path, AGREED)
    assert patients.record(np.zeros((2, 5)), [0.0, 0.0], STILL)["loss"] == pytest.approx(math.log(2))
    record = patients.record(np.zeros((2, 5)), [10.0, 0.0], STILL)
    share = (record["loss"] - math.log1p(math.exp(-10))) / 10
    assert 45 * share == pytest.approx(round(45 * share), abs=1e-3)
    assert (record["num_examples"], record["num_tested"]) == (45, 15)
    folder = next((tmp_path / "state").rglob("model")).parent
    assert (folder / "adapted.safetensors").exists()
    left = patients.server.log()[-1]["left"]
    scores = [f"{name}_{when}" for name in ("accuracy", "loss") for when in ("before", "after")]
    counts = ["num_examples", "num_steps", "num_tuned", "num_tested"]
    assert left == {"record": sorted(["algorithm", "origin", "seconds", "loss", *counts, *scores])}


def test_which_examples_make_a_newcomer_s_step_is_not_the_server_s_choice(tmp_path: Path) -> None:
    patients = Patients(tmp_path, AGREED)
    large = {"tune": "all", "rounds": 1, "steps": 1, "lr": 5.0}
    told = [patients.record(np.zeros((2, 5)), [0.0, 0.0], large, seed) for seed in (0, 1)]
    assert told[0]["loss"] == told[1]["loss"]
    assert told[0]["loss"] != patients.record(np.zeros((2, 5)), [0.0, 0.0], {**large, "steps": 2})["loss"]


def test_a_newcomer_with_a_small_test_part_adapts_and_tells_no_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each client has five test examples, and a policy of ten."""
    federation = tiny_federation()
    federation = replace(federation, clients=tuple(federation.clients[i] for i in (0, 3, 4)))
    assert {len(client.test) for client in federation.clients} == {5}
    settings = ["model.name=mlp", "training.rounds=1", "training.batch_size=10", "flower.clients=2"]
    config = Config.load(None, [*settings, "flower.adapt={ rounds = 2, steps = 3 }"])
    (tmp_path / "run.toml").write_text(config.to_toml())
    nodes = handed_out(federation, tmp_path / "data")
    (tmp_path / "data" / "policy.toml").write_text(policy_text(wanted_by(config)))
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes)
    grid.online.discard(3)
    serve(config, grid, tmp_path / "run")
    grid.online.add(3)
    run = adapt_newcomers(config, grid, tmp_path / "run")
    (record,) = run.adapted
    assert (record["num_examples"], record["num_steps"], record["num_tested"]) == (20, 6, 0)
    assert len(record["losses"]) == 1
    assert not [name for name in record if name.startswith(("accuracy", "loss_"))]
    assert "no scores, as its test part is too small" in capsys.readouterr().out
    assert run.report().exists()


@pytest.mark.parametrize(
    "options", ["examples = 1", "batch_size = 5", "lr = 0", "rounds = 1001", "tune = 'everything'"]
)
def test_a_config_names_only_what_a_newcomer_takes(options: str) -> None:
    with pytest.raises(UsageError, match=r"flower\.adapt"):
        Config.load(None, [f"flower.adapt={{ {options} }}"])


def test_a_newcomer_may_be_told_every_way_to_tune() -> None:
    for tune in TUNES:
        assert NewcomerTuning.of("adapt", {"tune": tune, "rounds": 0, "steps": 1, "lr": 10}).tune == tune
    with raises(UsageError, "unknown-name", got="seed"):
        NewcomerTuning.of("adapt", {"seed": 1})


def test_a_policy_for_an_app_that_adapts_newcomers_names_it() -> None:
    assert wanted_by(Config.load(None, ["flower.adapt={ rounds = 5 }"])).disclosures == ["adapt"]
    assert wanted_by(Config.load(None, [])).disclosures == []
