"""Measure fedatlas on a GPU: workloads D, E and F, in one run, taking turns; needs only fedatlas and torch.

    python benchmarks/gpu.py --device cuda --out results          # all of it
    python benchmarks/gpu.py --device cuda --only E --out results
    python benchmarks/gpu.py --tiny                               # whether it runs, on any machine

D  pfl's CIFAR-10 benchmark: 1000 clients of 50 images, 50 a round, batch 10, tested on 10,000 images every 10 rounds
E  ResNet-18 (3x3 stem, batch normalisation), 10 clients, batch 64, bfloat16: the plain loop, our engine, and one
   centralised training with a batch of 1024
F  E with other algorithms, compiled

Images are random: speed does not depend on what they show. What was measured is kept in results.json after each
measurement, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import fedatlas


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    clients: int = 1000
    rounds: int = 1500
    test: int = 10_000
    images: int = 1280
    """Of each of the ten clients of E and F."""
    epochs: int = 5
    """Rounds of E and F, the first of which is not counted."""
    width: int = 64
    repetitions: int = 3
    batch_size: int = 64
    large_batch: int = 1024
    compile: bool = True
    """Whether what says so is compiled; that takes half a minute."""


TINY = Size(
    clients=12,
    rounds=3,
    test=20,
    images=6,
    epochs=2,
    width=4,
    repetitions=1,
    batch_size=3,
    large_batch=6,
    compile=False,
)


def federation(clients: int, images: int, test: int = 0) -> fedatlas.Federation:
    """Return clients with random images of CIFAR-10's form; the test images are shared by all."""
    rng = torch.Generator().manual_seed(0)
    count = clients * images + test
    data = fedatlas.Dataset(
        name="random",
        inputs=torch.randint(256, (count, 3, 32, 32), generator=rng, dtype=torch.uint8),
        labels=torch.randint(10, (count,), generator=rng),
        classes=tuple(map(str, range(10))),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )
    own = torch.arange(clients * images).split(images)
    tested = torch.arange(clients * images, count)
    members = [fedatlas.Client(name=f"client-{i}", train=part, test=tested) for i, part in enumerate(own)]
    return fedatlas.Federation(data=data, clients=tuple(members), partition="equal parts")


