"""Arguments of the wrong kind, as users write them, and what they are told to write instead."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import fedatlas
from fedatlas import algorithms
from fedatlas.data import Iid
from fedatlas.errors import UsageError
from fedatlas.parts.context import ClientContext
from fedatlas.testing import tiny_federation
from raising import raises
from tiny import blob_federation

QUIET: dict[str, Any] = {"model": "mlp", "workers": 1, "progress": False}
ATLAS = fedatlas.Atlas(names=("a", "b", "c"), halves={"label": torch.eye(3)}, sizes=torch.ones(3, dtype=torch.int64))


def train(**settings: Any) -> fedatlas.Run:
    return fedatlas.train(**({"federation": blob_federation(), "algorithm": algorithms.fedavg()} | QUIET | settings))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: train(algorithm=algorithms.fedavg), "got the function fedavg"),
        (lambda: train(federation=tiny_federation().data), "fedatlas.federate(data, "),
        (lambda: train(optimizer="sgd"), "Write fedatlas.SGD(lr"),
        (lambda: train(optimizer=torch.optim.SGD), "got the class SGD"),
        (lambda: train(seed=None), "Write seed=0"),
        (lambda: train(rounds="2"), "without quotes"),
        (lambda: train(rounds=2.5), "rounds must be a whole number"),
        (lambda: train(cohort="3"), "cohort must be a whole number, a fraction or nothing"),
        (lambda: train(batch_size="8"), "batch_size"),
        (lambda: fedatlas.SGD(lr="0.1"), "SGD(lr)"),
        (lambda: fedatlas.Adam(weight_decay=None), "Adam(weight_decay)"),
        (
            lambda: algorithms.fedprox(mu="a"),
            "Proximal(mu)",
        ),
        (lambda: algorithms.qffl(eta=[1]), "FairStep(eta) must be a number or nothing"),
        (lambda: algorithms.fedmix(sent=None), "MeanPool(sent)"),
        (lambda: algorithms.fedsam(rho="0.1"), "SharpnessAware(rho)"),
        (
            lambda: algorithms.fedpce(embedding=3.5),
            "ConditionedNorms(embedding)",
        ),
        (lambda: algorithms.fedpce(embedding_lr="x"), "fedpce(embedding_lr)"),
        (
            lambda: algorithms.fedgr(num_groups="5"),
            "TypeGroups(num_groups)",
        ),
        (lambda: fedatlas.federate(tiny_federation().data, "dirichlet"), "Write fedatlas.data.Dirichlet("),
        (
            lambda: fedatlas.federate(tiny_federation().data, Iid),
            "Write fedatlas.data.Iid(",
        ),
        (
            lambda: fedatlas.federate("digits", Iid(num_clients=2)),
            "Write fedatlas.",
        ),
        (
            lambda: algorithms.client2vec(ATLAS, algorithms.fedavg()),
            "Write client2vec(fedatlas.algorithms.fedavg(), atlas)",
        ),
        (lambda: algorithms.feddisco("fedavg"), "feddisco(base)"),
        (
            lambda: algorithms.clustered(algorithms.moon),
            "got the function moon",
        ),
        (lambda: algorithms.fedgr("fedavg"), "fedgr(base)"),
        (lambda: fedatlas.check_algorithm(algorithms.fedavg), "Call the recipe"),
        (lambda: ATLAS.groups(2.5), "count of groups"),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_what_to_write(call: Callable[[], Any], words: str) -> None:
    with raises(UsageError, "wrong-type") as caught:
        call()
    assert words in str(caught.value)


def test_numbers_of_numpy_are_numbers() -> None:
    numbers = {"rounds": np.int64(1), "cohort": np.int32(2), "batch_size": np.uint8(8), "seed": np.int64(3)}
    run = train(optimizer=fedatlas.SGD(lr=np.float32(0.5)), **numbers)
    assert run.resolved["algorithm"]["optimizer"]["lr"] == 0.5
    assert run.resolved["seeds"]["model"] == 3


@pytest.mark.parametrize("name", algorithms.standalone())
def test_every_number_of_a_recipe_is_refused_where_it_is_a_text(name: str) -> None:
    recipe = algorithms.ALGORITHMS[name]
    for title, option in inspect.signature(recipe).parameters.items():
        if "float" in str(option.annotation) or "int" in str(option.annotation):
            with pytest.raises(UsageError) as caught:
                recipe(**{title: "a"})
            assert caught.value.code in ("wrong-type", "wrong-value")
            assert caught.value.fields["got"] == "a"


@dataclass(frozen=True, kw_only=True)
class Each(fedatlas.Term):
    """Forgets to take the mean."""

    name: ClassVar[str] = "each"

    def loss(self, local: ClientContext, batch: fedatlas.Batch, output: fedatlas.Output) -> Tensor:
        return output.logits.square().mean(1)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_term_that_returns_a_number_for_each_example_is_named(engine: str) -> None:
    with raises(UsageError, "wrong-shape", term="each"):
        train(
            algorithm=algorithms.fedavg().with_terms(Each()),
            settings=fedatlas.Settings(engine=engine),
            rounds=1,
        )


OWN = """
def needs(strength, *, other, more=1, **rest):
    pass


def help_it():
    raise ValueError("oops.")


def broken():
    help_it()
"""


def test_mistakes_in_a_recipe_of_ones_own_are_told_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "top.py").write_text("1 / 0")
    for name in ("own.py:needs", "own.py:broken", "top.py:any"):
        fedatlas.allow_code(f"{tmp_path}/{name}")
    with raises(UsageError, "missing-option", option="other"):
        algorithms.build_algorithm(f"{tmp_path}/own.py:needs", strength=1)
    with raises(UsageError, "user-function") as it:
        algorithms.build_algorithm(f"{tmp_path}/own.py:broken")
    assert isinstance(it.value.__cause__, ValueError)
    with raises(UsageError, "user-function") as it:
        algorithms.build_algorithm(f"{tmp_path}/top.py:any")
    assert isinstance(it.value.__cause__, ZeroDivisionError)
    assert "top.py, line 1" in str(it.value)
