"""Prints how many swapped names the plain rule finds, on the federations of ``papers.tools.check``.

python -m papers.tools.plain_swaps --data FOLDER --sets digits,mnist --federations 160

The rule, without what ``fedatlas.atlas.doctor.swapped`` does beyond it: with D_kl the squared distance of class k of
the client from class l of its reference, less its noise, and rho = 1 - D by the best matching / D of equal names, names
are swapped if z of D > Phi^-1(1 - 0.05 / clients), rho >= 0.6, and by the matching z < 4 or rho > 0.8.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from fedatlas.atlas import FEWEST, MOSTLY, SURELY, UNEXPLAINED, Pairing, judge, pairings, summarise, threshold
from fedatlas.seeds import numpy_generator
from papers.tools.check import SKEWS, clean_settings, load
from papers.tools.shifted_pools import Pool, Recipe
from papers.tools.verdict import shuffled


def swapped(pairing: Pairing, tests: int) -> set[int]:
    """Return the classes whose names the plain rule calls swapped."""
    matched, after = pairing.match()
    before = pairing.excess()
    total = float(before.sum())
    rho = 1 - float(after.sum()) / total if total > 0 else 0.0
    explains = rho >= MOSTLY and (pairing.z(after) < UNEXPLAINED or rho > SURELY)
    moved = {k for k, m in zip(pairing.shared.tolist(), matched.tolist(), strict=True) if k != m}
    return moved if explains and pairing.z(before) > threshold(tests) else set()


def measure(pool: Pool, alpha: float | None, seeds: range) -> str:
    """Return a row: of federations with decoys, in which the first client has two names swapped."""
    found = named = telling = accused = 0
    for seed in seeds:
        rng = numpy_generator(seed, "check recipes")
        setting = dict(clean_settings(pool, rng))["decoys"]
        names = shuffled(rng, 2)
        kinds = setting.spoilt(1, 0.0, names).kinds
        federation, embeddings = pool.draw(Recipe(kinds=kinds, images=setting.images, alpha=alpha), seed)
        summary = summarise(federation, embeddings.examples)
        assert summary is not None
        groups = judge(summary, [client.name for client in federation], federation.data.classes).groups
        moved = {own.client: swapped(own, len(summary)) for own in pairings(summary, groups)}
        right = {k for k, name in enumerate(names) if k != name}
        found += bool(moved.get(0))
        named += bool(moved.get(0)) and moved[0] <= right
        telling += int(summary.counts[0][sorted(right)].sum()) >= FEWEST
        accused += any(own for client, own in moved.items() if client)
    skew = "" if alpha is None else f", Dirichlet {alpha}"
    return f"| {pool.name}{skew} | {found} of {len(seeds)} | {named} | {telling} | {accused} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of mnist.npz and others")
    parser.add_argument("--sets", default="digits", help="as for papers.tools.check")
    parser.add_argument("--federations", type=int, default=160, help="of each row")
    parser.add_argument("--first-seed", type=int, default=80_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.federations)
    print("| federation | found | with the right names | with two examples | with a false accusation |")
    print("|---|---|---|---|---|", flush=True)
    for name in options.sets.split(","):
        pool = load(name, options.data)
        for alpha in SKEWS:
            print(measure(pool, alpha, seeds), flush=True)


if __name__ == "__main__":
    main()