def fedatlas_rate(
    clients: fedatlas.Federation, algorithm: fedatlas.Algorithm, *, first: int = 1, **options: Any
) -> dict[str, Any]:
    """Train and return samples a second over the median round, after the first ones, and what the engine left."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = fedatlas.train(clients, algorithm, fedatlas.Settings(**options), folder=folder, progress=False)
        whole = time.perf_counter() - began
        timings, records, machine = run.timings, run.clients, run.resolved["machine"]
        server = run.profile()[-1].share
    sizes = {client.name: len(client.train) for client in clients}
    seconds = [entry["train"] for entry in timings]
    trained = [0] * len(seconds)
    for entry in records:
        if entry["trained"]:
            trained[entry["round"] - 1] += sizes[entry["client"]]
    rates = [samples / took for samples, took in zip(trained, seconds, strict=True)][first:]
    return {
        "samples_per_second": statistics.median(rates),
        "mean_samples_per_second": sum(trained[first:]) / sum(seconds[first:]),
        "train_seconds": sum(seconds),
        "evaluate_seconds": sum(entry["evaluate"] for entry in timings),
        "whole_seconds": whole,
        "server": server,
        "engine": machine.get("engine"),
        "fallbacks": timings[-1].get("fallbacks", {}),
        "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None,
    }


def centralised_rate(size: Size, device: str, precision: str) -> dict[str, Any]:
    """Train one ResNet-18 with large batches of resident images and return samples a second."""
    images = 10 * size.images
    inputs = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8, device=device)
    labels = torch.randint(10, (images,), device=device)
    model = fedatlas.models.build_model("resnet18", num_classes=10, input_shape=(3, 32, 32), seed=0, width=size.width)
    model = model.to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batch = min(size.large_batch, images)
    rates = []
    for _ in range(size.epochs):
        order = torch.randperm(images, device=device).split(batch)
        begun, seen = time.perf_counter(), 0
        for indices in order:
            x = inputs[indices].float().div_(255).sub_(0.5).div_(0.25).contiguous(memory_format=torch.channels_last)
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16"):
                loss = F.cross_entropy(model(x)[1], labels[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(indices)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        rates.append(seen / (time.perf_counter() - begun))
    return {"samples_per_second": statistics.median(rates[1:])}


def measurements(size: Size, device: str) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return all that can be measured, by name."""
    ten = federation(10, size.images)
    heavy: dict[str, Any] = {
        "model": "resnet18",
        "model_options": {"width": size.width},
        "batch_size": size.batch_size,
        "precision": "bfloat16",
        "rounds": size.epochs,
        "evaluate_every": size.epochs,
        "optimizer": fedatlas.SGD(lr=0.05),
        "device": device,
    }
    atlas = fedatlas.Atlas(
        names=tuple(client.name for client in ten),
        halves={half: torch.randn(10, 32, generator=torch.Generator().manual_seed(1)) for half in ("feature", "label")},
        sizes=torch.tensor([len(client.train) for client in ten]),
    )
    compiled = {"compile": size.compile}
    instance = {"model_options": {"width": size.width, "norm": "instance"}, **compiled}

    def benchmark(precision: str) -> dict[str, Any]:
        cohort = min(50, size.clients)
        return fedatlas_rate(
            federation(size.clients, 50, size.test),
            fedatlas.algorithms.fedavg(),
            model="cnn",
            optimizer=fedatlas.SGD(lr=0.1),
            batch_size=10,
            cohort=cohort,
            precision=precision,
            rounds=size.rounds,
            evaluate_every=10,
            checkpoint_every=size.rounds,
            device=device,
            first=min(10, size.rounds - 1),
        )

    def one(algorithm: fedatlas.Algorithm, **other: Any) -> Callable[[], dict[str, Any]]:
        return lambda: fedatlas_rate(ten, algorithm, **{**heavy, **other})

    return {
        "D, float32": lambda: benchmark("float32"),
        "D, bfloat16": lambda: benchmark("bfloat16"),
        "E, plain loop": one(fedatlas.algorithms.fedavg(), engine="loop"),
        "E, our engine": one(fedatlas.algorithms.fedavg()),
        "E, our engine, compiled": one(fedatlas.algorithms.fedavg(), **compiled),
        f"E, centralised, batch {size.large_batch}": lambda: centralised_rate(size, device, "bfloat16"),
        "F, Client2Vec's objective": one(
            fedatlas.algorithms.client2vec(atlas=atlas, sample=False, aggregate=False, train=True), **compiled
        ),
        "F, MOON": one(fedatlas.algorithms.moon(), **compiled),
        "F, SCAFFOLD": one(fedatlas.algorithms.scaffold(), **compiled),
        "F, FedDyn": one(fedatlas.algorithms.feddyn(), **compiled),
        "F, FedSAM": one(fedatlas.algorithms.fedsam(), **compiled),
        "F, FedAvg, instance norm": one(fedatlas.algorithms.fedavg(), **instance),
        "F, FedPCE": one(fedatlas.algorithms.fedpce(), **instance),
    }


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return a markdown table: medians over repetitions, and each against E with our engine, compiled."""
    base = _median(results.get("E, our engine, compiled", []))
    lines = ["| | samples a second | against E | engine | left to a slower one |", "|---|---|---|---|---|"]
    for name, all_told in results.items():
        rate, told = _median(all_told), all_told[-1]
        against = f"{rate / base:.2f}" if base and name[0] in "EF" else ""
        left = "; ".join(f"{reason} ({count})" for reason, count in told.get("fallbacks", {}).items())
        lines.append(f"| {name} | {rate:,.0f} | {against} | {told.get('engine') or ''} | {left} |")
    for name, all_told in results.items():
        if name.startswith("D"):
            whole = statistics.median(told["train_seconds"] + told["evaluate_seconds"] for told in all_told)
            server = statistics.median(told["server"] for told in all_told)
            lines += ["", f"{name}, all rounds with evaluation: {whole:.1f} s; the server's side: {server:.1%}"]
    return "\n".join(lines)


def _median(told: list[dict[str, Any]]) -> float:
    return statistics.median(one["samples_per_second"] for one in told) if told else 0.0


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+", default=[""], help="measure only what begins with one of these, e.g. D E")
    parser.add_argument("--repetitions", type=int, help="default 3; D is measured once in each")
    parser.add_argument("--rounds", type=int, help="rounds of D; default 1500")
    parser.add_argument("--seconds", type=float, help="begin nothing new after so many seconds")
    parser.add_argument("--tiny", action="store_true", help="very small, to see whether it runs")
    parser.add_argument("--out", type=Path, help="a folder for results.json and results.md")
    options = parser.parse_args()
    size = TINY if options.tiny else Size()
    size = replace(size, rounds=options.rounds or size.rounds, repetitions=options.repetitions or size.repetitions)
    kept = options.out / "results.json" if options.out else None
    results: dict[str, list[dict[str, Any]]] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    chosen = {
        name: measure
        for name, measure in measurements(size, options.device).items()
        if name.startswith(tuple(options.only))
    }
    began = time.perf_counter()
    for repetition in range(size.repetitions):
        for name, measure in chosen.items():
            late = options.seconds is not None and time.perf_counter() - began > options.seconds
            if late or len(results.get(name, [])) > repetition:
                continue
            told = measure()
            results.setdefault(name, []).append(told)
            rate = told["samples_per_second"]
            print(f"{repetition + 1}/{size.repetitions} {name}: {rate:,.0f} samples/s", flush=True)
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(results, indent=1))
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    text = f"{device}, torch {torch.__version__}\n\n{table(results)}"
    print(text)
    if options.out:
        (options.out / "results.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
