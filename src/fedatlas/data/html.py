"""Small tables and pictures for notebooks: plain HTML and SVG, escaped, without script or style sheet."""

from collections.abc import Mapping, Sequence
from html import escape


def facts_table(title: str, facts: Mapping[str, object]) -> str:
    """Return a titled table of names and values.

    >>> facts_table("Run", {"rounds": 3})
    '<table><caption>Run</caption><tr><th>rounds</th><td>3</td></tr></table>'
    """
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in facts.items())
    return f"<table><caption>{_text(title)}</caption>{rows}</table>"


def rows_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, most: int = 12) -> str:
    """Return a table with a head; of many rows the first, and how many more there are.

    >>> rows_table(("client", "size"), [("a", 1), ("b", 2)], most=1)
    '<table><tr><th>client</th><th>size</th></tr><tr><td>a</td><td>1</td></tr></table><p>… and 1 more</p>'
    """
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in rows[:most])
    more = f"<p>… and {len(rows) - most:,} more</p>" if len(rows) > most else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def points_picture(points: Sequence[tuple[float, float]], names: Sequence[str], *, about: str, size: int = 220) -> str:
    """Return points in a square as SVG; each says its name when the mouse is over it."""
    places = zip(_spread([x for x, _ in points], size), _spread([-y for _, y in points], size), names, strict=True)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill-opacity="0.6"><title>{_text(name)}</title></circle>'
        for x, y, name in places
    )
    return _svg(size, size, about, f'<g fill="#1f77b4">{dots}</g>')


def curve_picture(xs: Sequence[float], ys: Sequence[float], *, about: str) -> str:
    """Return a line over a range from 0 to 1, or to the largest value, as SVG with a frame."""
    width, height = 220, 90
    top = max(1.0, *ys)
    places = zip(_spread(xs, width), (height - 8 - (height - 16) * max(y, 0.0) / top for y in ys), strict=True)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    frame = f'<path d="M8 8V{height - 8}H{width - 8}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    return _svg(width, height, about, f'{frame}<polyline points="{line}" fill="none" stroke="#1f77b4"/>')


def _svg(width: int, height: int, about: str, inside: str) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}><title>{_text(about)}</title>{inside}</svg>'


def _spread(values: Sequence[float], size: int, edge: int = 8) -> list[float]:
    """Return values moved and scaled to a picture's width; equal ones go to its middle."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high == low:
        return [size / 2 for _ in values]
    return [edge + (size - 2 * edge) * (value - low) / (high - low) for value in values]


def _text(value: object) -> str:
    return escape(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
