"""Prints what a client's vector tells an attacker, and what it is still worth: for each source of an atlas, by noise.

python -m papers.tools.leakage --seeds 0,1,2 --out FILE

The embedded digits, cut into two halves: clients' images, and images that the attacker has. Every client has 5, 20 or
100 images of one domain, with label shares from a Dirichlet distribution of concentration 0.5. The attacker knows how
vectors are made, and makes some of clients of its own; it learns from these alone. It then sees each client's vector:

    labels       ridge regression to the label shares; the total variation distance to the true ones
    membership   which of two images, of the client's domain and of one class, is the client's: the inner product of the
                 vector with that of the image alone, both without the mean; the area under the curve
    domain       ridge regression to the domain; how often it is right, of five
    image        a linear decoder to pixels; the squared distance to the nearest image of the client, in units of that
                 of the mean image of the attacker's images of that domain
    groups       the adjusted Rand index of five groups of clients with the domains: what the vector is for
    accuracy     of FedAvg with a model for each of these groups (group_accuracy.py)

Noise is that of ``fedatlas.atlas.noise`` at delta 1e-5: for one example where the source bounds an example's part,
else for the whole client. Bounds are medians over the attacker's images or vectors. FILE keeps what is done.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from torch import Tensor
from torch.nn.functional import one_hot

from fedatlas import Atlas, Client, Federation, load_dataset
from fedatlas.atlas import (
    DSAIGN,
    Embeddings,
    IndexSettings,
    IndexTraining,
    class_prototypes,
    clip_rows,
    feature_average,
    index_clients,
    label_histogram,
    leading_directions,
    make_encoder,
    narrowed,
    projection_row,
    sample_indices,
    train_index_network,
)
from fedatlas.atlas import principal_angles as by_angles
from fedatlas.data import Dataset
from fedatlas.seeds import generator, numpy_generator
from papers.tools.group_accuracy import group_accuracy, small_images, tests_of

SIZES, EPSILONS = (5, 20, 100), (math.inf, 32.0, 8.0, 1.0)
VICTIMS, SHADOWS = 60, 400
"""Clients, and those that the attacker makes."""
CONCENTRATION = 0.5
COLUMNS = ("labels", "membership", "domain", "image", "groups", "accuracy")
FEATURE, LABEL = "client2vec, feature", "client2vec, label"
INDEX = IndexTraining(strategy="federated", epochs=10, settings=replace(IndexSettings(), feed_forward=64))
"""Client2Vec's network, small enough for a CPU."""


class World(NamedTuple):
    """The images, and who has which."""

    data: Dataset
    embeddings: Embeddings
    pixels: Tensor
    """(N, 3072), in [0, 1]."""
    theirs: Tensor
    """The positions of the clients' images."""
    mine: Tensor
    """The positions of the attacker's."""
    small: Dataset
    """The images as groups of clients learn them."""
    network: DSAIGN | None = None
    """Client2Vec's, where it is asked for; whoever sees vectors of it has it too."""


Make = Callable[[World, Federation, float], Atlas]
SOURCES: Mapping[str, tuple[Make, str]] = {
    "label-histogram": (lambda world, federation, clip: label_histogram(federation), "example"),
    "feature-average": (lambda world, federation, clip: feature_average(federation, world.embeddings), "client"),
    "feature-average, clipped": (
        lambda world, federation, clip: feature_average(federation, world.embeddings, clip=clip),
        "example",
    ),
    "class-prototypes": (lambda world, federation, clip: class_prototypes(federation, world.embeddings), "client"),
    "principal-angles": (lambda world, federation, clip: by_angles(federation, world.embeddings), "client"),
    FEATURE: (lambda world, federation, clip: index_half(world, federation, "feature"), "client"),
    LABEL: (lambda world, federation, clip: index_half(world, federation, "label"), "client"),
}
"""How the vectors are made, and what their noise protects."""


class Seen(NamedTuple):
    """Clients and their vectors."""

    clients: Sequence[Tensor]
    """The positions of each client's images."""
    domains: Tensor
    vectors: Tensor


