"""Accuracy and loss over rounds, as line charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedatlas.report.charts.colors import INK
from fedatlas.report.charts.markup import (
    Scale,
    clipped,
    element,
    escape,
    figure,
    grid,
    percent,
    short,
    svg,
    ticks,
    write,
)
from fedatlas.report.groups import Group, Spread

TOGETHER = 6
"""Up to so many algorithms share one chart; more get a small one each, before the others in grey."""
_LABEL_GAP = 14
_MOST_NAMES = 12
"""Of more domains, the lines are not named at their ends."""
_MOST_HINTS = 120
"""Lines with more points do not say each of their values."""


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    label: str
    color: str
    points: list[tuple[int, Spread]]
    width: float = 2
    dashed: bool = False
    """Held-out clients are dashed."""
    named: bool = True
    """Whether its name stands at its end."""


def accuracy_charts(groups: Sequence[Group], domain_colors: dict[str, str]) -> str:
    """Return accuracy over rounds beside training loss over rounds."""
    if len(groups) > TOGETHER:
        return _small_multiples(groups)
    accuracy = _one_run_lines(groups[0], domain_colors) if len(groups) == 1 else _compared_lines(groups)
    losses = [Line(group.label, group.color if len(groups) > 1 else INK, group.curve(_loss)) for group in groups]
    left = figure("Accuracy on test data (%)", line_chart(accuracy, (620, 330), "Accuracy over rounds", form=percent))
    right = figure(
        "Training loss",
        line_chart(losses, (400, 330), "Training loss over rounds", labelled=len(groups) > 1, floor=0.0),
    )
    return element("div", left + right, class_="pair wide-left")


def line_chart(
    lines: Sequence[Line],
    size: tuple[float, float],
    label: str,
    *,
    form: Callable[[float], str] = lambda value: f"{value:g}",
    labelled: bool = True,
    behind: Sequence[Line] = (),
    floor: float | None = None,
    count: int = 6,
) -> str:
    """Return lines over rounds, named at their ends; a light band is one standard deviation to each side."""
    width, height = size
    lines = [line for line in lines if line.points]
    drawn = [*lines, *(line for line in behind if line.points)]
    if not drawn:
        return element("p", "Nothing was recorded yet.", class_="empty")
    values = [s.mean + sign * (s.deviation or 0) for line in drawn for _, s in line.points for sign in (-1, 1)]
    places = ticks(min(values) if floor is None else min(floor, *values), max(values), count)
    if form is percent:
        places = [value for value in places if 0 <= value <= 1]
    longest = max((len(clipped(line.label, 16)) for line in lines if line.named), default=0) if labelled else 0
    left, right, top, bottom = 40.0, width - 14 - 7.4 * longest, 10.0, height - 34
    rounds = [number for line in drawn for number, _ in line.points]
    across = Scale(min(rounds), max(rounds), left + 6, right - 6)
    up = Scale(min(places[0], *values), max(places[-1], *values), bottom, top)
    parts = grid(places, up, left, right, form)
    parts += [write(f"{v:g}", across(v), bottom + 18, anchor="middle") for v in _round_ticks(across)]
    parts.append(write("round", (left + right) / 2, height - 2, anchor="middle"))
    parts += [_path(line, across, up) for line in behind if line.points]
    parts += [_band(line, across, up) + _path(line, across, up) + _hints(line, across, up, form) for line in lines]
    if labelled:
        parts += _end_labels(lines, across, up, bottom)
    return svg(width, height, parts, label)


def _one_run_lines(group: Group, domain_colors: dict[str, str]) -> list[Line]:
    named = len(domain_colors) <= _MOST_NAMES
    domains = [
        Line(domain, color, group.curve(_domain_accuracy(domain)), width=1.5, named=named)
        for domain, color in domain_colors.items()
    ]
    return [
        *(line for line in domains if line.points),
        Line("held-out", INK, group.curve(_accuracy("held_out")), width=1.75, dashed=True),
        Line("all clients", INK, group.curve(_accuracy("evaluation")), width=2.75),
    ]


def _compared_lines(groups: Sequence[Group]) -> list[Line]:
    lines = [Line(group.label, group.color, group.curve(_accuracy("evaluation"))) for group in groups]
    held_out = [_held_out(group) for group in groups]
    return [*held_out, *lines]


def _held_out(group: Group) -> Line:
    curve = group.curve(_accuracy("held_out"))
    return Line(f"{group.label}, held-out", group.color, curve, width=1.25, dashed=True, named=False)


def _small_multiples(groups: Sequence[Group]) -> str:
    every = [Line(group.label, group.color, group.curve(_accuracy("evaluation"))) for group in groups]
    grey = [replace(line, color="#d9dfe5", width=1.0) for line in every]
    figures = ""
    for group, line in zip(groups, every, strict=True):
        chart = line_chart(
            [_held_out(group), replace(line, width=2.25)],
            (330, 190),
            f"Accuracy of {group.label} over rounds",
            form=percent,
            labelled=False,
            behind=grey,
            count=5,
        )
        reached = element("b", line.points[-1][1].percent(1)) if line.points else ""
        figures += figure(group.label, chart, reached)
    return element("div", figures, class_="multiples")


def _round_ticks(across: Scale) -> list[float]:
    """Return the first round and round numbers after it that leave it room."""
    places = ticks(across.low, across.high, max(4, int((across.end - across.start) / 90)))
    whole = [value for value in places if value % 1 == 0 and value <= across.high]
    return [across.low, *(value for value in whole if across(value) > across.start + 24)]


def _path(line: Line, across: Scale, up: Scale) -> str:
    places = [(across(number), up(spread.mean)) for number, spread in line.points]
    path = "M" + "L".join(f"{short(x)} {short(y)}" for x, y in places)
    dashes = "5 4" if line.dashed else None
    x, y = places[-1]
    end = element("circle", cx=x, cy=y, r=line.width * 0.7 + 1, fill=line.color) if line.width > 1 else ""
    return (
        element("path", d=path, class_="line", stroke=line.color, stroke_width=line.width, stroke_dasharray=dashes)
        + end
    )


def _band(line: Line, across: Scale, up: Scale) -> str:
    points = [(across(number), spread) for number, spread in line.points if spread.deviation is not None]
    if line.dashed or not points:
        return ""
    upper = [f"{short(x)} {short(up(s.mean + (s.deviation or 0)))}" for x, s in points]
    lower = [f"{short(x)} {short(up(s.mean - (s.deviation or 0)))}" for x, s in reversed(points)]
    return element("path", d="M" + "L".join(upper + lower) + "Z", fill=line.color, class_="band")


def _hints(line: Line, across: Scale, up: Scale, form: Callable[[float], str]) -> str:
    """Return invisible dots that show their value when pointed at."""
    if len(line.points) > _MOST_HINTS:
        return ""
    dots = ""
    for number, spread in line.points:
        value = f"{spread.percent()} %" if form is percent else spread.text(lambda v: f"{v:.4g}")
        title = element("title", escape(f"{line.label}, round {number}: {value}"))
        dots += element("circle", title, cx=across(number), cy=up(spread.mean), r=6, class_="hint")
    return dots


def _end_labels(lines: Sequence[Line], across: Scale, up: Scale, bottom: float) -> list[str]:
    """Return the lines' names at their ends, moved apart where they would overlap."""
    named = sorted((line for line in lines if line.named), key=lambda line: up(line.points[-1][1].mean))
    heights: list[float] = []
    for line in named:
        wanted = up(line.points[-1][1].mean) + 4
        heights.append(max(wanted, heights[-1] + _LABEL_GAP) if heights else wanted)
    for i in range(len(heights) - 1, -1, -1):
        most = bottom + 4 if i == len(heights) - 1 else heights[i + 1] - _LABEL_GAP
        heights[i] = min(heights[i], most)
    return [
        element(
            "text",
            escape(clipped(line.label, 16)) + element("title", escape(line.label)),
            x=across.end + 12,
            y=y,
            class_="name",
            style=f"fill:{line.color}",
        )
        for line, y in zip(named, heights, strict=True)
    ]


def _accuracy(part: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda entry: (entry.get(part) or {}).get("accuracy")


def _domain_accuracy(domain: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda entry: (entry.get("evaluation") or {}).get("domains", {}).get(domain)


def _loss(entry: dict[str, Any]) -> float | None:
    """Return the mean training loss; a round without answers has none."""
    return entry["train_loss"] if entry["answered"] else None
