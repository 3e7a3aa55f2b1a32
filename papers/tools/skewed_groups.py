"""Prints how well a verdict finds groups that label differently under label skew, and how well it could at best.

python -m papers.tools.skewed_groups --data FOLDER --federations 40

FOLDER holds mnist.npz. The federations are those that ``papers.tools.groups`` trains on, of the partition
``permuted-labels`` with Dirichlet 0.3, but MNIST is encoded once for all of them. At best: each client is placed by the
true groups of all others. ``--out FILE`` keeps the numbers as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

import torch
from sklearn.metrics import adjusted_rand_score

from fedatlas import federate
from fedatlas.atlas import judge, make_encoder, summarise
from fedatlas.data import Client, Dataset, Federation
from papers.tools.group_cells import CELLS, load
from papers.tools.verdict import oracle


def encoded(data: Dataset) -> Dataset:
    """Return a data set with the embeddings of its examples as inputs: other labels change no image."""
    whole = Client(name="all", train=torch.arange(len(data)), test=torch.tensor([], dtype=torch.int64))
    vectors = make_encoder("builtin").encode(Federation(data=data, clients=(whole,)), progress=False).examples
    return Dataset(name=data.name, inputs=vectors, labels=data.labels, classes=data.classes)


def measure(data: Dataset, images: int, seeds: range) -> Iterator[dict[str, float]]:
    """Yield for each seed how its federation was grouped."""
    cell = CELLS[f"permuted-{images}-0.3"]
    for seed in seeds:
        federation = federate(data, cell.partition(), seed=seed, test=cell.test, test_fraction=cell.test_fraction)
        summary = summarise(federation, federation.data.inputs)
        assert summary is not None
        kinds = [str(client.kind) for client in federation]
        truth = [list(dict.fromkeys(kinds)).index(kind) for kind in kinds]
        found = judge(summary, [client.name for client in federation])
        ari = float(adjusted_rand_score(truth, found.groups.tolist()))
        yield {"images": images, "seed": seed, "groups": found.count, "ari": ari, "oracle": oracle(summary, truth)}


def line(rows: list[dict[str, float]]) -> str:
    """Return one row of the table; the interval is that of the mean difference over federations, 95 %."""
    off = [row["ari"] - row["oracle"] for row in rows]
    half = 2 * stdev(off) / len(off) ** 0.5
    right = sum(row["groups"] == 4 for row in rows)
    found, best = (mean(row[key] for row in rows) for key in ("ari", "oracle"))
    return (
        f"| {rows[0]['images']} | {found:.2f} | {best:.2f} | {mean(off):+.3f} ± {half:.3f} | {right} of {len(rows)} | "
        f"{min(row['ari'] for row in rows):.2f} to {max(row['ari'] for row in rows):.2f} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of mnist.npz")
    parser.add_argument("--federations", type=int, default=40)
    parser.add_argument("--first-seed", type=int, default=300)
    parser.add_argument("--out", type=Path, help="a JSON file of all numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = encoded(load("mnist", options.data))
    kept = []
    print("| images | ARI | placed by the true groups | difference | four groups | ARI from, to |")
    print("|" + "---|" * 6, flush=True)
    for images in (60, 150, 500):
        rows = list(measure(data, images, range(options.first_seed, options.first_seed + options.federations)))
        kept += rows
        print(line(rows), flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
