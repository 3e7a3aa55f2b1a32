"""Measure how long it takes until ``import fedatlas`` is done, and until the first round of a small run begins.

    python benchmarks/startup.py

Each is a fresh process, five times, median; ``import torch`` is measured in turn with them.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

TELL = "print(time.time() - float(os.environ['BEGAN']), flush=True)"
ROUND = f"""
import dataclasses, os, time
import fedatlas
from fedatlas.algorithms import fedavg
from fedatlas.data import DomainImbalance

class Begun(fedatlas.Sampler):
    name = "begun"

    def sample(self, *_):
        {TELL}
        os._exit(0)

federation = fedatlas.federate(fedatlas.load_dataset("digits"), DomainImbalance(factor=5))
fedatlas.train(federation, dataclasses.replace(fedavg(), sampler=Begun()))
"""
CASES = {
    "import torch": f"import os, time, torch; {TELL}",
    "import fedatlas": f"import os, time, fedatlas; {TELL}",
    "first round begins (digits, cnn)": ROUND,
}
"""Code that prints the seconds since BEGAN."""


def seconds(code: str, environment: Mapping[str, str]) -> float:
    """Run code in a fresh process and return the seconds that it printed."""
    variables = {**environment, "BEGAN": repr(time.time())}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # the first time compiles, the others find it done
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    if done.returncode or not done.stdout:
        raise SystemExit(done.stderr or "the process ended before its first round")
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure and print."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    for repetition in range(6):
        for name, code in CASES.items():
            took = seconds(code, environment)
            if repetition:
                found[name].append(took)
    print("| | seconds | spread |\n|---|---|---|")
    for name, taken in found.items():
        print(f"| {name} | {statistics.median(taken):.2f} | {min(taken):.2f} to {max(taken):.2f} |")


if __name__ == "__main__":
    main()
