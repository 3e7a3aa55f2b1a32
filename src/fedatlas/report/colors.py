"""Colours of pictures: one for each domain, and the ramp of heat maps; all safe for the colour-blind."""

import colorsys
from collections.abc import Sequence

DOMAINS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a68b3", "#8a8a2e")
"""After Okabe and Ito."""
NO_DOMAIN = "#5b7a99"
INK = "#1b2733"
DIVERGING = ("#1f5a99", "#75add2", "#d5e6f0", "#fafafa", "#fbdcc8", "#e6926f", "#a8202c")


def nth(palette: Sequence[str], index: int) -> str:
    """Return the colour at a position; past the palette's end, hues that are far from their neighbours."""
    if index < len(palette):
        return palette[index]
    hue = (index * 0.6180339887) % 1
    return _hexadecimal([255 * part for part in colorsys.hls_to_rgb(hue, 0.45 if index % 2 else 0.6, 0.45)])


def _hexadecimal(parts: Sequence[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)