def make_world(seed: int) -> World:
    """Return the digits, half of every domain the attacker's."""
    data = load_dataset("digits")
    everything = Federation(data=data, clients=(_client("all", torch.arange(len(data)), "all"),), partition="all")
    embeddings = make_encoder("builtin").encode(everything, progress=False)
    order = torch.randperm(len(data), generator=generator(seed, "leakage", "halves"))
    pixels = data.inputs.flatten(1).float() / 255
    small = small_images(pixels, data.labels)
    theirs, mine = order[: len(order) // 2], order[len(order) // 2 :]
    return World(data, embeddings, pixels, theirs, mine, small)


def with_index(world: World, seed: int) -> World:
    """Return the world with Client2Vec's network, trained by clients of 100 images."""
    clients, _ = draw_clients(world.data, world.theirs, VICTIMS, max(SIZES), seed, "theirs")
    how = replace(INDEX, seed=seed)
    network = train_index_network(_federation(world.data, clients), world.embeddings, how, progress=False)
    return world._replace(network=network)


def draw_clients(
    data: Dataset, pool: Tensor, count: int, size: int, seed: int, who: str
) -> tuple[list[Tensor], Tensor]:
    """Return the images of clients of one domain each, domains in turn, and the domains; clients may share images."""
    assert data.domain is not None
    rng = numpy_generator(seed, "leakage", who, size)
    labels, domains = data.labels[pool], data.domain[pool]
    clients, places = [], []
    for number in range(count):
        place = number % len(data.domains)
        shares = torch.from_numpy(rng.dirichlet([CONCENTRATION] * 10))
        own = (domains == place).nonzero()[:, 0]
        chances = shares[labels[own]] / torch.bincount(labels[own], minlength=10)[labels[own]]
        # The largest of log p + Gumbel noise are draws without replacement.
        keys = chances.clamp(min=1e-12).log() + torch.from_numpy(rng.gumbel(size=len(own)))
        clients.append(pool[own[keys.topk(size).indices]])
        places.append(place)
    return clients, torch.tensor(places)


def vectors_of(world: World, source: str, clients: Sequence[Tensor], clip: float) -> Atlas:
    """Return the atlas of some clients."""
    return SOURCES[source][0](world, _federation(world.data, clients), clip)


def index_half(world: World, federation: Federation, half: str) -> Atlas:
    """Return one half of Client2Vec's index."""
    assert world.network is not None
    whole = index_clients(world.network, federation, world.embeddings)
    return Atlas(names=whole.names, halves={half: whole.half(half)}, sizes=whole.sizes, domains=whole.domains)


def alone(world: World, source: str, examples: Tensor, clip: float) -> Tensor:
    """Return the vectors that clients of one image each would have."""
    rows, labels = world.embeddings.examples[examples].float(), world.data.labels[examples]
    match source:
        case "label-histogram":
            return one_hot(labels, 10).float()
        case "feature-average":
            return rows
        case "feature-average, clipped":
            return clip_rows(rows, clip)
        case "class-prototypes":
            slots = torch.zeros(len(rows), 10, rows.shape[1])
            slots[torch.arange(len(rows)), labels] = rows
            return slots.flatten(1)
        case "client2vec, feature":
            assert world.network is not None
            return sample_indices(world.network, rows)
        case "client2vec, label":
            assert world.network is not None
            return world.network.scaled(world.embeddings.classes.float())[labels]
    return torch.stack([projection_row(leading_directions(row[None], 1)) for row in narrowed(rows)])


def _federation(data: Dataset, clients: Sequence[Tensor]) -> Federation:
    members = tuple(_client(f"client-{i}", own, None) for i, own in enumerate(clients))
    return Federation(data=data, clients=members, partition="leakage")


def _client(name: str, own: Tensor, domain: str | None) -> Client:
    return Client(name=name, train=own, test=own, domain=domain)


def with_noise(atlas: Atlas, source: str, epsilon: float, bound: float, seed: int) -> Tensor:
    """Return the vectors as clients send them."""
    half = next(iter(atlas.halves))
    if epsilon == math.inf:
        return atlas.half(half)
    protects = SOURCES[source][1]
    clip = bound if protects == "client" else None
    return atlas.with_noise(epsilon=epsilon, clip=clip, protects=protects, seed=seed).half(half)


class Ridge:
    """Ridge regression on standardised vectors, whose strength is chosen on a fifth of what it learns from."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.shift, self.scale = inputs.mean(0), inputs.std().clamp(min=1e-9)
        self.mean = targets.mean(0)
        rows = ((inputs - self.shift) / self.scale).double()
        aims = (targets - self.mean).double()
        cut = len(rows) * 4 // 5
        found: list[tuple[float, float]] = []
        for strength in (1e-2, 1.0, 1e2, 1e4):
            weights = self._solve(rows[:cut], aims[:cut], strength)
            found.append((float((rows[cut:] @ weights - aims[cut:]).square().mean()), strength))
        self.weights = self._solve(rows, aims, min(found)[1])

    @staticmethod
    def _solve(rows: Tensor, aims: Tensor, strength: float) -> Tensor:
        if len(rows) <= rows.shape[1]:
            kernel = rows @ rows.T + strength * torch.eye(len(rows), dtype=torch.float64)
            narrow: Tensor = rows.T @ torch.linalg.solve(kernel, aims)
            return narrow
        kernel = rows.T @ rows + strength * torch.eye(rows.shape[1], dtype=torch.float64)
        wide: Tensor = torch.linalg.solve(kernel, rows.T @ aims)
        return wide

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the predictions."""
        return (((inputs - self.shift) / self.scale).double() @ self.weights).float() + self.mean


def shares_of(world: World, clients: Sequence[Tensor]) -> Tensor:
    """Return the label shares of clients."""
    counts = [torch.bincount(world.data.labels[own], minlength=10).float() / len(own) for own in clients]
    return torch.stack(counts)


def label_error(world: World, known: Seen, victims: Seen) -> tuple[float, float]:
    """Return the attacker's mean total variation distance, and that of the mean shares."""
    truth, mine = shares_of(world, victims.clients), shares_of(world, known.clients)
    guess = Ridge(known.vectors, mine)(victims.vectors).clamp(min=0)
    guess = guess / guess.sum(1, keepdim=True).clamp(min=1e-9)
    return float((guess - truth).abs().sum(1).mean() / 2), float((mine.mean(0) - truth).abs().sum(1).mean() / 2)


def domain_accuracy(known: Seen, victims: Seen) -> float:
    """Return how often the attacker names the domain."""
    targets = one_hot(known.domains).float()
    return float((Ridge(known.vectors, targets)(victims.vectors).argmax(1) == victims.domains).float().mean())


def membership_auc(world: World, source: str, known: Seen, victims: Seen, clip: float, seed: int) -> float:
    """Return the area under the curve of the attacker's scores of members and of others of their domain and class."""
    assert world.data.domain is not None
    rng = numpy_generator(seed, "leakage", "others")
    truth, scores = [], []
    for own, domain, vector in zip(victims.clients, victims.domains.tolist(), victims.vectors, strict=True):
        members = own[torch.from_numpy(rng.permutation(len(own))[:20])]
        mine = set(own.tolist())
        others = []
        for member in members.tolist():
            alike = (world.data.domain == domain) & (world.data.labels == world.data.labels[member])
            pool = [place for place in world.theirs[alike[world.theirs]].tolist() if place not in mine]
            others.append(pool[int(rng.integers(len(pool)))] if pool else member)
        rows = alone(world, source, torch.cat([members, torch.tensor(others)]), clip)
        centre = known.vectors[known.domains == domain].mean(0)
        scores += ((rows - rows.mean(0)) @ (vector - centre)).tolist()
        truth += [1] * len(members) + [0] * len(others)
    return float(roc_auc_score(truth, scores))


def image_error(world: World, source: str, victims: Seen, decode: Ridge) -> float:
    """Return the decoded images' squared distance to the nearest own one, in units of that of the mean image."""
    assert world.data.domain is not None
    found, usual = [], []
    for own, domain, vector in zip(victims.clients, victims.domains.tolist(), victims.vectors, strict=True):
        average = world.pixels[world.mine[world.data.domain[world.mine] == domain]].mean(0)
        for images, piece in _pieces(world, source, own, vector):
            guess = decode(piece[None])[0].clamp(0, 1)
            found.append(float((images - guess).square().sum(1).min()))
            usual.append(float((images - average).square().sum(1).min()))
    return sum(found) / sum(usual)


def _pieces(world: World, source: str, own: Tensor, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what can be decoded of a vector, and the images that it is about: the whole, or the mean of each class."""
    if source != "class-prototypes":
        yield world.pixels[own], vector
        return
    for label, piece in enumerate(vector.view(10, -1)):
        images = own[world.data.labels[own] == label]
        if len(images):
            yield world.pixels[images], piece


def decoder(world: World, source: str, clip: float) -> Ridge:
    """Return the decoder from the vector of one image to the image, learned from 1,500 of the attacker's images."""
    some = world.mine[:1500]
    rows = alone(world, "feature-average" if source == "class-prototypes" else source, some, clip)
    return Ridge(rows, world.pixels[some])


def measure(world: World, source: str, size: int, seed: int, decode: Ridge, clip: float) -> dict[str, dict[str, float]]:
    """Return all figures of a source and a size, by epsilon."""
    mine, my_domains = draw_clients(world.data, world.mine, SHADOWS, size, seed, "mine")
    theirs, their_domains = draw_clients(world.data, world.theirs, VICTIMS, size, seed, "theirs")
    known, atlas = vectors_of(world, source, mine, clip), vectors_of(world, source, theirs, clip)
    bound = float(known.half(next(iter(known.halves))).norm(dim=1).median())
    found = {}
    for epsilon in EPSILONS:
        seen = Seen(mine, my_domains, with_noise(known, source, epsilon, bound, seed + 1000))
        victims = Seen(theirs, their_domains, with_noise(atlas, source, epsilon, bound, seed))
        labels, usual = label_error(world, seen, victims)
        noisy = Atlas(names=atlas.names, halves={"all": victims.vectors}, sizes=atlas.sizes, domains=atlas.domains)
        groups = noisy.groups(5)
        found[str(epsilon)] = {
            "labels": labels,
            "by chance": usual,
            "membership": membership_auc(world, source, seen, victims, clip, seed),
            "domain": domain_accuracy(seen, victims),
            "image": image_error(world, source, victims, decode),
            "groups": float(adjusted_rand_score(their_domains.numpy(), groups.numpy())),
            "accuracy": worth(world, theirs, their_domains, groups, seed),
        }
    return found


def worth(world: World, clients: Sequence[Tensor], domains: Tensor, groups: Tensor | None, seed: int) -> float:
    """Return the accuracy of FedAvg with a model for each group of clients, or with one for all."""
    assert world.data.domain is not None
    members = []
    for number, (own, domain) in enumerate(zip(clients, domains.tolist(), strict=True)):
        others = world.theirs[world.data.domain[world.theirs] == domain]
        members.append(Client(name=f"client-{number}", train=own, test=tests_of(world.small, own, others)))
    return group_accuracy(world.small, members, groups, seed)


def bounds(world: World, size: int, seed: int) -> dict[str, float]:
    """Return the accuracy with one model for all, and with the true groups."""
    clients, domains = draw_clients(world.data, world.theirs, VICTIMS, size, seed, "theirs")
    found = {"one model": None, "the domains": domains}
    return {title: worth(world, clients, domains, groups, seed) for title, groups in found.items()}


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]], sources: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the figures as a table of Markdown, means over seeds."""
    lines = [
        "| source | images | noise for | epsilon | labels (chance) | membership | domain | image | groups | accuracy |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for source in sources:
        for size in SIZES:
            for epsilon in EPSILONS:
                rows = [found[f"{source}/{size}/{seed}"][str(epsilon)] for seed in seeds]
                value = {key: mean(row[key] for row in rows) for key in rows[0]}
                cells = [f"{value['labels']:.2f} ({value['by chance']:.2f})"]
                cells += [f"{value[column]:.2f}" for column in COLUMNS[1:-1]]
                cells.append(f"{100 * value['accuracy']:.1f}")
                noise = "–" if epsilon == math.inf else f"{epsilon:g}"
                lines.append(f"| {source} | {size} | {SOURCES[source][1]} | {noise} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path, default=Path("leakage.json"))
    parser.add_argument("--sources", default=";".join(SOURCES), help="separated by semicolons")
    given = parser.parse_args()
    sources = given.sources.split(";")
    seeds = [int(seed) for seed in given.seeds.split(",")]
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    torch.set_num_threads(1)
    for seed in seeds:
        world = make_world(seed)
        world = with_index(world, seed) if {FEATURE, LABEL} & {*sources} else world
        lengths = world.embeddings.examples[world.mine].float().norm(dim=1)
        clip = float(lengths.median())
        for size in SIZES:
            key = f"bounds/{size}/{seed}"
            if key not in found:
                found[key] = {"all": bounds(world, size, seed)}
                print(key, json.dumps(found[key]), flush=True)
        for source in sources:
            decode = decoder(world, source, clip)
            for size in SIZES:
                key = f"{source}/{size}/{seed}"
                if key not in found:
                    found[key] = measure(world, source, size, seed, decode, clip)
                    print(key, json.dumps(found[key]["inf"]), flush=True)
                    given.out.write_text(json.dumps(found, indent=1))
    print(table(found, sources, seeds))
    for size in SIZES:
        rows = [found[f"bounds/{size}/{seed}"]["all"] for seed in seeds]
        told = (f"{title} {100 * mean(row[title] for row in rows):.1f}" for title in rows[0])
        print(f"accuracy at {size} images: {', '.join(told)}")


if __name__ == "__main__":
    main()
