"""Clients' scores from a model's outputs; each example is computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedatlas.client.model import PERSONAL
from fedatlas.data.federation import Federation
from fedatlas.parts.metric import MeanMetric, Metric
from fedatlas.parts.types import ClientLosses, ClientScore, Memory, Tensors, Value


def example_rows(metrics: Sequence[Metric], outputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Return what each metric needs of each example."""
    return [metric.rows(outputs, targets) for metric in metrics]


def client_score(
    client: int, metrics: Sequence[Metric], rows: Sequence[Tensor], intervals: bool = False
) -> ClientScore:
    """Return a client's score from the rows of its examples."""
    return ClientScore(
        client=client,
        num_examples=len(rows[0]),
        values={metric.name: metric.value(own) for metric, own in zip(metrics, rows, strict=True)},
        intervals=_intervals(metrics, rows) if intervals else {},
    )


def _intervals(metrics: Sequence[Metric], rows: Sequence[Tensor]) -> dict[str, tuple[float, float]]:
    found = {metric.name: metric.interval(own) for metric, own in zip(metrics, rows, strict=True)}
    return {name: interval for name, interval in found.items() if interval is not None}


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

    def scores(self, metrics: Sequence[Metric], rows: Sequence[Tensor], intervals: bool = False) -> list[ClientScore]:
        """Return the clients' scores, given the rows of ``examples``."""
        values = [self._values(metric, own) for metric, own in zip(metrics, rows, strict=True)]
        names = [metric.name for metric in metrics]
        parts = self._places.split(self._sizes) if intervals else ()
        spans = [_intervals(metrics, [own[part] for own in rows]) for part in parts] or [{} for _ in self._sizes]
        found = [dict(zip(names, own, strict=True)) for own in zip(*values, strict=True)]
        return [
            ClientScore(client=client, num_examples=self._sizes[i], values=found[i], intervals=spans[i])
            for client, i in zip(self.clients, self._numbers, strict=True)
        ]

    def _values(self, metric: Metric, rows: Tensor) -> list[Value]:
        """Return a metric's value for each of the different parts."""
        own = rows[self._places]
        if not isinstance(metric, MeanMetric):
            return [metric.value(part) for part in own.split(self._sizes)]
        # Means of all parts in one pass: there may be thousands of clients.
        starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        numbers = own.cpu().numpy().astype(np.int64) if own.dtype == torch.bool else own.cpu().double().numpy()
        means: list[Value] = (np.add.reduceat(numbers, starts) / np.asarray(self._sizes)).tolist()
        return means


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
