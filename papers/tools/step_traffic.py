"""Prints how many bytes a step of FedMix reads and writes beside one of FedAvg, as a GPU would compute it.

    python -m papers.tools.step_traffic

A small network is done before a GPU has read and written its maps, so bytes say more of its time there than products
do. Counted are the tensors that torch's kernels get and return, views left out; a processor is enough for that.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedatlas.algorithms import MixedCrossEntropy
from fedatlas.models import build_model
from fedatlas.parts import Batch, Output
from papers.options import script

BATCH, SIDE, CLASSES = 64, 32, 10


class Traffic(TorchDispatchMode):
    """Adds up the bytes of the tensors that kernels get and return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
        if made and not func.is_view and func is not torch.ops.aten.detach.default:
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            self.calls[func.__name__] += 1
            self.bytes[func.__name__] += sum(tensor.numel() * tensor.element_size() for tensor in (*given, *made))
        return found


def steps(width: int) -> dict[str, Counter[str]]:
    """Return the bytes by kernel of a gradient of each: FedAvg, FedMix by second derivatives, and in forward mode."""
    shape = (3, SIDE, SIDE)
    model = build_model("resnet18", num_classes=CLASSES, input_shape=shape, seed=0, width=width).train()
    parameters, term = list(model.parameters()), MixedCrossEntropy()
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.randn(BATCH, *shape, generator=rng), torch.arange(BATCH) % CLASSES
    means = {"inputs": torch.randn(1, *shape, generator=rng), "labels": torch.full((1, CLASSES), 1 / CLASSES)}
    local: Any = SimpleNamespace(scratch={term.name: means}, forward=lambda _, inputs: Output(*model(inputs)))

    def plain() -> Tensor:
        return F.cross_entropy(model(images)[1], labels)

    def mixed(inputs: Tensor) -> Tensor:
        return term.loss(local, Batch(inputs, labels), Output(*model(inputs)))

    losses: dict[str, Callable[[], Tensor]] = {
        "FedAvg": plain,
        "FedMix, second derivatives (CPU)": lambda: mixed(images.clone().requires_grad_()),
        "FedMix, forward mode (GPU)": lambda: mixed(images),
    }
    found = {}
    for title, loss in losses.items():
        with Traffic() as traffic:
            torch.autograd.grad(loss(), parameters)
        found[title] = traffic.bytes
    return found


@script
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=16, help="of the ResNet-18; default 16")
    found = steps(parser.parse_args().width)
    base = found["FedAvg"].total()
    print("| step | MB | x FedAvg |\n|---|---|---|")
    for title, counted in found.items():
        print(f"| {title} | {counted.total() / 1e6:.0f} | {counted.total() / base:.1f} |")


if __name__ == "__main__":
    main()
