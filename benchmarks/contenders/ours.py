"""fedatlas, by its public function ``train``."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from workloads import NUM_CLASSES, Workload, contender, tell

import fedatlas


class WithFeatures(nn.Module):
    """A network in fedatlas's form: it also returns features, here the logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits."""
        logits = self.network(inputs)
        return logits, logits


def federation(workload: Workload) -> fedatlas.Federation:
    """Return the workload's clients."""
    images, labels = workload.images()
    channels = workload.shape[0]
    data = fedatlas.Dataset(
        name="random",
        inputs=images,
        labels=labels,
        classes=tuple(map(str, range(NUM_CLASSES))),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )
    parts = torch.arange(len(labels)).split(workload.examples)
    clients = tuple(fedatlas.Client(name=f"client-{i}", train=own, test=own[:0]) for i, own in enumerate(parts))
    return fedatlas.Federation(data=data, clients=clients, partition="equal parts")


def main() -> None:
    """Train and tell."""
    workload, options = contender("fedatlas; variants: bfloat16, or an engine's name")
    half = options.variant == "bfloat16"
    settings = fedatlas.Settings(
        precision="bfloat16" if half else "float32",
        engine=options.variant if options.variant and not half else "auto",
        evaluate_every=options.rounds,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = fedatlas.train(
            federation(workload),
            fedatlas.algorithms.fedavg(),
            settings,
            model=lambda: WithFeatures(workload.network()),
            optimizer=fedatlas.SGD(lr=workload.lr),
            rounds=options.rounds,
            cohort=workload.cohort,
            batch_size=workload.batch_size,
            folder=folder,
            progress=False,
        )
        tell([entry["train"] for entry in run.timings], ["fedatlas"], server=run.profile()[-1].share)


if __name__ == "__main__":
    main()
