"""Prints how a newcomer with a few labelled examples does: with its group's model, or by tuning FedBN or FedPCE.

python -m papers.tools.newcomer_accuracy --data FOLDER --shifts rotated,permuted --seeds 200,201,202

FOLDER holds mnist.npz (x_train, y_train). Of 32 clients with 150 training images and 50 test images, in four kinds, 24
train and 8 come later with 5 or 10 of their training images. ``grouped`` places a newcomer by its vector and trains
nothing; under "all newcomers" one that it refuses to place has the likeliest group. FedBN and FedPCE, for which all
clients share one model, tune their own parameters on the same images. A member's accuracy is that of the clients that
trained with the same algorithm.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from fedatlas import Algorithm, Federation, Settings, federate, make_atlas, train
from fedatlas.adapting import Adapter
from fedatlas.algorithms import fedavg, fedbn, fedpce, grouped
from fedatlas.atlas import Atlas
from fedatlas.parts import SGD
from fedatlas.runs import atomic_write
from papers.tools.group_cells import SHIFTS, load

CLIENTS, NEWCOMERS, IMAGES = 32, 8, 200
EXAMPLES = (5, 10)
NORMS = {"grouped": "batch", "fedbn": "batch", "fedpce": "instance"}


def make(method: str, federation: Federation) -> tuple[Algorithm, Atlas | None]:
    """Return an algorithm, and the atlas that made its groups: of those that train, so that newcomers are new."""
    if method != "grouped":
        return {"fedbn": fedbn, "fedpce": fedpce}[method](), None
    known = replace(federation, clients=tuple(client for client in federation if not client.held_out))
    atlas = make_atlas(known, source="class-prototypes", progress=False)
    return grouped(fedavg(), atlas), atlas


def measure(options: argparse.Namespace, shift: str, seed: int, method: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of examples."""
    partition = SHIFTS[shift](num_clients=CLIENTS, examples_per_client=IMAGES)
    federation = federate(load("mnist", options.data), partition, held_out=NEWCOMERS, seed=seed)
    algorithm, atlas = make(method, federation)
    algorithm = algorithm.with_optimizer(SGD(lr=0.05))
    run = train(
        federation,
        algorithm,
        Settings(evaluate_every=options.rounds, workers=1),
        model="cnn",
        model_options={"width": 8, "norm": NORMS[method]},
        rounds=options.rounds,
        seed=seed,
        progress=False,
    )
    member = run.last["client_mean"]
    adapter = Adapter(run, data=federation, algorithm=algorithm)
    for count in EXAMPLES:
        if method == "grouped":
            found = [adapter.place(name, atlas=atlas, examples=count) for name in adapter.held_out]
            likeliest = [max(range(len(one.chances)), key=one.chances.__getitem__) for one in found]
            results = adapter.adapt_all(adapter.held_out, group=likeliest, examples=count, rounds=0)
            placed = [one.placed for one in found]
        else:
            results = adapter.adapt_all(
                adapter.held_out, examples=count, rounds=options.tuning, steps=10, tune="personal", compare=False
            )
            placed = [True] * len(results)
        yield {
            "shift": shift,
            "seed": seed,
            "method": method,
            "examples": count,
            "member": member,
            "newcomers": [one.after.accuracy for one in results],
            "placed": placed,
        }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the means over seeds as a Markdown table, in percent."""
    lines = [
        "| shift | method | examples | a member | newcomers that are placed | share of a member's | all newcomers | "
        "share of a member's | not placed |",
        "|" + "---|" * 9,
    ]
    cells: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["shift"], row["method"], row["examples"]), []).append(row)
    for (shift, method, examples), own in cells.items():
        member = mean(row["member"] for row in own)
        # Means of the seeds' means.
        everyone = mean(mean(row["newcomers"]) for row in own)
        sure = [[value for value, yes in zip(row["newcomers"], row["placed"], strict=True) if yes] for row in own]
        placed = mean(mean(values) for values in sure if values)
        shown = " | ".join(f"{100 * value:.1f} | {100 * value / member:.0f} %" for value in (placed, everyone))
        count = sum(len(row["placed"]) for row in own)
        refused = f"{count - sum(map(len, sure))} of {count}" if method == "grouped" else "–"
        lines.append(f"| {shift} | {method} | {examples} | {100 * member:.1f} | {shown} | {refused} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--shifts", type=lambda text: text.split(","), default=list(SHIFTS))
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[200, 201, 202])
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(NORMS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tuning", type=int, default=10, help="rounds of ten steps")
    parser.add_argument("--out", type=Path, help="where results are kept; existing ones are not measured again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = json.loads(options.out.read_bytes()) if options.out and options.out.exists() else []
    known = {(row["shift"], row["seed"], row["method"]) for row in rows}
    for shift in options.shifts:
        for seed in options.seeds:
            for method in options.methods:
                if (shift, seed, method) in known:
                    continue
                for row in measure(options, shift, seed, method):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                if options.out is not None:
                    lines = ",\n".join(json.dumps(row) for row in rows)
                    atomic_write(options.out, f"[\n{lines}\n]\n".encode())
    print(table(rows))


if __name__ == "__main__":
    main()
