"""Measure how long it takes until ``import fedatlas`` is done, and until the first round of a small run begins.

    python benchmarks/startup.py

Each is a fresh process, five times, median; ``import torch`` is measured in turn with them.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUND = """
import os, sys, time
import fedatlas
import fedatlas.training.loop as loop
def begin(*_, **__):
    print(time.time() - float(os.environ["BEGAN"]))
    sys.stdout.flush()
    os._exit(0)
loop.play = begin
federation = fedatlas.federate(fedatlas.load_dataset("digits"), fedatlas.DomainImbalance(factor=5))
fedatlas.train(federation, fedatlas.fedavg())
"""
CASES = {
    "import torch": "import os, time, torch; print(time.time() - float(os.environ['BEGAN']))",
    "import fedatlas": "import os, time, fedatlas; print(time.time() - float(os.environ['BEGAN']))",
    "first round begins (digits, cnn)": ROUND,
}


def main() -> None:
    """Measure and print."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    source = str(Path(__file__).parent.parent / "src")
    for repetition in range(6):
        for name, code in CASES.items():
            environment = {**os.environ, "PYTHONPATH": source, "BEGAN": repr(time.time())}
            environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the first time compiles, the others find it done
            done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            if repetition:
                found[name].append(float(done.stdout.split()[-1]))
    print("| | seconds | spread |\n|---|---|---|")
    for name, seconds in found.items():
        print(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} |")


if __name__ == "__main__":
    main()
