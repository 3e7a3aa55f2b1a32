"""One picture for each paper that says at a glance what came out, drawn from the kept numbers.

    python -m papers.glance docs/evidence

reads fedpce.json, client2vec.json and fedgcr.json there and writes glance-fedpce.png, glance-client2vec.png and
glance-fedgcr.png beside them. Nothing is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedatlas.errors import DataError
from fedatlas.report import save_picture
from papers.drawing import blank
from papers.fedgcr.published import TABLE_1, TABLE_6
from papers.fedgcr.variants import FACTORS
from papers.fedpce.table_1 import PAPER
from papers.kept_results import read_packed
from papers.options import existing, script

Kept = Mapping[str, Mapping[str, Any]]
OURS, OTHER, GREY = "#0b62a4", "#b3541e", "#6b6b6b"
COLORS = {"FedPCE": OURS, "FedBN": OTHER, "FedAvg": GREY}
TEXT = 12
"""Of the letters, in points: a picture of six inches is still read on a phone."""
LENGTH = 1000
"""The paper's aggregations."""
KEPT = "CIFAR stem, BN statistics kept by each client"
ROWS = {
    "averaged statistics": {
        "FedAvg": "CIFAR stem: original",
        "+ sampling by the index": "CIFAR stem: i",
        "+ local training": "CIFAR stem: iii",
        "+ all three": "CIFAR stem: i+ii+iii",
    },
    "statistics kept by each client": {
        "FedAvg": f"{KEPT}: original",
        "+ sampling, weights": f"{KEPT}: i+ii",
        "+ orthogonality alone": f"{KEPT}: iii, orthogonality alone",
        "+ local training": f"{KEPT}: iii",
        "the same, random vectors": f"{KEPT}: iii, random vectors",
        "the same, without vectors": f"{KEPT}: iii, divergence alone",
        "+ all three": f"{KEPT}: i+ii+iii",
    },
}
"""The bars of Client2Vec's picture, and the trainings that they show."""


def of(kept: Kept, name: str, **settings: Any) -> list[Mapping[str, Any]]:
    """Return the numbers of a training by its name, seed by seed; its settings must have ``settings``."""
    found = [
        one["numbers"]
        for one in kept.values()
        if one["name"] == name and all(one["settings"].get(key) == value for key, value in settings.items())
    ]
    if not found:
        raise DataError(
            f"the kept numbers have no training {name!r}. Measure it, or draw from another file.",
            code="data-missing",
            got=name,
        )
    return found


def fedpce(kept: Kept) -> Figure:
    """Draw new clients with few images, and the curves beside the paper's end point."""
    figure = blank(6, 7.6)
    few, long = figure.subplots(2, 1)
    for method, count in (("FedPCE", "32"), ("FedBN", "10,624")):
        points = of(kept, f"CIFAR-10 {method}")[0]["few"]
        values = [100 * point["accuracy"] for point in points]
        label = f"{method}: tunes {count} numbers"
        few.plot([point["images"] for point in points], values, "o-", color=COLORS[method], label=label)
    untuned = 100 * of(kept, "CIFAR-10 FedAvg")[0]["cl_last"]
    few.axhline(untuned, color=GREY, linestyle="--", label="FedAvg: tunes nothing")
    few.set(xscale="log", xlabel="training images of a new client")
    few.set_xticks([2, 10, 50, 200, 1600], ["2", "10", "50", "200", "1600"])
    few.minorticks_off()
    _title(few, "With few images, tuning 32 numbers does no harm")
    for method, color in COLORS.items():
        curve = of(kept, f"CIFAR-10 {method}")[0]["curve"]
        long.plot([point[0] for point in curve], [100 * point[1] for point in curve], color=color, label=method)
        long.plot([LENGTH], [PAPER["CIFAR-10"][method][0]], "x", color=color, markersize=9, markeredgewidth=2)
    long.annotate("the paper's end", (LENGTH, 70), (0.66 * LENGTH, 60), fontsize=TEXT, arrowprops={"arrowstyle": "-"})
    long.set(xlabel="aggregations (with max-pool, one fold)", ylim=(20, 75), xlim=(0, 1.05 * LENGTH))
    _title(long, "All methods end 20 points below the paper")
    for axes in (few, long):
        axes.set_ylabel("accuracy, percent", fontsize=TEXT)
        axes.legend(frameon=False, fontsize=TEXT - 1, loc="lower right")
    return figure


