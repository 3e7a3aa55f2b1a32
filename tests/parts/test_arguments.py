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
from fedatlas.testing.tiny import tiny_federation
from raising import raises
from tiny import blob_federation

QUIET: dict[str, Any] = {"model": "mlp", "workers": 1, "progress": False}
ATLAS = fedatlas.Atlas(names=("a", "b", "c"), halves={"label": torch.eye(3)}, sizes=torch.ones(3, dtype=torch.int64))


def train(**settings: Any) -> fedatlas.Run:
    return fedatlas.train(**({"federation": blob_federation(), "algorithm": algorithms.fedavg()} | QUIET | settings))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: train(algorithm="fedavg"),
            r"must be an algorithm, got 'fedavg'. Write fedatlas.algorithms.f",
        ),
        (lambda: train(algorithm=algorithms.fedavg), r"must be an algorithm, got the function fedavg. Write "),
        (lambda: train(federation=tiny_federation().data), r"must be a federation, got .*fedatlas.federate\(data, fe"),
        (lambda: train(optimizer="sgd"), r"optimizer must be one of fedatlas's, got 'sgd'. Write fedatlas.SGD\(lr"),
        (lambda: train(optimizer=torch.optim.SGD), r"optimizer must be .*, got the class SGD. Write fedatlas.SGD\("),
        (lambda: train(seed=None), r"seed must be a whole number or fedatlas.Seeds\(...\), got None. Write seed=0."),
        (lambda: train(rounds="2"), "rounds must be a whole number, got '2'. Write it without quotes"),
        (lambda: train(rounds=2.5), "rounds must be a whole number, got 2.5"),
        (lambda: train(cohort="3"), "cohort must be a whole number, a fraction or nothing, got '3'"),
        (lambda: train(batch_size="8"), "batch_size must be a whole number, got '8'"),
        (lambda: fedatlas.SGD(lr="0.1"), r"SGD\(lr\) must be a number, got '0.1'"),
        (lambda: fedatlas.Adam(weight_decay=None), r"Adam\(weight_decay\) must be a number, got None"),
        (
            lambda: algorithms.fedprox(mu="a"),
            r"Proximal\(mu\) must be a number, got 'a'. Write it without quotes",
        ),
        (lambda: algorithms.qffl(eta=[1]), r"FairStep\(eta\) must be a number or nothing, got \[1\]"),
        (lambda: algorithms.fedmix(sent=None), r"MeanPool\(sent\) must be a whole number, got None"),
        (lambda: algorithms.fedsam(rho="0.1"), r"SharpnessAware\(rho\) must be a number, got '0.1'"),
        (
            lambda: algorithms.fedpce(embedding=3.5),
            r"ConditionedNorms\(embedding\) must be a whole number, got 3.5",
        ),
        (lambda: algorithms.fedpce(embedding_lr="x"), r"fedpce\(embedding_lr\) must be a number, got 'x'"),
        (
            lambda: algorithms.fedgr(num_groups="5"),
            r"TypeGroups\(num_groups\) must be a whole number, got '5'",
        ),
        (lambda: fedatlas.federate(tiny_federation().data, "dirichlet"), r"got 'dirichlet'. Write fedatlas.data.Diric"),
        (
            lambda: fedatlas.federate(tiny_federation().data, Iid),
            r"the class Iid. Write fedatlas.data.Iid",
        ),
        (
            lambda: fedatlas.federate("digits", Iid(num_clients=2)),
            r"a data set, got 'digits'. Write fedatlas.",
        ),
        (
            lambda: algorithms.client2vec(ATLAS, algorithms.fedavg()),
            r"client2vec\(base\) must be .*fedavg\(\), atlas\)",
        ),
        (lambda: algorithms.feddisco("fedavg"), r"feddisco\(base\) must be an algorithm, got 'fedavg'"),
        (
            lambda: algorithms.clustered(algorithms.moon),
            r"clustered\(base\) must be .* got the function moon",
        ),
        (lambda: algorithms.fedgr("fedavg"), r"fedgr\(base\) must be an algorithm"),
        (lambda: fedatlas.check_algorithm(algorithms.fedavg), "got the function fedavg. Call the recipe"),
        (lambda: ATLAS.groups(2.5), "count of groups must be a whole number, got 2.5"),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_what_to_write(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        call()


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
            with pytest.raises(UsageError, match="must be"):
                recipe(**{title: "a"})


@dataclass(frozen=True, kw_only=True)
class Each(fedatlas.Term):
    """Forgets to take the mean."""

    name: ClassVar[str] = "each"

    def loss(self, local: ClientContext, batch: fedatlas.Batch, output: fedatlas.Output) -> Tensor:
        return output.logits.square().mean(1)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_term_that_returns_a_number_for_each_example_is_named(engine: str) -> None:
    says = r"term 'each' \(Each\) must be one number, got a tensor of shape \(\d+,\). Return the mean over the examples"
    with pytest.raises(UsageError, match=says):
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
    with raises(UsageError, "missing-option", option="other"):
        algorithms.build_algorithm(f"{tmp_path}/own.py:needs", strength=1)
    with raises(UsageError, "user-function") as it:
        algorithms.build_algorithm(f"{tmp_path}/own.py:broken")
    assert isinstance(it.value.__cause__, ValueError)
    with pytest.raises(UsageError, match=r"top\.py:any' cannot be loaded: ZeroDivisionError: .* \(.*top.py, line 1\)"):
        algorithms.build_algorithm(f"{tmp_path}/top.py:any")
