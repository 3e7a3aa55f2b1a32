"""Pictures of an atlas: the heat map of similarities, the table of domains, the map of the clients.

Each returns a figure of matplotlib that needs no display; ``save_picture`` writes it as PNG, SVG or PDF.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.grouping import like_together
from fedatlas.errors import UsageError, unknown_name
from fedatlas.report.colors import DIVERGING, DOMAINS, INK, NO_DOMAIN, nth

_COSINES = LinearSegmentedColormap.from_list("cosines", list(DIVERGING))
_SHORT = 18
"""How many characters of a domain's name are written."""
_METHODS = {"pca": "PCA", "tsne": "t-SNE"}
FORMATS = ("pdf", "png", "svg")


@dataclass(frozen=True, kw_only=True, eq=False)
class DomainTable:
    """The mean cosine between the clients of every two domains."""

    domains: tuple[str, ...]
    cosines: np.ndarray
    """(domains, domains); inside a domain over its pairs of different clients, NaN if it has one client only."""


def domain_similarity(atlas: Atlas, half: str | None = None) -> DomainTable:
    """Return the similarity of the clients of every two domains (the paper's Fig. 9)."""
    known = tuple(_known(atlas))
    if not known:
        raise UsageError(
            "the atlas has no domains to compare; make it from a federation whose clients have them.",
            code="domains-missing",
        )
    halves = list(atlas.halves) if half is None else [half]
    member = torch.tensor([[domain == own for domain in atlas.domains] for own in known], dtype=torch.float64)
    counts = member.sum(1)
    pairs = torch.outer(counts, counts) - torch.diag(counts)
    total = torch.zeros(len(known), len(known), dtype=torch.float64)
    for own in halves:
        rows = atlas.unit(own).double()
        sums = member @ rows
        # A client and itself are not a pair.
        total += sums @ sums.T - torch.diag(member @ rows.square().sum(1))
    # Without a pair the sums are 0 up to rounding, and over 0 give NaN or infinity.
    means = (total / (pairs * len(halves))).masked_fill(pairs == 0, torch.nan)
    return DomainTable(domains=known, cosines=means.numpy())


