"""Clients' scores from a model's outputs; each example is computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedatlas.client.model import PERSONAL
from fedatlas.data.federation import Federation
from fedatlas.parts.metric import ALWAYS, Loss, Metric
from fedatlas.parts.types import ClientLosses, ClientScore, Memory, Tensors

LOSS = Loss()


def example_rows(metrics: Sequence[Metric], logits: Tensor, labels: Tensor) -> list[Tensor]:
    """Return what accuracy, loss and further metrics need of each example."""
    return [metric.rows(logits, labels) for metric in (*ALWAYS, *metrics)]


def client_score(client: int, metrics: Sequence[Metric], rows: Sequence[Tensor]) -> ClientScore:
    """Return a client's score from the rows of its examples."""
    correct, losses, *others = rows
    return ClientScore(
        client=client,
        num_examples=len(correct),
        num_correct=int(correct.sum()),
        loss=LOSS.value(losses),
        others={metric.name: metric.value(own) for metric, own in zip(metrics, others, strict=True)},
    )


class TestParts:
    """The test parts of clients that share a model; often all clients of a domain have the same one."""

    __test__ = False

    def __init__(self, federation: Federation, clients: Sequence[int]) -> None:
        self.clients = list(clients)
        numbers: dict[bytes, int] = {}
        different: list[Tensor] = []
        self._numbers = []
        """Which of the different parts each client has."""
        for client in clients:
            test = federation.clients[client].test
            number = numbers.setdefault(test.cpu().numpy().tobytes(), len(different))
            self._numbers.append(number)
            if number == len(different):
                different.append(test)
        self.examples, self._places = torch.cat(different).unique(return_inverse=True)
        self._sizes = [len(part) for part in different]

    def scores(self, metrics: Sequence[Metric], rows: Sequence[Tensor]) -> list[ClientScore]:
        """Return the clients' scores, given the rows of ``examples``."""
        correct, losses, *others = rows
        starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        right = np.add.reduceat(correct[self._places].cpu().numpy().astype(np.int64), starts)
        loss = np.add.reduceat(losses[self._places].cpu().double().numpy(), starts) / np.asarray(self._sizes)
        parts = self._places.split(self._sizes) if others else ()
        more = [
            {metric.name: metric.value(own[part]) for metric, own in zip(metrics, others, strict=True)}
            for part in parts
        ] or [{} for _ in self._sizes]
        found = list(zip(self._sizes, right.tolist(), loss.tolist(), more, strict=True))
        scores = ((client, *found[number]) for client, number in zip(self.clients, self._numbers, strict=True))
        return [
            ClientScore(client=client, num_examples=size, num_correct=count, loss=mean, others=others)
            for client, size, count, mean, others in scores
        ]


def mean_personal(memory: Mapping[int, Memory]) -> Tensors:
    """Return the mean of the own parameters of the clients that trained: where a new client's may start."""
    known = [client for client in sorted(memory) if PERSONAL in memory[client]]
    mean: Tensors = {}
    for client in known:  # one at a time: all together may be more than fits
        own = memory[client][PERSONAL]
        mean = mean or {name: torch.zeros_like(tensor) for name, tensor in own.items()}
        torch._foreach_add_(list(mean.values()), [own[name] for name in mean], alpha=1 / len(known))
    return mean


def client_losses(losses: Sequence[Tensor]) -> ClientLosses:
    """Return a client's losses under several models, given each example's loss under each.

    >>> client_losses([torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0])])[1:]
    (tensor([2., 2.]), tensor([0., 1.]))
    """
    rows = torch.stack([own.cpu() for own in losses])
    return ClientLosses(rows.shape[1], rows.mean(1), (rows - rows[0]).square().mean(1))
