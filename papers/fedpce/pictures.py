"""The paper's pictures: clients in a plane, larger where their degradation is; accuracy against images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.lines import Line2D

from fedatlas.atlas import Atlas
from fedatlas.report import DOMAINS, nth
from papers.drawing import blank, keep
from papers.fedpce.setting import KINDS
from papers.options import Options
from papers.tables import Numbers


def level(name: str, domain: str | None, count: int) -> float:
    """Return how strongly a client is degraded, in [0, 1], from its place among those of its kind."""
    place = int(name.rpartition("-")[2]) / max(1, count - 1)
    return {"noise": place, "imbalance": 1 - place}.get(domain or "", 0.5)


def plane_picture(atlases: Mapping[str, Atlas], newcomers: Sequence[str], path: Path, options: Options) -> None:
    """Draw clients by PCA (above) and t-SNE (below), one column an atlas; newcomers are rings."""
    figure = blank(3.4 * len(atlases) + 1.2, 6.4)
    grid = figure.subplots(2, len(atlases), squeeze=False)
    for column, (title, atlas) in enumerate(atlases.items()):
        domains = list(dict.fromkeys(atlas.domains))
        for row, method in enumerate(("pca", "tsne")):
            axes, places = grid[row][column], atlas.map2d(method)
            for number, domain in enumerate(domains):
                own = [i for i, other in enumerate(atlas.domains) if other == domain]
                color = nth(DOMAINS, number)
                for new in (False, True):
                    those = [i for i in own if (atlas.names[i] in newcomers) == new]
                    areas = [20 + 80 * level(atlas.names[i], domain, len(own)) for i in those]
                    face = "none" if new else color
                    label = None if new else KINDS.get(domain or "", domain)
                    axes.scatter(
                        places[those, 0], places[those, 1], areas, facecolors=face, edgecolors=color, label=label
                    )
            axes.set(xticks=[], yticks=[], title=f"{title}, {'PCA' if method == 'pca' else 't-SNE'}")
    handles, labels = grid[0][0].get_legend_handles_labels()
    ring = Line2D([], [], linestyle="none", marker="o", markerfacecolor="none", markeredgecolor="gray")
    figure.legend([*handles, ring], [*labels, "new clients"], loc="outside right upper", frameon=False)
    keep(figure, path, options)


def few_picture(curves: Mapping[str, Sequence[Numbers]], path: Path, options: Options) -> None:
    """Draw the accuracy of new clients against their number of training images."""
    figure = blank(6, 4)
    axes = figure.add_subplot()
    for number, (title, points) in enumerate(curves.items()):
        values = [100 * point["accuracy"] for point in points]
        axes.plot([point["images"] for point in points], values, marker="o", color=nth(DOMAINS, number), label=title)
    axes.set(xscale="log", xlabel="training images of a new client", ylabel="accuracy in percent")
    counts = [point["images"] for points in curves.values() for point in points]
    axes.set_xticks(sorted({*counts}), [str(count) for count in sorted({*counts})], minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False)
    keep(figure, path, options)
