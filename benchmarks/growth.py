"""Measure how a round's time grows with the number of clients and with the cohort, and draw it.

    python benchmarks/growth.py --out results          # a table, growth.json and growth.svg
    python benchmarks/growth.py --memory --out results # 100,000 clients with SCAFFOLD's state in bounded memory

Small clients (10 images of 14x14, a perceptron of 40 units), so that the framework and not the arithmetic shows. The
clients are counted after the first round; a figure is the median round.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import fedatlas

EXAMPLES, SIDE = 10, 14


def federation(clients: int) -> fedatlas.Federation:
    """Return clients with a few random images each."""
    rng = torch.Generator().manual_seed(0)
    count = clients * EXAMPLES
    data = fedatlas.Dataset(
        name="random",
        inputs=torch.randint(256, (count, 1, SIDE, SIDE), generator=rng, dtype=torch.uint8),
        labels=torch.randint(10, (count,), generator=rng),
        classes=tuple(map(str, range(10))),
        mean=(0.5,),
        std=(0.25,),
    )
    parts = torch.arange(count).split(EXAMPLES)
    members = tuple(fedatlas.Client(name=f"client-{i}", train=own, test=own[:0]) for i, own in enumerate(parts))
    return fedatlas.Federation(data=data, clients=members, partition="equal parts")


def measure(
    clients: int, cohort: int, rounds: int, algorithm: fedatlas.Algorithm | None = None, **options: Any
) -> dict[str, Any]:
    """Return seconds of a round, of its server's side and until the first round, and the peak of memory."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = fedatlas.train(
            federation(clients),
            algorithm or fedatlas.algorithms.fedavg(),
            fedatlas.Settings(evaluate_every=rounds, **options),
            model="mlp",
            model_options={"hidden": (40,)},
            rounds=rounds,
            cohort=cohort,
            batch_size=EXAMPLES,
            folder=folder,
            progress=False,
        )
        whole = time.perf_counter() - began
        timings, rows = run.timings, {row.stage: row for row in run.profile()}
        disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    seconds = [entry["train"] for entry in timings]
    return {
        "clients": clients,
        "cohort": cohort,
        "round": statistics.median(seconds[1:]),
        "server_share": rows["server's side"].share,
        "before_and_after": whole - sum(seconds),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "disk_mb": disk / 1e6,
    }


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw a round's time against clients and against the cohort."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for axis, varies, fixed in ((axes[0], "clients", "cohort"), (axes[1], "cohort", "clients")):
        points = [one for one in found if one["varies"] == varies]
        axis.plot([one[varies] for one in points], [1e3 * one["round"] for one in points], marker="o", color="#2a6f97")
        axis.set(xscale="log", yscale="log", xlabel=f"{varies} ({fixed} {points[0][fixed]:,})")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms a round")
    figure.savefig(path)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=100_000, help="the most clients")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory", action="store_true", help="measure SCAFFOLD's memory only")
    parser.add_argument("--cohort", type=int, default=1000, help="of that measurement")
    parser.add_argument("--limit", type=float, default=0.05, help="gigabytes of clients' memory in RAM")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    if options.memory:
        scaffold = fedatlas.algorithms.scaffold()
        told = measure(options.most, options.cohort, options.rounds, scaffold, memory_limit=options.limit)
        found.append({"varies": "memory", "limit": options.limit, **told})
    else:
        sizes = [10**power for power in range(2, 6) if 10**power <= options.most]
        found += [{"varies": "clients", **measure(clients, 20, options.rounds)} for clients in sizes]
        largest = min(10_000, options.most)
        cohorts = [cohort for cohort in (10, 30, 100, 300, 1000) if cohort <= largest]
        found += [{"varies": "cohort", **measure(largest, cohort, options.rounds)} for cohort in cohorts]
        draw(found, options.out / "growth.svg")
    name = "memory.json" if options.memory else "growth.json"
    (options.out / name).write_text(json.dumps(found, indent=1))
    print("| clients | cohort | ms a round | server's side | seconds around the rounds | peak MB | MB on disk |")
    print("|---|---|---|---|---|---|---|")
    for one in found:
        cells = [f"{one['clients']:,}", one["cohort"], f"{1e3 * one['round']:.1f}", f"{one['server_share']:.1%}"]
        cells += [f"{one['before_and_after']:.1f}", f"{one['peak_mb']:.0f}", f"{one['disk_mb']:.0f}"]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