def client2vec(kept: Kept) -> Figure:
    """Draw what each part of Client2Vec does, with averaged and with kept statistics."""
    figure = blank(6, 6.4)
    panels = figure.subplots(2, 1, height_ratios=[len(bars) for bars in ROWS.values()], sharex=True)
    for axes, (title, bars) in zip(panels, ROWS.items(), strict=True):
        for place, (words, name) in enumerate(bars.items()):
            values = [100 * numbers["last_ten"] for numbers in of(kept, name)]
            color = GREY if words == "FedAvg" else OTHER if words.startswith("the same") else OURS
            spread = stdev(values) if len(values) > 1 else None
            axes.barh(place, mean(values), color=color, xerr=spread, error_kw={"capsize": 3})
            axes.text(mean(values) + (spread or 0) + 1, place, f"{mean(values):.0f}", va="center", fontsize=TEXT)
        axes.set_yticks(range(len(bars)), list(bars), fontsize=TEXT)
        axes.invert_yaxis()
        axes.set_xlim(0, 80)
        _title(axes, f"CIFAR-10, {title}")
    panels[-1].set_xlabel("accuracy, percent (lines: over seeds)", fontsize=TEXT)
    return figure


def fedgcr(kept: Kept) -> Figure:
    """Draw how far FedGCR is above FedAvg, in the paper and here."""
    figure = blank(6, 4.4)
    axes = figure.add_subplot()
    names, theirs, ours = [], [], []
    for data, title, table in (("digit-five", "Digit-Five", TABLE_1), ("pacs", "PACS", TABLE_6)):
        for factor in reversed(FACTORS):
            place = 3 * FACTORS.index(factor)
            names.append(f"{title}, factor {factor}")
            theirs.append(table["FedGCR"][place] - table["FedAvg"][place])
            best, base = (_domain_mean(kept, f"{data}, factor {factor}, {method}") for method in ("fedgcr", "fedavg"))
            ours.append(100 * (best - base))
    places = range(len(names))
    for values, color, shift, label in ((theirs, GREY, -0.2, "the paper"), (ours, OURS, 0.2, "here")):
        axes.barh([place + shift for place in places], values, 0.38, color=color, label=label)
        for place, value in zip(places, values, strict=True):
            axes.text(max(value, 0) + 0.3, place + shift, f"{value:+.1f}", va="center", fontsize=TEXT - 1)
    axes.set_yticks(places, names, fontsize=TEXT)
    axes.invert_yaxis()
    axes.set_xlim(min(0, *ours), 27)
    axes.set_xlabel("FedGCR above FedAvg: points of the domain mean", fontsize=TEXT)
    axes.legend(frameon=False, fontsize=TEXT, loc="lower right")
    _title(axes, "Above FedAvg, but by far less than in the paper")
    return figure


def _domain_mean(kept: Kept, name: str) -> float:
    return float(mean(numbers["domain_mean"] for numbers in of(kept, name, model={})))


def _title(axes: Axes, words: str) -> None:
    axes.set_title(words, fontsize=TEXT + 1, loc="left")
    axes.tick_params(labelsize=TEXT - 1)
    axes.spines[["top", "right"]].set_visible(False)


PICTURES: Mapping[str, Callable[[Kept], Figure]] = {"fedpce": fedpce, "client2vec": client2vec, "fedgcr": fedgcr}


def draw(folder: Path, names: Sequence[str] = tuple(PICTURES)) -> list[Path]:
    """Draw the pictures from a folder's kept numbers, beside them."""
    found = []
    for name in names:
        found.append(folder / f"glance-{name}.png")
        save_picture(PICTURES[name](read_packed(folder / f"{name}.json")), found[-1])
    return found


@script
def main() -> None:
    """Draw all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=existing, help="where the kept numbers are, and the pictures go")
    print(*draw(parser.parse_args().folder), sep="\n")


if __name__ == "__main__":
    main()
