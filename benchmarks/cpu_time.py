"""Measure in processor seconds, which other programs on the machine disturb less than they do the clock.

    python benchmarks/cpu_time.py

1  one training step (forward, backward, SGD) of one thread, as torch does it by default, with freed memory kept, with
   the channels last, and in bfloat16; each in its own process, taking turns
2  a round of our plain loop against a loop that does nothing but the steps (resident floats, updates in place)
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).parent / "contenders"))

from ours import WithFeatures, federation
from workloads import WORKLOADS, ResNet18, Workload

import fedatlas
from fedatlas.client import LocalWork, keep_freed_memory
from fedatlas.engines import Simulator
from fedatlas.training import play

NETWORKS = {
    "B, two convolutions, batch 10": (WORKLOADS["B"].network, 10),
    "ResNet-18, batch norm, width 32, batch 20": (lambda: ResNet18(width=32), 20),
}
VARIANTS = ("plain", "kept", "kept+last", "kept+last+bfloat16")


def step_milliseconds(network: str, variant: str, steps: int) -> float:
    """Return the median processor time of a step."""
    if "kept" in variant:
        keep_freed_memory(torch.device("cpu"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, batch_size = NETWORKS[network]
    model = make()
    parameters = list(model.parameters())
    images, labels = torch.randn(10 * batch_size, 3, 32, 32), torch.randint(10, (10 * batch_size,))
    taken = []
    for number in range(steps):
        began = time.process_time()
        own = torch.arange(batch_size) + number % 10 * batch_size
        inputs = images[own].contiguous(memory_format=torch.channels_last) if "last" in variant else images[own]
        with torch.autocast("cpu", torch.bfloat16, enabled="bfloat16" in variant):
            logits = model(inputs)
        gradients = torch.autograd.grad(F.cross_entropy(logits.float(), labels[own]), parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.01)
        taken.append(time.process_time() - began)
    return 1e3 * statistics.median(taken[2:])


def bare_round(workload: Workload, model: nn.Module, shared: list[Tensor], images: Tensor, labels: Tensor) -> None:
    """Train a cohort with nothing around the steps, and average into ``shared``."""
    parameters = list(model.parameters())
    total = [torch.zeros_like(tensor) for tensor in shared]
    for client in torch.randperm(workload.clients)[: workload.cohort].tolist():
        with torch.no_grad():
            torch._foreach_copy_(parameters, shared)
        order = client * workload.examples + torch.randperm(workload.examples)
        for own in order.split(workload.batch_size):
            gradients = torch.autograd.grad(F.cross_entropy(model(images[own]), labels[own]), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, gradients, alpha=-workload.lr)
        with torch.no_grad():
            torch._foreach_add_(total, torch._foreach_sub(parameters, shared), alpha=1 / workload.cohort)
    torch._foreach_add_(shared, total)


def round_milliseconds(workload: Workload, rounds: int) -> tuple[float, float]:
    """Return the median processor time of a bare round and of one of our loop, which take turns."""
    keep_freed_memory(torch.device("cpu"))
    torch.set_num_threads(1)
    algorithm = fedatlas.algorithms.fedavg().with_optimizer(fedatlas.SGD(lr=workload.lr))
    work = LocalWork(batch_size=workload.batch_size)
    model = workload.network()
    shared = [tensor.detach().clone() for tensor in model.parameters()]
    images, labels = workload.prepared()
    taken: tuple[list[float], list[float]] = ([], [])
    network = WithFeatures(workload.network())
    with Simulator(algorithm, network, federation(workload), work=work, workers=1, engine="loop") as simulator:
        played = play(algorithm, simulator, rounds=rounds, cohort_size=workload.cohort)
        for _ in range(rounds):
            began = time.process_time()
            bare_round(workload, model, shared, images, labels)
            between = time.process_time()
            next(played)
            taken[0].append(between - began)
            taken[1].append(time.process_time() - between)
    return 1e3 * statistics.median(taken[0][1:]), 1e3 * statistics.median(taken[1][1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "VARIANT"), help="measure one step only, print a number")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    if options.one:
        print(step_milliseconds(*options.one, options.steps))
        return
    print("| processor ms a step | " + " | ".join(VARIANTS) + " |\n|---|" + "---|" * len(VARIANTS))
    for network in NETWORKS:
        found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for _ in range(options.repetitions):
            for variant in VARIANTS:
                command = [sys.executable, __file__, "--one", network, variant, "--steps", str(options.steps)]
                found[variant].append(float(subprocess.check_output(command, text=True).split()[-1]))
        medians = [statistics.median(every) for every in found.values()]
        print(f"| {network} | " + " | ".join(f"{m:.1f} ({m / medians[0]:.2f})" for m in medians) + " |", flush=True)
    print("\n| processor ms a round | bare steps | our loop | ratio |\n|---|---|---|---|")
    for name, rounds in (("A", 25), ("B", 4)):
        bare, ours = round_milliseconds(WORKLOADS[name], rounds)
        print(f"| {name} | {bare:.1f} | {ours:.1f} | {ours / bare:.2f} |", flush=True)


if __name__ == "__main__":
    main()
