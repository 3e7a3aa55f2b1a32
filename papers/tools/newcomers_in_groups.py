"""Prints how often a newcomer is placed in the right group of an atlas, and how often it is refused.

python -m papers.tools.newcomers_in_groups --data FOLDER --seeds 3

FOLDER holds mnist.npz (x_train, y_train). Each federation has 24 clients of 147 images of four kinds: turned by 0, 90,
180 and 270 degrees, or with three labels passed on in a ring, another three in each kind. Newcomers have images that no
client has. The limits were set on seeds 0 to 3; seeds from 100 on are measured.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedatlas.atlas import Placement, class_prototypes, place_newcomer
from fedatlas.seeds import numpy_generator
from papers.tools.shifted_pools import Kind, Pool, Recipe, load_pool
from papers.tools.verdict import TURNED, shuffled

CLIENTS, IMAGES = 24, 147


@dataclass(frozen=True)
class Case:
    """Kinds of clients, and newcomers to place among them."""

    title: str
    shift: str
    examples: int
    labels: bool = True
    alpha: float | None = None
    """Of a Dirichlet distribution of the labels of the atlas's clients."""
    unknown: str | None = None
    """The look of newcomers of a kind that the atlas does not have, or ``renamed`` for three other labels passed on."""

    def kinds(self, seed: int) -> list[Kind]:
        """Return the four kinds of clients, and a fifth that the atlas does not have."""
        rng = numpy_generator(seed, "newcomers", self.shift)
        if self.shift == "turned":
            return [*(Kind(look) for look in TURNED), Kind(self.unknown or "inverted")]
        return [Kind(), *(Kind("plain", shuffled(rng, 3)) for _ in range(4))]


CASES = [
    *(Case("turned", "turned", n) for n in (5, 10, 30)),
    *(Case("turned, without labels", "turned", n, labels=False) for n in (5, 10, 30)),
    *(Case("renamed", "renamed", n) for n in (5, 10, 30)),
    Case("renamed, without labels", "renamed", 10, labels=False),
    Case("turned, Dirichlet 0.3", "turned", 10, alpha=0.3),
    Case("renamed, Dirichlet 0.3", "renamed", 10, alpha=0.3),
    *(Case("unknown: inverted", "turned", n, unknown="inverted") for n in (10, 30)),
    *(Case("unknown: three other labels", "renamed", n, unknown="renamed") for n in (10, 30, 100)),
]


def place_all(pools: tuple[Pool, Pool], case: Case, seed: int, count: int) -> list[tuple[int | None, Placement]]:
    """Return the true group and the placement of each newcomer of one federation.

    The first pool is of the federation's images, the second of the newcomers'.
    """
    *known, other = case.kinds(seed)
    kinds = [known[i % len(known)] for i in range(CLIENTS)]
    federation, embeddings = pools[0].draw(Recipe(kinds=kinds, images=IMAGES, alpha=case.alpha), seed)
    atlas = class_prototypes(federation, embeddings)
    group_of = {client.name: i % len(known) for i, client in enumerate(federation)}
    new = [other if case.unknown else known[i % len(known)] for i in range(count)]
    joining, vectors = pools[1].draw(Recipe(kinds=new, images=case.examples), seed)
    joining = replace(joining, clients=tuple(replace(own, name=f"new-{own.name}") for own in joining.clients))
    return [
        (
            None if case.unknown else i % len(known),
            place_newcomer(atlas, group_of, joining, own.name, embeddings=vectors.examples, labels=case.labels),
        )
        for i, own in enumerate(joining)
    ]


def print_case(case: Case, found: Sequence[tuple[int | None, Placement]]) -> None:
    """Print a line of the table, in percent."""
    count = len(found) / 100
    right = sum(own.group == truth for truth, own in found if own.placed)
    wrong = sum(own.group != truth for truth, own in found if own.placed)
    why = Counter(str(own.refusal) for _, own in found if not own.placed)
    refused = ", ".join(f"{reason} {times / count:.1f}" for reason, times in sorted(why.items())) or "-"
    print(
        f"{case.title:30} {case.examples:4} examples {len(found):5} newcomers  right {right / count:5.1f}  "
        f"wrong {wrong / count:5.1f}  refused {sum(why.values()) / count:5.1f} ({refused})",
        flush=True,
    )


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of mnist.npz")
    parser.add_argument("--seeds", type=int, default=3, help="federations of each case")
    parser.add_argument("--newcomers", type=int, default=60, help="newcomers of each federation")
    options = parser.parse_args()
    whole = load_pool("mnist", options.data)
    cut = len(whole.labels) // 2
    halves = (slice(None, cut), slice(cut, None))
    first, second = (Pool("mnist", whole.images[own], whole.labels[own]) for own in halves)
    for case in CASES:
        seeds = range(100, 100 + options.seeds)
        print_case(case, [own for seed in seeds for own in place_all((first, second), case, seed, options.newcomers)])


if __name__ == "__main__":
    main()
