"""HTML and SVG as text: elements, scales, axes and pictures, with everything escaped."""

import base64
import html
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fedatlas.report.charts.colors import ramp, red_green_blue

_MOST_CELLS = 1000
"""Up to so many cells of a heat map are drawn one by one, so that each can say its value; more become one picture."""


def escape(text: object) -> str:
    """Return text as it may stand in a page, in an attribute too."""
    return html.escape(str(text), quote=True)


def element(name: str, content: str = "", /, **attributes: str | float | None) -> str:
    """Return one element; ``content`` is markup already, attributes are escaped, ``class_`` is ``class``."""
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    shown = "".join(f' {key}="{escape(value if isinstance(value, str) else short(value))}"' for key, value in pairs)
    return f"<{name}{shown}>{content}</{name}>"


def short(value: float) -> str:
    """Return a coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def clipped(text: str, most: int) -> str:
    """Return text cut to a number of characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def figure(title: str, content: str, note: str = "") -> str:
    """Return a figure under its title; ``content`` and ``note`` are markup."""
    return element("figure", element("figcaption", escape(title) + note) + content)


def svg(width: float, height: float, parts: Iterable[str], label: str, class_: str = "chart") -> str:
    """Return a drawing that scales with the page."""
    box = f"0 0 {short(width)} {short(height)}"
    attributes = f'viewBox="{box}" style="max-width:{short(width)}px" role="img" aria-label="{escape(label)}"'
    return f'<svg class="{class_}" {attributes}>{"".join(parts)}</svg>'


def write(text: str, x: float, y: float, class_: str = "tick", anchor: str = "start", title: str = "") -> str:
    """Return text in a drawing, ``y`` its base line."""
    hint = element("title", escape(title)) if title else ""
    return element("text", escape(text) + hint, x=x, y=y, class_=class_, text_anchor=anchor)


@dataclass(frozen=True)
class Scale:
    """Maps values to coordinates in a drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.5)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round numbers that enclose both ends."""
    if high <= low:
        high = low + (abs(low) * 0.1 or 1.0)
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def grid(places: Sequence[float], scale: Scale, left: float, right: float, form: Callable[[float], str]) -> list[str]:
    """Return horizontal grid lines with their values at the left."""
    parts = []
    for value in places:
        y = scale(value)
        parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(write(form(value), left - 8, y + 4, anchor="end"))
    return parts


def percent(value: float) -> str:
    """Return a share as a tick's label, ``85``."""
    return f"{100 * value:g}"


def picture(pixels: np.ndarray) -> str:
    """Return uint8 pixels (height, width) or (height, width, 3) as the address of an embedded PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def cells(
    values: np.ndarray,
    anchors: Sequence[str],
    box: tuple[float, float, float, float],
    say: Callable[[int, int], str],
) -> list[str]:
    """Return a matrix of values in [0, 1] as a heat map in ``box`` (x, y, width, height)."""
    x, y, width, height = box
    rows, columns = values.shape
    if values.size > _MOST_CELLS:
        stops, parts = np.linspace(0, 1, len(anchors)), np.array([red_green_blue(color) for color in anchors])
        pixels = np.stack([np.interp(values, stops, part) for part in parts.T], axis=-1).round().astype(np.uint8)
        place = {"x": x, "y": y, "width": width, "height": height}
        return [element("image", href=picture(pixels), preserveAspectRatio="none", class_="pixels", **place)]
    across, down = width / columns, height / rows
    return [
        element(
            "rect",
            element("title", escape(say(i, j))),
            x=x + j * across,
            y=y + i * down,
            width=across,
            height=down,
            fill=ramp(anchors, float(values[i, j])),
            class_="cell",
        )
        for i in range(rows)
        for j in range(columns)
    ]


def color_key(anchors: Sequence[str], low: str, high: str) -> str:
    """Return a small bar that explains the colours of a heat map."""
    bar = element("i", style=f"background:linear-gradient(90deg,{','.join(anchors)})")
    return element("span", f"{escape(low)}{bar}{escape(high)}", class_="key")
