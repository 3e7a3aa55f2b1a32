"""The FEDERATED training of the index network: FedAvg, by the same rounds that train any model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.atlas.client2vec.network import DSAIGN, decomposition_losses
from fedatlas.atlas.client2vec.settings import LOSSES, IndexSettings, Orthogonality
from fedatlas.client.work import LocalWork
from fedatlas.data.federation import Federation
from fedatlas.engines.simulator import Simulator
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientContext
from fedatlas.parts.objective import Term
from fedatlas.parts.optimizer import Adam
from fedatlas.parts.types import Batch, Output
from fedatlas.training.progress import Progress
from fedatlas.training.rounds import play
from fedatlas.training.settings import TrainingPlan


@dataclass(frozen=True, kw_only=True, eq=False)
class Decomposition(Term):
    """The objective of DSA-IGN on a batch of example vectors, of which the model returns (O, D~)."""

    name: ClassVar[str] = "decomposition"
    targets: Tensor = field(repr=False)
    """(classes, width): the vector of each class. Every client has it: it comes from the classes' names."""
    losses: tuple[str, ...] = LOSSES
    orthogonality: Orthogonality = "mean_cos"

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor:
        """Return the sum of the losses."""
        assert isinstance(local.model, DSAIGN)
        halves = local.model.halves(output.features)
        named = decomposition_losses(
            halves, output.logits, batch.inputs, self.targets[batch.labels], self.losses, self.orthogonality
        )
        return torch.stack(list(named.values())).sum()


def index_algorithm(settings: IndexSettings, targets: Tensor) -> Algorithm:
    """Return the algorithm that trains the network: FedAvg with DSA-IGN's objective; Adam starts afresh each round."""
    term = Decomposition(targets=targets, losses=settings.losses, orthogonality=settings.orthogonality)
    return Algorithm(name="dsa_ign", objective=(term,), optimizer=Adam(lr=settings.lr))


def index_work(settings: IndexSettings) -> LocalWork:
    """Return how much a client trains the network in a round."""
    return LocalWork(epochs=settings.local_epochs, batch_size=settings.batch_size)


def train_federated(
    network: DSAIGN,
    pairs: Federation,
    targets: Tensor,
    *,
    rounds: int,
    seed: int,
    device: torch.device,
    workers: int | None,
    progress: Progress,
) -> float:
    """Train the network in place and return the last round's mean loss.

    ``pairs`` holds example vectors as inputs; clients count by their examples.
    """
    algorithm = index_algorithm(network.settings, targets.to(device))
    work = index_work(network.settings)
    plan = TrainingPlan(rounds=rounds, cohort=network.settings.cohort)
    cohort_size = plan.cohort_size(len(pairs.training_ids))
    with (
        Simulator(algorithm, network, pairs, work=work, seed=seed, device=device, workers=workers) as simulator,
        progress,
    ):
        played = play(algorithm, simulator, rounds=rounds, cohort_size=cohort_size, seed=seed)
        loss = 0.0
        for state, record, *_ in played:
            loss = sum(record.weights[client] * own for client, own in record.losses.items())
            progress.advance(state.round, {})
        simulator.runner.bench.load(state.shared, state.buffers, {})
    return loss
