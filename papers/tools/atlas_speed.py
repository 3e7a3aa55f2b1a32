"""Prints what sampling and weighing by an atlas of 100,000 clients cost a round: python -m papers.tools.atlas_speed"""

import time
from collections import Counter
from statistics import median

import torch

from fedatlas.algorithms import SimilarityWeights, SimilarToLast
from fedatlas.atlas import Atlas
from fedatlas.parts import ClientInfo, Cohort, Upload
from fedatlas.seeds import generator, numpy_generator

CLIENTS, WIDTH, COHORT, ROUNDS = 100_000, 512, 100, 20


def main() -> None:
    """Play the server's side of some rounds, without training, and print the medians."""
    rng = generator(0, "speed")
    halves = {half: torch.randn(CLIENTS, WIDTH, generator=rng) for half in ("feature", "label")}
    sizes = torch.randint(50, 500, (CLIENTS,), generator=rng)
    atlas = Atlas(names=tuple(f"client-{i}" for i in range(CLIENTS)), halves=halves, sizes=sizes)
    roster = [ClientInfo(id=i, name=f"client-{i}", num_examples=n) for i, n in enumerate(sizes.tolist())]
    candidates = range(CLIENTS)
    begun = time.perf_counter()
    sampler, weighting = SimilarToLast(atlas=atlas, tau=0.1), SimilarityWeights(atlas=atlas)
    drawn_memory, weighed_memory = sampler.init({}, roster), weighting.init({}, roster)
    first = time.perf_counter() - begun
    sampling, weighing = [], []
    for number in range(1, ROUNDS + 1):
        begun = time.perf_counter()
        drawn, drawn_memory = sampler.sample(candidates, COHORT, roster, drawn_memory, numpy_generator(0, number))
        sampling.append(1000 * (time.perf_counter() - begun))
        uploads = [
            Upload(client=i, num_examples=roster[i].num_examples, num_steps=1, change={}, buffers={}) for i in drawn
        ]
        cohort = Cohort(
            round=number, rounds=ROUNDS, roster=roster, uploads=uploads, draws=Counter(drawn), shared={}, lr=0.1
        )
        begun = time.perf_counter()
        _, weighed_memory = weighting.weigh(torch.ones(COHORT, dtype=torch.float64), cohort, weighed_memory)
        weighing.append(1000 * (time.perf_counter() - begun))
    # The first round is uniform and the second makes what the others use.
    print(f"{CLIENTS} clients, two halves of {WIDTH}, {COHORT} a round, one thread; milliseconds, median (fastest)")
    print(f"sampling {median(sampling[2:]):.1f} ({min(sampling[2:]):.1f}), weighing {median(weighing):.1f}")
    print(f"a round: {median(s + w for s, w in zip(sampling[2:], weighing[2:], strict=True)):.1f}")
    print(f"once: {1000 * first:.0f} to look up the clients, {sampling[1]:.0f} for the first round that compares")


if __name__ == "__main__":
    main()
