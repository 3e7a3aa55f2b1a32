"""pfl-research, set up as its benchmarks are: resident tensors, one model, plain averaging."""

import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from workloads import contender, tell


class Measured(nn.Module):
    """A network in pfl's form."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        return self.network(inputs)  # type: ignore[no-any-return]

    def loss(self, inputs: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        """Return the loss."""
        self.eval() if eval else self.train()
        return F.cross_entropy(self(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor, eval: bool = True) -> dict[str, Any]:
        """Return the loss as pfl counts it."""
        return {"loss": Weighted(self.loss(inputs, labels, eval).item() * len(labels), len(labels))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *, model: Any) -> Any:
        """Note the beginning."""
        self.times.append(time.perf_counter())
        return super().on_train_begin(model=model)

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Note the end of a round."""
        self.times.append(time.perf_counter())
        return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)


def main() -> None:
    """Train and tell."""
    workload, options = contender("pfl-research")
    torch.manual_seed(0)
    images, labels = workload.prepared()
    parts = list(zip(images.split(workload.examples), labels.split(workload.examples), strict=True))
    sampler = get_user_sampler("random", list(range(workload.clients)))
    data = FederatedDataset.from_slices(parts, sampler)
    network = Measured(workload.network())
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=workload.lr, local_num_epochs=1, local_batch_size=workload.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=10_000),
        callbacks=[clock],
    )
    tell([after - before for before, after in pairwise(clock.times)], ["pfl"])


if __name__ == "__main__":
    main()
