"""Train very many clients from the data to the report, without and with groups, and print what that takes.

python benchmarks/many.py                     # 100,000 clients of three examples each, three rounds, cohorts of 50
python benchmarks/many.py --clients 2000
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import fedatlas
from fedatlas import Algorithm, Client, Federation, from_arrays
from fedatlas.algorithms import fedavg, grouped
from fedatlas.cli import print_rows
from fedatlas.report import write_report


def many_clients(count: int) -> Federation:
    """Return clients with two examples to train on and one to test."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 3 * count)
    inputs = (rng.normal(size=(3 * count, 4)) + labels[:, None]).astype(np.float32)
    rows = torch.arange(3 * count).view(-1, 3)
    clients = (Client(name=f"client-{i}", train=own[:2], test=own[2:]) for i, own in enumerate(rows))
    return Federation(data=from_arrays(inputs, labels, name="many"), clients=tuple(clients), partition="three each")


def measure(federation: Federation, algorithm: Algorithm, folder: Path) -> dict[str, str]:
    """Train and report; return the row of a table."""
    settings = fedatlas.Settings(
        rounds=3, cohort=50, model="mlp", model_options={"hidden": [8]}, batch_size=2, workers=1, evaluate_every=3
    )
    began = time.monotonic()
    run = fedatlas.train(federation, algorithm, settings, folder=folder, progress=False)
    trained = time.monotonic()
    write_report([run], folder / "page.html")
    reported = time.monotonic()
    sizes = {name: (folder / name).stat().st_size / 1e6 for name in ("clients.jsonl", "resolved.json", "page.html")}
    return {
        "algorithm": algorithm.name,
        "train": f"{trained - began:.1f} s",
        "report": f"{reported - trained:.1f} s",
        "memory": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB",
        **{name: f"{size:.1f} MB" for name, size in sizes.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=100_000, help="how many clients; default 100,000")
    given = parser.parse_args()
    torch.set_num_threads(1)
    federation = many_clients(given.clients)
    halves = grouped(fedavg(), members=[[client.name for client in federation.clients[::2]]])
    with tempfile.TemporaryDirectory() as scratch:
        rows = [measure(federation, own, Path(scratch) / str(i)) for i, own in enumerate((fedavg(), halves))]
    print_rows(rows, f"{given.clients:,} clients, three rounds, one evaluation, a report; the most memory so far")


if __name__ == "__main__":
    main()
