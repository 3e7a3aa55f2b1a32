"""What groups of clients are worth: the accuracy of grouped FedAvg, a small network and short trainings.

All images are made grey and 8x8. A client trains on its images and is tested on others of its domain, with the labels
that it has. The learning rate and the number of rounds were chosen on seed 10, for the true groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from fedatlas import Client, Federation, Simulator, from_arrays, play
from fedatlas.algorithms import fedavg, grouped
from fedatlas.client import LocalWork
from fedatlas.data import Dataset
from fedatlas.parts import SGD
from fedatlas.training import evaluate, make_model

ROUNDS, LR, BATCH, HIDDEN, TESTS = 60, 0.3, 10, 32, 40


def small_images(pixels: Tensor, labels: Tensor) -> Dataset:
    """Return colour images of 32x32 as 64 numbers each."""
    grey = pixels.view(-1, 3, 32, 32).mean(1, keepdim=True)
    return from_arrays(avg_pool2d(grey, 4).flatten(1).numpy(), labels.numpy(), name="8x8")


def tests_of(data: Dataset, own: Tensor, others: Tensor) -> Tensor:
    """Return some of other images that have labels which a client has."""
    others = others[~torch.isin(others, own)]
    has = torch.bincount(data.labels[own], minlength=len(data.classes)) > 0
    return others[has[data.labels[others]]][:TESTS]


def group_accuracy(data: Dataset, clients: Sequence[Client], group_of: Tensor | None, seed: int) -> float:
    """Return the accuracy over all clients' tests of FedAvg with a model a group, or with one model."""
    federation = Federation(data=data, clients=tuple(clients), partition="given")
    algorithm = fedavg().with_optimizer(SGD(lr=LR))
    if group_of is not None and len(group_of.unique()) > 1:
        members = [[clients[i].name for i in (group_of == group).nonzero()[:, 0]] for group in group_of.unique()]
        algorithm = grouped(algorithm, members=members)
    network = make_model("mlp", {"hidden": (HIDDEN,)}, federation, algorithm, seed)
    work = LocalWork(epochs=1, batch_size=BATCH)
    with Simulator(algorithm, network, federation, work=work, seed=seed, workers=1, engine="vmap") as playing:
        for found in play(algorithm, playing, rounds=ROUNDS, seed=seed):
            state = found.state
        scores = evaluate(algorithm, playing, state)
    return sum(score.accuracy * score.num_examples for score in scores) / sum(score.num_examples for score in scores)
