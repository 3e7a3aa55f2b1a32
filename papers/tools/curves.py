"""Draws the curve on each algorithm's page: python -m papers.tools.curves [RUNS].

The runs are those of ``configs/digits-curves.toml``.
"""

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fedatlas import Run
from fedatlas.algorithms import ALGORITHMS

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"


def curve(run: Run, key: str) -> tuple[list[int], list[float]]:
    """Return the rounds that were evaluated and a metric in percent."""
    return [entry["round"] for entry in run.evaluations], [100 * entry["evaluation"][key] for entry in run.evaluations]


def draw(run: Run, base: Run, path: Path) -> None:
    """Draw a run's accuracy and worst domain, with FedAvg's in grey."""
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, key, title in zip(axes, ("accuracy", "worst_domain"), ("all test examples", "worst domain"), strict=True):
        ax.plot(*curve(base, key), color="#9aa5b1", label="fedavg")
        if run.name != base.name:
            ax.plot(*curve(run, key), color="#1f5fa8", label=run.name)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("round", fontsize=8)
        ax.tick_params(labelsize=8)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_ylim(0, 100)
    axes[0].set_ylabel("accuracy, percent", fontsize=8)
    axes[0].legend(frameon=False, fontsize=8)
    with matplotlib.rc_context({"svg.hashsalt": run.name}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(runs: Path) -> None:
    """Draw the curves that the pages show."""
    (PAGES / "curves").mkdir(exist_ok=True)
    base = Run(runs / "fedavg-0")
    for name in ALGORITHMS:
        page = PAGES / f"{name}.md"
        shown = page.exists() and f"curves/{name}.svg" in page.read_text(encoding="utf-8")
        if shown and (runs / f"{name}-0").exists():
            draw(Run(runs / f"{name}-0"), base, PAGES / "curves" / f"{name}.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/curves"))
