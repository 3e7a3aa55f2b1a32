"""Prints what groups cost: the verdict of 100 clients, and a round of grouped FedAvg beside one of FedAvg.

python -m papers.tools.groups_speed
python -m papers.tools.groups_speed --made-up 100000

The embedded digits: 100 clients of 60 images for the verdict; 20 clients in four groups for the rounds, which the two
algorithms play in turns in one process, so that both meet the same machine. Medians, and their ratio. With
``--made-up`` only the verdict of so many clients is timed, in five kinds that label ten classes of made-up points
otherwise, 30 points each; it also prints the most memory that was in use.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from fedatlas import Algorithm, Federation, federate, load_dataset, make_atlas
from fedatlas.algorithms import fedavg
from fedatlas.atlas import Embeddings, class_prototypes
from fedatlas.client import LocalWork
from fedatlas.data import Client, Dataset, Iid
from fedatlas.engines import Simulator
from fedatlas.parts import ByGroup
from fedatlas.seeds import numpy_generator, repeatable
from fedatlas.training import make_model, play

CLASSES, FEATURES, EXAMPLES, KINDS = 10, 16, 30, 5
"""Of the made-up clients."""


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


def made_up(clients: int) -> None:
    """Print the seconds and the memory of a verdict of many clients, and whether it is right."""
    rng = numpy_generator(0, "made-up clients")
    centres = rng.normal(size=(CLASSES, FEATURES)) * 2
    classes = rng.integers(CLASSES, size=(clients, EXAMPLES))
    points = (centres[classes] + rng.normal(size=(*classes.shape, FEATURES))).astype(np.float32)
    kinds = np.arange(clients) % KINDS
    namings = np.stack([rng.permutation(CLASSES) for _ in range(KINDS)])
    labels = namings[kinds[:, None], classes]
    data = Dataset(
        name="points",
        inputs=torch.zeros(labels.size, 1),
        labels=torch.from_numpy(labels.reshape(-1)),
        classes=tuple(str(k) for k in range(CLASSES)),
    )
    rows = torch.arange(labels.size).view(clients, EXAMPLES)
    none = torch.tensor([], dtype=torch.int64)
    members = tuple(Client(name=f"client-{i:06d}", train=rows[i], test=none) for i in range(clients))
    embeddings = Embeddings(
        encoder="builtin", examples=torch.from_numpy(points.reshape(-1, FEATURES)), classes=torch.eye(CLASSES)
    )
    before = peak_gigabytes()
    begun = time.perf_counter()
    atlas = class_prototypes(Federation(data=data, clients=members), embeddings)
    made = time.perf_counter()
    found = atlas.verdict()
    done = time.perf_counter()
    print(
        f"{clients} made-up clients: atlas {made - begun:.1f} s, verdict {done - made:.1f} s, at most "
        f"{peak_gigabytes():.1f} GB in use ({before:.1f} GB before), {found.count} groups, ARI "
        f"{adjusted_rand_score(kinds, found.groups.tolist()):.3f}",
        flush=True,
    )


def peak_gigabytes() -> float:
    """Return the most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


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
    parser.add_argument("--made-up", type=int, default=None, metavar="CLIENTS")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.made_up is not None:
        made_up(options.made_up)
        return
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
