"""Prints accuracy by round of runs as a Markdown table: python -m papers.tools.by_round 20,40,60,80,100 RUN..."""

import sys
from pathlib import Path

from fedatlas import Run


def row(run: Run, rounds: list[int]) -> str:
    """Return one run's line: accuracy at the rounds, the best, and means over the last five evaluations."""
    found = {entry["round"]: entry["evaluation"] for entry in run.evaluations}
    last = list(found.values())[-5:]
    at = [f"{100 * found[n]['accuracy']:.1f}" if n in found else "–" for n in rounds]
    best = f"{100 * run.best['accuracy']:.1f} ({run.best['round']})"
    means = [
        f"{100 * sum(e[key] for e in last) / len(last):.1f}" for key in ("accuracy", "sigma_client", "worst_client")
    ]
    return " | ".join(["", f"`{run.name}`", str(max(found)), *at, best, *means, ""]).strip()


def main(rounds: list[int], folders: list[str]) -> None:
    """Print the table."""
    titles = ["algorithm", "rounds", *map(str, rounds), "best (round)", "last five", "sigma_client", "worst client"]
    print("| " + " | ".join(titles) + " |")
    print("|---" * len(titles) + "|")
    for folder in folders:
        print(row(Run(Path(folder)), rounds))


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1].split(",")], sys.argv[2:])
