"""Prints what groups cost: the verdict of 100 clients, and a round of grouped FedAvg beside one of FedAvg.

python -m papers.tools.groups_speed

The embedded digits: 100 clients of 60 images for the verdict; 20 clients in four groups for the rounds, which the two
algorithms play in turns in one process, so that both meet the same machine. Medians, and their ratio.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import torch

from fedatlas import Algorithm, Federation, federate, load_dataset, make_atlas
from fedatlas.algorithms import fedavg
from fedatlas.client.work import LocalWork
from fedatlas.data import Iid
from fedatlas.engines.simulator import Simulator
from fedatlas.parts.sharing import ByGroup
from fedatlas.seeds import repeatable
from fedatlas.training.model import make_model
from fedatlas.training.rounds import play


def verdict(clients: int) -> None:
    """Print the seconds of an atlas and of its verdict."""
    federation = federate(load_dataset("digits"), Iid(num_clients=clients), seed=0)
    begun = time.perf_counter()
    atlas = make_atlas(federation, source="class-prototypes", progress=False)
    made = time.perf_counter()
    found = atlas.verdict()
    done = time.perf_counter()
    print(
        f"{clients} clients, {len(federation.data)} images: atlas {made - begun:.1f} s, verdict {done - made:.2f} s "
        f"({found.count} groups)",
        flush=True,
    )


def seconds(algorithm: Algorithm, federation: Federation, rounds: int) -> Iterator[float]:
    """Play rounds and yield the seconds of each."""
    model = make_model("cnn", {"width": 8}, federation, algorithm, 0)
    with Simulator(algorithm, model, federation, work=LocalWork(), workers=1) as clients:
        playing = play(algorithm, clients, rounds=rounds)
        while True:
            begun = time.perf_counter()
            if next(playing, None) is None:
                return
            yield time.perf_counter() - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    verdict(options.clients)
    federation = federate(load_dataset("digits"), Iid(num_clients=20), seed=0)
    groups = {client.name: i % 4 for i, client in enumerate(federation)}
    apart = replace(fedavg(), sharing=ByGroup(groups=groups))
    with repeatable(torch.device("cpu")):
        both = list(
            zip(
                seconds(fedavg(), federation, options.rounds),
                seconds(apart, federation, options.rounds),
                strict=True,
            )
        )
    one, four = (median(column) for column in zip(*both[2:], strict=True))
    ratio = median(own / plain for plain, own in both[2:])
    print(f"a round of 20 clients: FedAvg {1e3 * one:.0f} ms, in four groups {1e3 * four:.0f} ms, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
