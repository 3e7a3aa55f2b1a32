"""Prints how often an atlas's verdict is right, on federations whose shifts are known.

python -m papers.tools.verdict --data FOLDER --sets mnist,digits --federations 40

FOLDER holds mnist.npz and, if asked for, cifar10.npz (x_train, y_train); the digits are embedded. Thresholds were set
on seeds below 20000; seeds from 80000 on are measured. ``--out FILE`` keeps the numbers as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from fedatlas.atlas import (
    Examination,
    Summary,
    Verdict,
    cells_of,
    examine,
    judge,
    noise_floor,
    scores,
    summarise,
    weigh_evidence,
)
from fedatlas.seeds import numpy_generator
from papers.tools.shifted_pools import Kind, Naming, Pool, Recipe, load_pool

NONE: frozenset[str] = frozenset()
INPUTS, LABELLING, BOTH = frozenset({"inputs"}), frozenset({"labelling"}), frozenset({"inputs", "labelling"})
Cell = tuple[str, Callable[[np.random.Generator], Recipe], frozenset[str]]
"""A name, the recipe by a generator, and the kinds of shift beside label shares."""
TURNED = ("plain", "turned 90", "turned 180", "turned 270")


def shuffled(rng: np.random.Generator, count: int) -> Naming:
    """Return names of the classes, of which ``count`` are passed on in a ring."""
    names = list(range(10))
    chosen = rng.choice(10, count, replace=False)
    for one, other in zip(chosen, np.roll(chosen, 1), strict=True):
        names[one] = int(other)
    return tuple(names)


def dealt(kinds: list[Kind], count: int) -> list[Kind]:
    """Return a kind for each of ``count`` clients, in turns."""
    return [kinds[i % len(kinds)] for i in range(count)]


def plain(rng: np.random.Generator) -> list[Kind]:
    """Return the one kind of clients that all are of."""
    return [Kind()]


def turned(rng: np.random.Generator) -> list[Kind]:
    """Return four kinds of clients, by how their images are turned."""
    return [Kind(look) for look in TURNED]


def renamed(rng: np.random.Generator, moved: int, kinds: int = 4) -> list[Kind]:
    """Return kinds of clients with other names for some classes, the first with the usual ones."""
    return [Kind(), *(Kind(naming=shuffled(rng, moved)) for _ in range(kinds - 1))]


def odd(rng: np.random.Generator, look: str = "plain", moved: int = 0, usual: int = 1) -> list[Kind]:
    """Return some usual clients and one that differs."""
    return [*([Kind()] * usual), Kind(look, shuffled(rng, moved))]


def mixed(rng: np.random.Generator, look: str) -> list[Kind]:
    """Return a usual client, one with other names and one with another look."""
    return [*renamed(rng, 3, 2), Kind(look)]


def group_cells(pool: Pool) -> Iterator[Cell]:
    """Yield the federations whose groups are to be found."""
    if pool.domains is not None:
        for alpha in (None, 0.3):
            yield _named("domains", 20, 75, alpha, pool.kinds, INPUTS)
        for alpha in (None, 0.3, 0.1):
            yield _named("one domain", 10, 75, alpha, pool.one_kind, NONE)
        yield _named("one domain, uneven", 10, 75, None, pool.one_kind, NONE, uneven=True)
        return
    for clients, images in ((24, 147), (24, 60), (24, 500), (100, 147)):
        for alpha in (None, 0.3, 0.1):
            yield _named("one kind", clients, images, alpha, plain, NONE)
        yield _named("one kind, uneven", clients, images, None, plain, NONE, uneven=True)
        for alpha in (None, 0.3):
            yield _named("turned", clients, images, alpha, turned, INPUTS)
            yield _named("three labels moved", clients, images, alpha, partial(renamed, moved=3), LABELLING)
    yield _named("three labels moved", 24, 147, 0.1, partial(renamed, moved=3), LABELLING)
    few = partial(odd, usual=5)
    yield _named("20 and 4 turned", 24, 147, None, partial(few, look="turned 90"), INPUTS)
    yield _named("20 and 4, three labels moved", 24, 147, 0.3, partial(few, moved=3), LABELLING)
    yield _named("one odd client, three labels moved", 24, 147, None, partial(odd, usual=23, moved=3), LABELLING)


def kind_cells(pool: Pool) -> Iterator[Cell]:
    """Yield the federations whose kind of shift is to be named; clients and images are drawn with each."""
    for alpha in (None, 0.3):
        if pool.domains is not None:
            # A domain has 1,600 images.
            yield _drawn("one domain", alpha, pool.one_kind, NONE, most=21, few=True)
            yield _drawn("five domains", alpha, pool.kinds, INPUTS, few=True)
            yield _drawn("five domains, a client swapped", alpha, pool.kinds, BOTH, few=True, swapped="any")
            clear = "handwritten"
            yield _drawn(f"five domains, a {clear} client swapped", alpha, pool.kinds, BOTH, few=True, swapped=clear)
            continue
        yield _drawn("none", alpha, plain, NONE)
        if alpha is None:
            yield _drawn("none, uneven", None, plain, NONE, uneven=True)
        for look in ("turned 90", "turned 180", "inverted", "noisy", "faint", "coloured"):
            yield _drawn(look, alpha, partial(odd, look=look), INPUTS)
        yield _drawn("four turns", alpha, turned, INPUTS)
        yield _drawn("three labels moved", alpha, partial(renamed, moved=3), LABELLING)
        yield _drawn("all labels moved", alpha, partial(renamed, moved=10), LABELLING)
        yield _drawn("two labels swapped at half", alpha, partial(renamed, moved=2, kinds=2), LABELLING)
        for look in ("turned 90", "inverted"):
            yield _drawn(f"some {look}, others moved", alpha, partial(mixed, look=look), BOTH)
        for look in ("faint", "turned 90"):
            yield _drawn(f"the same {look} and swapped", alpha, partial(odd, look=look, moved=2), BOTH)


def _skew(alpha: float | None) -> str:
    return "" if alpha is None else f", Dirichlet {alpha}"


def _named(
    name: str,
    clients: int,
    images: int,
    alpha: float | None,
    kinds: Callable[[np.random.Generator], list[Kind]],
    truth: frozenset[str],
    *,
    uneven: bool = False,
) -> Cell:
    def recipe(rng: np.random.Generator) -> Recipe:
        return Recipe(kinds=dealt(kinds(rng), clients), images=images, alpha=alpha, uneven=uneven)

    return f"{name}{_skew(alpha)}, {clients} clients of {images}", recipe, truth


def _drawn(
    name: str,
    alpha: float | None,
    kinds: Callable[..., list[Kind]],
    truth: frozenset[str],
    *,
    most: int = 100,
    few: bool = False,
    uneven: bool = False,
    swapped: str = "",
) -> Cell:
    def recipe(rng: np.random.Generator) -> Recipe:
        clients = int(rng.integers(10, most + 1))
        members = dealt(kinds(rng), clients)
        if swapped:
            chosen = [i for i, kind in enumerate(members) if swapped in ("any", kind.look)][-1]
            members[chosen] = Kind(members[chosen].look, shuffled(rng, 2))
        images = int(rng.integers(50, 76) if few else rng.integers(100, 301))
        return Recipe(kinds=members, images=images, alpha=alpha, uneven=uneven)

    return f"{name}{_skew(alpha)}", recipe, truth


def oracle(summary: Summary, truth: list[int]) -> float:
    """Return the ARI of clients that are placed by the true groups of all others."""
    floor = noise_floor(summary)
    cells, evidence, labels = cells_of(summary, floor), weigh_evidence(summary, floor), torch.tensor(truth)
    found = []
    for i in range(len(truth)):
        others = torch.arange(len(truth)) != i
        groups = cells.take(others).pool(labels[others], max(truth) + 1)
        found.append(int(scores(cells.take(slice(i, i + 1)), groups, evidence).argmax()))
    return float(adjusted_rand_score(truth, found))


def named_kinds(verdict: Verdict | Examination) -> frozenset[str]:
    """Return the kinds of shift that a verdict names, beside label shares."""
    return frozenset(kind for kind in ("inputs", "labelling") if getattr(verdict, kind).found)


def measure(pool: Pool, cell: Cell, seeds: range, *, checked: bool) -> dict[str, object]:
    """Return how a cell's federations were judged: by the whole check, or by the verdict on groups alone."""
    name, make, truth = cell
    rows = []
    for seed in seeds:
        recipe = make(numpy_generator(seed, "verdict recipes"))
        federation, embeddings = pool.draw(recipe, seed)
        summary = summarise(federation, embeddings.examples)
        assert summary is not None
        names = [client.name for client in federation]
        begun = time.perf_counter()
        # What `fedatlas check` says of the kinds takes single clients with other names into account.
        found = examine(summary, names, federation.data.classes) if checked else judge(summary, names)
        took = time.perf_counter() - begun
        groups = [int(group) for group in found.groups]
        several = len({*recipe.truth}) > 1 and not checked
        rows.append(
            {
                "groups": max(groups) + 1,
                "true": len({*recipe.truth}),
                "ari": float(adjusted_rand_score(recipe.truth, groups)),
                "oracle": oracle(summary, recipe.truth) if several else 1.0,
                "kinds": sorted(named_kinds(found)),
                "right": named_kinds(found) == truth,
                "label_shares": found.label_shares.found == (recipe.alpha is not None),
                "seconds": took,
            }
        )
    return {"set": pool.name, "cell": name, "truth": sorted(truth), "federations": rows}