def similarity_picture(atlas: Atlas, half: str | None = None, title: str | None = None) -> Figure:
    """Return the heat map of the clients' similarities.

    In the atlas's order, with domains along both axes (Fig. 2); without domains, similar clients are side by side.
    """
    figure, axes = _figure(6.8, 5.6)
    cosines = atlas.similarity(half).numpy()
    if not any(atlas.domains):
        order = like_together(cosines)
        cosines = cosines[np.ix_(order, order)]
    image = axes.imshow(cosines, cmap=_COSINES, vmin=-1, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    if any(atlas.domains):
        _mark_domains(atlas, figure, axes)
    figure.colorbar(image, ax=axes, shrink=0.8, label=_measure(atlas, half))
    figure.suptitle(title or f"How alike {len(atlas)} clients are", color=INK)
    return figure


def domain_picture(atlas: Atlas, half: str | None = None, title: str | None = None) -> Figure:
    """Return the table of domains as a heat map with its numbers."""
    table = domain_similarity(atlas, half)
    side = max(3.2, 0.75 * len(table.domains) + 1.6)
    figure, axes = _figure(side + 1.2, side)
    image = axes.imshow(table.cosines, cmap=_COSINES, vmin=-1, vmax=1)
    names = [_short(domain) for domain in table.domains]
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    for (i, j), value in np.ndenumerate(table.cosines):
        said = "–" if np.isnan(value) else f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
        dark = not np.isnan(value) and abs(value) > 0.75
        axes.text(j, i, said, ha="center", va="center", color="white" if dark else INK)
    figure.colorbar(image, ax=axes, shrink=0.8, label=_measure(atlas, half))
    figure.suptitle(title or "Mean cosine between domains", color=INK)
    return figure


def map_picture(
    atlas: Atlas, method: str = "pca", half: str | None = None, seed: int = 0, title: str | None = None
) -> Figure:
    """Return the clients in a plane, coloured by domain; a point's area shows the number of its examples."""
    figure, axes = _figure(7.2, 4.8)
    places = atlas.map2d(method, half, seed)
    numbers, colors = _domain_colors(atlas)
    largest = max(int(atlas.sizes.max()), 1)
    areas = 12 + 60 * atlas.sizes.numpy() / largest
    own = [colors[number] for number in numbers]
    axes.scatter(places[:, 0], places[:, 1], s=areas, c=own, alpha=0.8, linewidths=0.4, edgecolors="white")
    axes.set(xticks=[], yticks=[])
    if method == "pca":
        # The two directions share one scale only where distances mean something.
        axes.set_aspect("equal", adjustable="datalim")
        axes.set(xlabel="first principal component", ylabel="second principal component")
    if any(atlas.domains):
        _legend(atlas, figure)
    axes.set_title(title or f"{len(atlas)} clients, {_METHODS[method]} of their unit vectors", color=INK)
    return figure


def save_picture(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, SVG or PDF, by the name's ending; the same figure gives the same bytes."""
    target = Path(path)
    kind = target.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise unknown_name("format of a picture", target.suffix, FORMATS)
    target.parent.mkdir(parents=True, exist_ok=True)
    dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with mpl.rc_context({"svg.hashsalt": "fedatlas", "svg.fonttype": "none"}):
        figure.savefig(target, format=kind, dpi=150, metadata=dates[kind])


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _known(atlas: Atlas) -> list[str]:
    return list(dict.fromkeys(domain for domain in atlas.domains if domain is not None))


def _domain_colors(atlas: Atlas) -> tuple[np.ndarray, list[str]]:
    """Return each client's colour number, and the colours; clients without a domain have the last."""
    number = {domain: i for i, domain in enumerate(_known(atlas))}
    numbers = [len(number) if domain is None else number[domain] for domain in atlas.domains]
    return np.array(numbers), [*(nth(DOMAINS, i) for i in range(len(number))), NO_DOMAIN]


def _mark_domains(atlas: Atlas, figure: Figure, axes: Axes) -> None:
    """Draw a strip of the domains' colours along both axes, and name them."""
    numbers, colors = _domain_colors(atlas)
    count, top = len(atlas), len(colors) - 0.5
    above, left = axes.inset_axes((0, 1.012, 1, 0.025)), axes.inset_axes((-0.037, 0, 0.025, 1))
    for strip, row in ((above, numbers[None, :]), (left, numbers[:, None])):
        strip.imshow(row, cmap=ListedColormap(colors), vmin=-0.5, vmax=top, aspect="auto", interpolation="nearest")
        strip.set_axis_off()
    runs = _runs(atlas)
    if min(stop - start for start, stop in runs) < count / 40:
        _legend(atlas, figure)
        return
    for start, stop in runs:
        name, middle = _short(atlas.domains[start] or ""), (start + stop - 1) / 2
        above.text(middle, -0.8, name, rotation=35, ha="left", va="bottom", rotation_mode="anchor", fontsize=8)
        left.text(-0.8, middle, name, ha="right", va="center", fontsize=8)


def _runs(atlas: Atlas) -> list[tuple[int, int]]:
    """Return where neighbouring clients of one domain start and stop."""
    starts = [i for i in range(len(atlas)) if i == 0 or atlas.domains[i] != atlas.domains[i - 1]]
    return list(zip(starts, [*starts[1:], len(atlas)], strict=True))


def _legend(atlas: Atlas, figure: Figure) -> None:
    marks = [
        Line2D([], [], marker="o", linestyle="", color=nth(DOMAINS, i), label=_short(domain))
        for i, domain in enumerate(_known(atlas))
    ]
    figure.legend(handles=marks, loc="outside right upper", frameon=False)


def _measure(atlas: Atlas, half: str | None) -> str:
    if half is None and len(atlas.halves) > 1:
        return f"cosine, mean of {' and '.join(atlas.halves)}"
    return f"cosine of {half or next(iter(atlas.halves))}"


def _short(name: str) -> str:
    return name if len(name) <= _SHORT else name[: _SHORT - 1] + "…"
