"""Arguments of the wrong kind, as users write them, and what they are told to write instead."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fedatlas
from fedatlas.errors import UsageError
from fedatlas.rehearsal import tiny_federation
from tiny import blob_federation

QUIET: dict[str, Any] = {"model": "mlp", "workers": 1, "progress": False}
ATLAS = fedatlas.Atlas(names=("a", "b", "c"), halves={"label": torch.eye(3)}, sizes=torch.ones(3, dtype=torch.int64))


def train(**settings: Any) -> fedatlas.Run:
    return fedatlas.train(**({"federation": blob_federation(), "algorithm": fedatlas.fedavg()} | QUIET | settings))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: train(algorithm="fedavg"), r"must be an algorithm, got 'fedavg'. Write fedatlas.fedavg\(\)"),
        (lambda: train(algorithm=fedatlas.fedavg), r"must be an algorithm, got the function fedavg. Write fedatlas.f"),
        (lambda: train(federation=tiny_federation().data), r"must be a federation, got .*fedatlas.federate\(data, fe"),
        (lambda: train(optimizer="sgd"), r"optimizer must be one of fedatlas's, got 'sgd'. Write fedatlas.SGD\(lr"),
        (lambda: train(optimizer=torch.optim.SGD), r"optimizer must be .*, got the class SGD. Write fedatlas.SGD\("),
        (lambda: train(seed=None), r"seed must be a whole number or fedatlas.Seeds\(...\), got None. Write seed=0."),
        (lambda: train(rounds="2"), "rounds must be a whole number, got '2'. Write it without quotes"),
        (lambda: train(rounds=2.5), "rounds must be a whole number, got 2.5"),
        (lambda: train(cohort="3"), "cohort must be a number, got '3'"),
        (lambda: train(batch_size="8"), "batch_size must be a whole number, got '8'"),
        (lambda: fedatlas.SGD(lr="0.1"), r"SGD\(lr\) must be a number, got '0.1'"),
        (lambda: fedatlas.Adam(weight_decay=None), r"Adam\(weight_decay\) must be a number, got None"),
        (lambda: fedatlas.federate(tiny_federation().data, "dirichlet"), r"got 'dirichlet'. Write fedatlas.data.Diric"),
        (lambda: fedatlas.federate(tiny_federation().data, fedatlas.Iid), r"the class Iid. Write fedatlas.data.Iid\("),
        (
            lambda: fedatlas.federate("digits", fedatlas.Iid(num_clients=2)),
            r"a data set, got 'digits'. Write fedatlas.",
        ),
        (lambda: fedatlas.client2vec(ATLAS, fedatlas.fedavg()), r"client2vec\(base\) must be .*fedavg\(\), atlas\)"),
        (lambda: fedatlas.feddisco("fedavg"), r"feddisco\(base\) must be an algorithm, got 'fedavg'"),
        (lambda: fedatlas.clustered(fedatlas.moon), r"clustered\(base\) must be .* got the function moon"),
        (lambda: fedatlas.fedgr("fedavg"), r"fedgr\(base\) must be an algorithm"),
        (lambda: fedatlas.check_algorithm(fedatlas.fedavg), "got the function fedavg. Call the recipe"),
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