def line(found: dict[str, object]) -> str:
    """Return one row of the table."""
    rows: list[dict[str, object]] = found["federations"]  # type: ignore[assignment]

    def number(key: str) -> float:
        return mean(float(row[key]) for row in rows)  # type: ignore[arg-type]

    exact = mean(row["groups"] == row["true"] for row in rows)
    wrong = [" and ".join(row["kinds"]) or "none" for row in rows if not row["right"]]  # type: ignore[arg-type]
    others = ", ".join(f"{wrong.count(kind)} {kind}" for kind in sorted({*wrong}))
    right = f"{sum(bool(row['right']) for row in rows)} of {len(rows)}{f' ({others})' if others else ''}"
    shares = f"{100 * number('label_shares'):.0f} %"
    return (
        f"| {found['set']}: {found['cell']} | {100 * exact:.0f} % | {number('ari'):.2f} | {number('oracle'):.2f} "
        f"| {right} | {shares} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of mnist.npz and cifar10.npz")
    parser.add_argument("--sets", default="digits", help="comma separated: digits, mnist, cifar10")
    parser.add_argument("--parts", default="groups,kinds", help="comma separated: groups, kinds")
    parser.add_argument("--federations", type=int, default=40, help="of each cell")
    parser.add_argument("--first-seed", type=int, default=80_000)
    parser.add_argument("--only", default="", help="cells whose names match this regular expression")
    parser.add_argument("--out", type=Path, help="a JSON file of all numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.federations)
    kept = []
    print("| federation | number of groups right | ARI | placed by the true groups | kind right | label shares right |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in options.sets.split(","):
        pool = load_pool(name, options.data)
        for part, cells in (("groups", group_cells), ("kinds", kind_cells)):
            for cell in cells(pool) if part in options.parts.split(",") else ():
                if re.search(options.only, cell[0]):
                    kept.append({"part": part, **measure(pool, cell, seeds, checked=part == "kinds")})
                    print(line(kept[-1]), flush=True)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
