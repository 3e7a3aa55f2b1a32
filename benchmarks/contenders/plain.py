"""Two loops without a framework: the usual naive federated loop, and centralised training of the same steps."""

import copy
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent.parent))

from workloads import Workload, contender, tell


def naive(workload: Workload, model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return a round: copy the model for each client, train by DataLoader and torch.optim, average state dicts."""
    rng = torch.Generator().manual_seed(0)
    parts = [
        TensorDataset(x, y)
        for x, y in zip(images.split(workload.examples), labels.split(workload.examples), strict=True)
    ]

    def play() -> None:
        states = []
        for client in torch.randperm(workload.clients, generator=rng)[: workload.cohort].tolist():
            local = copy.deepcopy(model)
            local.train()
            optimizer = torch.optim.SGD(local.parameters(), lr=workload.lr)
            for x, y in DataLoader(parts[client], batch_size=workload.batch_size, shuffle=True):
                optimizer.zero_grad()
                F.cross_entropy(local(x), y).backward()
                optimizer.step()
            states.append(local.state_dict())
        model.load_state_dict({k: torch.stack([state[k] for state in states]).mean(0) for k in states[0]})

    return play


def centralised(workload: Workload, model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return as many steps as a round has, of one model over all data, which lies ready in memory."""
    steps = workload.cohort * -(-workload.examples // workload.batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)

    def play() -> None:
        for _ in range(steps):
            indices = torch.randint(len(labels), (workload.batch_size,))
            optimizer.zero_grad()
            F.cross_entropy(model(images[indices]), labels[indices]).backward()
            optimizer.step()

    return play


def main() -> None:
    """Train and tell."""
    workload, options = contender("no framework; variants: naive, centralised")
    torch.manual_seed(0)
    play = (naive if options.variant == "naive" else centralised)(workload, workload.network(), *workload.prepared())
    seconds = []
    for _ in range(options.rounds):
        began = time.perf_counter()
        play()
        seconds.append(time.perf_counter() - began)
    tell(seconds)


if __name__ == "__main__":
    main()
