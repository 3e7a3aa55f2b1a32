"""Small tables and pictures for notebooks: plain HTML and SVG, escaped, without script or style sheet."""

from collections.abc import Mapping, Sequence
from html import escape

LEFT = ' style="text-align:left"'
INK = "#1f77b4"
NAMED = 20
"""The most points whose names are written."""


class Drawn(str):
    """A picture in a cell: markup of this file's making, which is not escaped again."""


def facts_table(title: str, facts: Mapping[str, object]) -> str:
    """Return a titled table of names and values.

    >>> facts_table("Run", {"rounds": 3}).replace(LEFT, "")
    '<table><caption>Run</caption><tr><th>rounds</th><td>3</td></tr></table>'
    """
    rows = "".join(
        f"<tr><th{LEFT}>{_text(name)}</th><td{LEFT}>{_text(value)}</td></tr>" for name, value in facts.items()
    )
    return f"<table><caption>{_text(title)}</caption>{rows}</table>"


def rows_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, most: int = 12) -> str:
    """Return a table with a head, words to the left; of many rows the first, and how many more there are.

    >>> rows_table(("size",), [(1,), (2,)], most=1)
    '<table><tr><th>size</th></tr><tr><td>1</td></tr></table><p>… and 1 more</p>'
    """
    words = [any(isinstance(row[i], str) for row in rows) for i in range(len(heads))]
    sides = [LEFT if word else "" for word in words]
    head = "".join(f"<th{side}>{_text(name)}</th>" for side, name in zip(sides, heads, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{side}>{_text(value)}</td>' for side, value in zip(sides, row, strict=True))}</tr>"
        for row in rows[:most]
    )
    more = f"<p>… and {len(rows) - most:,} more</p>" if len(rows) > most else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def bars_picture(values: Sequence[float], names: Sequence[str]) -> Drawn:
    """Return small bars side by side as SVG, such as how many examples of each class; each says its name and value."""
    width, height, top = max(3, min(10, 160 // max(len(values), 1))), 22, max([1e-9, *values])
    bars = "".join(
        f'<rect x="{i * width}" y="{height - height * value / top:.1f}" width="{width - 1}" '
        f'height="{height * value / top:.1f}"><title>{_text(name)}: {value:g}</title></rect>'
        for i, (value, name) in enumerate(zip(values, names, strict=True))
    )
    return Drawn(_svg(width * len(values), height, "examples of each class", f'<g fill="{INK}">{bars}</g>'))


def points_picture(points: Sequence[tuple[float, float]], names: Sequence[str], *, about: str, size: int = 260) -> str:
    """Return points in a square as SVG with their names where there is room; each says its name under the mouse."""
    wide = size + 110 * (len(points) <= NAMED)
    across, down = _spread([x for x, _ in points], size), _spread([-y for _, y in points], size)
    free = _apart(across, down) if len(points) <= NAMED else set()
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{INK}" fill-opacity="0.7"><title>{_text(name)}</title></circle>'
        + (_words(x + 9, y + 4, name if len(name) <= 16 else name[:15] + "…") if i in free else "")
        for i, (x, y, name) in enumerate(zip(across, down, names, strict=True))
    )
    box = f'width="{wide - 1}" height="{size - 1}" fill="none" stroke="#888" stroke-opacity="0.4"'
    frame = f'<rect x="0.5" y="0.5" {box}/>'
    return _svg(wide, size, about, frame + dots) + f"<p>{_text(about[0].upper() + about[1:])}.</p>"


def curve_picture(xs: Sequence[float], ys: Sequence[float], *, about: str, percent: bool = True) -> str:
    """Return a line over a range from 0 to 1, or to the largest value, as SVG with a frame and the ends of its axes."""
    width, height, left, edge = 300, 130, 44, 12
    top = 1.0 if percent else max([1e-12, *ys])
    across = [left + x for x in _spread(xs, width - left - 4)]
    down = [height - 30 - (height - 30 - edge) * min(max(y, 0.0), top) / top for y in ys]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in zip(across, down, strict=True))
    axes = f"M{left} {edge}V{height - 30}H{width - 4}"
    frame = f'<path d="{axes}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    ends = "100 %" if percent else f"{top:.3g}"
    words = (
        _words(left - 6, edge + 4, ends, "end")
        + _words(left - 6, height - 26, "0", "end")
        + _words(across[0], height - 14, f"{xs[0]:g}", "middle")
        + (_words(across[-1], height - 14, f"{xs[-1]:g}", "middle") if len(xs) > 1 else "")
        + _words((left + width) / 2, height - 3, about, "middle")
    )
    drawn = f'<polyline points="{line}" fill="none" stroke="{INK}" stroke-width="2"/><g fill="{INK}">{dots}</g>'
    return _svg(width, height, about, frame + words + drawn)


def _apart(across: Sequence[float], down: Sequence[float], *, wide: int = 100, tall: int = 12) -> set[int]:
    """Return the points whose names would not cover that of an earlier one.

    >>> sorted(_apart([0, 10, 10], [0, 5, 40]))
    [0, 2]
    """
    free: set[int] = set()
    for i, (x, y) in enumerate(zip(across, down, strict=True)):
        if all(abs(x - across[j]) > wide or abs(y - down[j]) > tall for j in free):
            free.add(i)
    return free


def _words(x: float, y: float, text: str, anchor: str = "start") -> str:
    style = f'font-size="11" font-family="sans-serif" fill="currentColor" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{_text(text)}</text>'


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
    if isinstance(value, Drawn):
        return value
    return escape(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
