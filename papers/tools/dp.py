"""Prints what differential privacy for whole clients costs: accuracy of DP-FedAvg against epsilon.

python -m papers.tools.dp --seeds 0,1,2 --out FILE
python -m papers.tools.dp --tune --out FILE

The 1,600 embedded handwritten digits, made grey and 8x8, over 200 clients of about 8 images with skewed labels, and a
linear classifier (650 parameters). Each client takes part in a round with probability 1/4; delta is 1e-3. ``--tune``
tries bounds and learning rates on seed 10, which is not reported. Accuracy is over the clients' test parts after the
last round. FILE keeps what is done.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from fedatlas import Algorithm, Federation, Settings, federate, train
from fedatlas.algorithms import dp_fedavg, fedavg, noise_for
from fedatlas.data import Dirichlet
from fedatlas.parts import SGD
from papers.tools.small_digits import small_digits

CLIENTS, COHORT, ROUNDS, DELTA = 200, 50, 40, 1e-3
EPSILONS = (math.inf, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0)
TUNING_SEED = 10
CLIP, LR = 1.0, 0.5
"""Chosen by ``--tune`` at epsilon 8."""
GRID = [(clip, lr) for clip in (0.3, 1.0, 3.0) for lr in (0.1, 0.5, 2.0)]


def make_federation(seed: int) -> Federation:
    """Return 200 clients of about 8 images."""
    return federate(small_digits(), Dirichlet(num_clients=CLIENTS, alpha=1.0, min_samples=4), seed=seed)


def accuracy(algorithm: Algorithm, lr: float, seed: int) -> tuple[float, float | None]:
    """Return the accuracy after the last round, and the epsilon that the record states."""
    settings = Settings(model="linear", rounds=ROUNDS, cohort=COHORT, batch_size=8, epochs=2, evaluate_every=ROUNDS)
    chosen = algorithm.with_optimizer(SGD(lr=lr))
    run = train(make_federation(seed), chosen, settings, seed=seed, workers=1, progress=False)
    last = run.rounds[-1]
    said = last.get("combination", {}).get("noisy_sum", {})
    return last["evaluation"]["accuracy"], said.get("epsilon")


def private(epsilon: float, clip: float) -> Algorithm:
    """Return DP-FedAvg whose rounds cost so much in all; without noise where epsilon is infinite."""
    if epsilon == math.inf:
        return dp_fedavg(clip=clip, noise=0.0, delta=DELTA)
    noise = noise_for(epsilon, rate=COHORT / CLIENTS, rounds=ROUNDS, delta=DELTA)
    return dp_fedavg(clip=clip, noise=noise, delta=DELTA)


def measure(found: dict[str, float], key: str, algorithm: Algorithm, lr: float, seed: int, out: Path) -> None:
    """Measure one cell if it is not known."""
    if key not in found:
        found[key], stated = accuracy(algorithm, lr, seed)
        print(f"{key}: {100 * found[key]:.1f}, epsilon {stated}", flush=True)
        out.write_text(json.dumps(found, indent=1))


def table(found: Mapping[str, float], seeds: Sequence[int]) -> str:
    """Return the accuracies as a table of Markdown."""
    lines = ["| epsilon | noise | accuracy |", "|---|---|---|"]
    rows = [("FedAvg", "–", "fedavg")]
    for epsilon in EPSILONS:
        noise = private(epsilon, CLIP).combination[-1].noise  # type: ignore[attr-defined]
        rows.append(("clipped, no noise" if epsilon == math.inf else f"{epsilon:g}", f"{noise:.3f}", str(epsilon)))
    for title, noise, key in rows:
        values = [100 * found[f"{key}/{seed}"] for seed in seeds]
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        lines.append(f"| {title} | {noise} | {mean(values):.1f}{spread} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table, or what tuning found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("dp.json"))
    given = parser.parse_args()
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    if given.tune:
        for clip, lr in GRID:
            measure(found, f"tune/{clip}/{lr}", private(8.0, clip), lr, TUNING_SEED, given.out)
        return
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for seed in seeds:
        measure(found, f"fedavg/{seed}", fedavg(), LR, seed, given.out)
        for epsilon in EPSILONS:
            measure(found, f"{epsilon}/{seed}", private(epsilon, CLIP), LR, seed, given.out)
    print(table(found, seeds))


if __name__ == "__main__":
    main()
