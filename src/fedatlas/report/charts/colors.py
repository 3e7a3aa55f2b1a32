"""Colours: one for each domain, one for each algorithm, and the ramps of heat maps; all safe for the colour-blind."""

import colorsys
from collections.abc import Sequence

DOMAINS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a68b3", "#8a8a2e")
"""After Okabe and Ito."""
ALGORITHMS = ("#332288", "#cc6677", "#117733", "#44aa99", "#882255", "#999933", "#6699cc", "#aa4499")
"""After Paul Tol's muted scheme."""
NO_DOMAIN = "#5b7a99"
INK = "#1b2733"
SEQUENTIAL = ("#f5f8fb", "#cfe0ee", "#8fbbdb", "#4189be", "#14568f", "#072f5f")
DIVERGING = ("#1f5a99", "#75add2", "#d5e6f0", "#fafafa", "#fbdcc8", "#e6926f", "#a8202c")


def nth(palette: Sequence[str], index: int) -> str:
    """Return the colour at a position; past the palette's end, hues that are far from their neighbours."""
    if index < len(palette):
        return palette[index]
    hue = (index * 0.6180339887) % 1
    return _hexadecimal([255 * part for part in colorsys.hls_to_rgb(hue, 0.45 if index % 2 else 0.6, 0.45)])


def ramp(anchors: Sequence[str], value: float) -> str:
    """Return the colour at ``value`` in [0, 1] between equally spaced anchors."""
    place = min(max(value, 0.0), 1.0) * (len(anchors) - 1)
    left = min(int(place), len(anchors) - 2)
    low, high = red_green_blue(anchors[left]), red_green_blue(anchors[left + 1])
    return _hexadecimal([a + (place - left) * (b - a) for a, b in zip(low, high, strict=True)])


def cell_color(value: float, low: float, high: float) -> str:
    """Return the light background of a table's cell, on which dark text stays readable."""
    return ramp(SEQUENTIAL, 0.45 * (value - low) / (high - low) if high > low else 0.2)


def red_green_blue(color: str) -> tuple[int, int, int]:
    """Return the three parts of ``#rrggbb``."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _hexadecimal(parts: Sequence[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)
