"""Prints what a round of every algorithm costs, as a Markdown table.

python -m papers.tools.round_seconds configs/cifar10-dirichlet.toml --rounds 6 --device cuda
python -m papers.tools.round_seconds configs/cifar10-dirichlet.toml --rounds 10 --device cuda --algorithms fedmix

The first FedAvg is not counted: a GPU's libraries load what they need when they first meet a shape. What is counted is
the median of a run's rounds after the second, by when steps are captured; the data are read once for all.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from fedatlas.algorithms import standalone
from fedatlas.cli import unfit_algorithms
from fedatlas.cli.train_config import train_config
from fedatlas.config import Config
from fedatlas.training import Machine


def main() -> None:
    """Train a few rounds of each and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--algorithms", default=",".join(standalone()), help="comma separated, beside FedAvg")
    options = parser.parse_args()
    named = ["fedavg", *(name for name in options.algorithms.split(",") if name != "fedavg")]
    training = {"rounds": options.rounds, "evaluate_every": options.rounds}
    base = 0.0
    print("| algorithm | ms a round | x fedavg | engine | left to a slower one |\n|---|---|---|---|---|", flush=True)
    for number, name in enumerate(["fedavg", *named]):
        settings = Config.load(options.config, algorithm={"name": name}, training=training)
        machine = Machine(device=options.device)
        if unfit_algorithms({Path(name): settings}, machine, resume=False):
            continue
        with tempfile.TemporaryDirectory() as folder:
            run = train_config(settings, Path(folder) / name, machine=machine, show=False)
            timings, engine = run.timings, run.resolved["machine"]["engine"]
        took = statistics.median(entry["train"] for entry in timings[2:])
        base = base if number > 1 else took
        left = "; ".join(timings[-1].get("fallbacks", {}))
        if number:
            print(f"| `{name}` | {1e3 * took:.0f} | {took / base:.2f} | {engine} | {left} |", flush=True)


if __name__ == "__main__":
    main()
