import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedatlas import check_algorithm
from fedatlas.algorithms import fedavg, fedbn, fedpce, fedper, harmofl
from fedatlas.client import ResidentData
from fedatlas.errors import DataError, UsageError
from fedatlas.parts import Algorithm
from fedatlas.testing import tiny_federation
from fedatlas.training.model import make_model
from fedatlas.training.train import train
from raising import raises
from tiny import Norms, blob_federation, same_bits

# One client of the tiny federation has one example.
pytestmark = pytest.mark.filterwarnings("ignore:client-2 will take no step")

QUIET: dict[str, Any] = {"rounds": 1, "workers": 1, "progress": False}
CPU = torch.device("cpu")


class Returns(nn.Module):
    """Four features to three logits, returned in a form that a test chooses."""

    def __init__(self, form: Any = None, width: int = 3) -> None:
        super().__init__()
        self.head, self.form = nn.Linear(4, width), form

    def forward(self, x: Tensor) -> Any:
        return self.form(x, self.head(x)) if self.form else (x, self.head(x))


@pytest.mark.parametrize(
    ("form", "got"),
    [
        (lambda x, y: (x, y, y), ["Tensor", "Tensor", "Tensor"]),
        (lambda x, y: (None, y), ["NoneType", "Tensor"]),
        (lambda x, y: {"logits": y}, "dict"),
        (lambda x, y: (y, x), (2, 4)),
    ],
)
def test_a_model_that_returns_something_else_than_features_and_logits_is_refused(form: Any, got: object) -> None:
    with raises(UsageError, "model-outputs", got=got) as caught:
        train(blob_federation(), fedavg(), model=Returns(form), **QUIET)
    assert "`return features, logits`" in str(caught.value)
    with raises(UsageError, "model-outputs", got=got):
        check_algorithm(fedavg(), model=lambda: Returns(form))


def test_logits_of_another_width_than_there_are_classes_are_refused() -> None:
    with raises(UsageError, "model-outputs"):
        train(blob_federation(), fedavg(), model=Returns(width=5), **QUIET)


def test_a_model_that_cannot_read_the_examples_is_refused_with_their_shape() -> None:
    with raises(UsageError, "model-inputs", got="Returns"):
        train(tiny_federation("images"), fedavg(), model=Returns, **QUIET)


@pytest.mark.parametrize(
    ("model", "code", "got"),
    [
        (42, "wrong-type", 42),
        (lambda: 42, "wrong-type", 42),
        (lambda width: Returns(), "model-arguments", "<lambda>"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, code: str, got: object) -> None:
    with raises(UsageError, code, got=got):
        train(blob_federation(), fedavg(), model=model, **QUIET)


@pytest.mark.parametrize("model", [Norms(), Norms])
def test_options_of_a_model_of_ones_own_are_refused(model: Any) -> None:
    with raises(UsageError, "model-options"):
        train(blob_federation(), fedavg(), model=model, model_options={"width": 8}, **QUIET)


class Moving(Norms):
    """Draws a number, counts and moves a buffer whenever it is called, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        self.seen += torch.rand(())
        return super().forward(x)


def test_trying_a_model_leaves_it_and_the_generators_as_they_were() -> None:
    federation = blob_federation()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tried = make_model(Moving, {}, federation, fedavg(), 0, try_on=CPU)
    plain = make_model(Moving, {}, federation, fedavg(), 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert same_bits(dict(tried.state_dict()), dict(plain.state_dict()))
    assert (tried.calls, tried.training) == (0, True)


def test_a_client_of_one_example_and_a_model_that_cannot_be_copied_are_no_hindrance(tmp_path: Path) -> None:
    class Unique(Norms):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("there is only one")

    run = train(tiny_federation(), fedavg(), model=Unique, folder=tmp_path, **QUIET)
    assert len(run.rounds) == 1


RECIPES = [fedavg(), fedper(), fedbn(), fedpce(), fedavg().with_buffers("keep"), harmofl()]


@pytest.mark.parametrize("algorithm", RECIPES, ids=["fedavg", "fedper", "fedbn", "fedpce", "keep", "harmofl"])
def test_a_trained_model_does_on_a_client_what_the_record_says(algorithm: Algorithm, tmp_path: Path) -> None:
    federation = tiny_federation("images")
    federation = replace(federation, data=replace(federation.data, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.2)))
    given = {"width": 4, "norm": "batch"}
    settings = {"model_options": given, "cohort": 4, "batch_size": 4, **QUIET, "rounds": 2}
    run = train(federation, algorithm, model="cnn", folder=tmp_path, **settings)
    for client in federation:
        network = run.model(client.name)
        inputs = run.prepare(federation.data.inputs[client.test].numpy())
        features, logits = network(inputs)
        record = next(e for e in run.clients if e["round"] == 2 and e["client"] == client.name)
        assert record["accuracy"] == (logits.argmax(1) == federation.data.labels[client.test]).double().mean().item()
        loss = nn.functional.cross_entropy(logits, federation.data.labels[client.test]).item()
        assert record["loss"] == pytest.approx(loss, rel=1e-5)
        assert not features.requires_grad
    assert torch.equal(inputs, ResidentData(federation, 7).batch(client.test, None).inputs)
    last = federation.data.inputs[client.test].permute(0, 2, 3, 1)
    assert torch.equal(run.prepare(last.numpy()), inputs)
    assert torch.equal(run.prepare(last / 255), inputs)


def test_a_model_of_ones_own_is_given_again_to_be_used(tmp_path: Path) -> None:
    federation = blob_federation(4)
    run = train(federation, fedavg(), model=Norms(), folder=tmp_path, **QUIET)
    with raises(UsageError, "missing-option", option="network"):
        run.model()
    _, logits = run.model(network=Norms)(run.prepare(federation.data.inputs))
    test = federation.clients[0].test
    right = (logits[test].argmax(1) == federation.data.labels[test]).double().mean().item()
    assert right == next(e["accuracy"] for e in run.clients if e["client"] == "client-0")
    with raises(UsageError, "settings-differ"):
        run.model(network=Returns)
    with raises(UsageError, "unknown-name", kind="client", got="client-9"):
        run.model("client-9", network=Norms)
    with raises(DataError, "wrong-shape"):
        run.prepare(torch.zeros(2, 3))
    assert run.prepare([[1.0, 2.0, 3.0, 4.0]]).dtype == run.prepare(np.ones((1, 4))).dtype == torch.float32
    for nonsense in ("x", None, [[1.0], [1.0, 2.0]], np.array(["a"])):
        with raises(DataError, "wrong-type", setting="inputs"):
            run.prepare(nonsense)
    assert run.prepare(np.ones((2, 4), np.uint8)).dtype == torch.float32
    with raises(DataError, "wrong-shape"):
        run.prepare(np.ones((2, 4), complex))


def test_whose_model_must_be_said_where_clients_keep_some_of_it(tmp_path: Path) -> None:
    run = train(blob_federation(), fedper(), model="mlp", folder=tmp_path, **QUIET)
    with raises(UsageError, "missing-option", option="client"):
        run.model()


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), {})
    options, accuracies, classes = capsys.readouterr().out.splitlines()
    assert options == "{'width': 32, 'norm': 'none'}"
    one, other = accuracies.split()
    assert f"{float(other):.4f}" == one
    assert len(json.loads(classes.replace("'", '"'))) == 5
